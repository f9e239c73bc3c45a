"""Who may connect to the WebSocket door: limits per door and address, and no patience with those who show no token."""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Final

from ...entities.errors import TooManyConnections
from .connection import Connection
from .limits import WebSocketLimits

POLITELY_REFUSED: Final = 1_000
PATIENCE_S: Final = 1.0


class Admission:
    """Counts sockets, admitted connections, and those of each address that have not shown a token yet."""

    def __init__(self, limits: WebSocketLimits, counts: Counter[str]) -> None:
        self._limits = limits
        self._counts = counts
        self._sockets = 0
        self._admitted = 0
        self._addresses: Counter[str] = Counter()
        self._pending: dict[str, dict[Connection, None]] = {}

    def opened(self, connection: Connection) -> None:
        """Take note of a new socket, before it has said anything."""
        self._sockets += 1
        if self._sockets > self._limits.connections + POLITELY_REFUSED:
            self._counts["refused_too_many_sockets"] += 1
            connection.transport.abort()
            return
        waiting = self._pending.setdefault(connection.address, {})
        waiting[connection] = None
        while len(waiting) > self._limits.unauthenticated_per_address:
            oldest = next(iter(waiting))
            if not oldest.is_known:
                if connection.opened_at - oldest.opened_at < PATIENCE_S:
                    break
                self._counts["evicted_unauthenticated"] += 1
                oldest.cut()
            del waiting[oldest]

    def lost(self, connection: Connection) -> None:
        """Take note of the end of a socket."""
        self._sockets -= 1
        address = connection.address
        if connection.admitted:
            self._admitted -= 1
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]
        self.knows(connection)

    def knows(self, connection: Connection) -> None:
        """Take note that a connection has shown a token, or is gone."""
        waiting = self._pending.get(connection.address)
        if waiting is not None:
            waiting.pop(connection, None)
            if not waiting:
                del self._pending[connection.address]

    def admit(self, connection: Connection) -> None:
        """Count a connection in. Raises TooManyConnections; those that are counted in already stay."""
        if self._admitted >= self._limits.connections:
            raise TooManyConnections(f"the gateway holds {self._limits.connections} connections; try again later")
        address = connection.address
        bound = self._limits.limit_loopback or not _is_loopback(address)
        if bound and self._addresses[address] >= self._limits.per_address:
            raise TooManyConnections(f"your address holds {self._limits.per_address} connections; close some")
        connection.admitted = True
        self._admitted += 1
        self._addresses[address] += 1


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
