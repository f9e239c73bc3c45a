"""Who may connect to the MQTT door: limits per door and address, and no patience with those who do not log in."""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Final

from ...entities.errors import TooManyConnections
from .limits import MqttLimits
from .ties import Connected

POLITELY_REFUSED: Final = 1_000
PATIENCE_S: Final = 1.0


class MqttAdmission:
    """Counts sockets, admitted clients, and the strangers of each address: those that have not logged in yet."""

    def __init__(self, limits: MqttLimits, counts: Counter[str]) -> None:
        self._limits = limits
        self._counts = counts
        self._sockets = 0
        self._admitted: set[Connected] = set()
        self._addresses: Counter[str] = Counter()
        self._strangers: dict[str, dict[Connected, None]] = {}

    def opened(self, client: Connected) -> bool:
        """Take note of a new socket, before it has said anything; False: there is no room even for a refusal.

        Past the limit for strangers the oldest one of that address is cut, so who dribbles keeps nobody out.
        """
        if self._sockets >= self._limits.connections + POLITELY_REFUSED:
            self._counts["refused_too_many_sockets"] += 1
            return False
        self._sockets += 1
        waiting = self._strangers.setdefault(client.address, {})
        waiting[client] = None
        while len(waiting) > self._limits.strangers_per_address:
            oldest = next(iter(waiting))
            if client.since - oldest.since < PATIENCE_S:
                break
            self._counts["evicted_strangers"] += 1
            del waiting[oldest]
            oldest.cut()
        return True

    def admit(self, client: Connected) -> None:
        """Count a client in that has logged in. Raises TooManyConnections; those that are counted in already stay."""
        if len(self._admitted) >= self._limits.connections:
            raise TooManyConnections(f"the gateway holds {self._limits.connections} connections; try again later")
        bound = self._limits.limit_loopback or not _is_loopback(client.address)
        if bound and self._addresses[client.address] >= self._limits.per_address:
            raise TooManyConnections(f"your address holds {self._limits.per_address} connections; close some")
        self._admitted.add(client)
        self._addresses[client.address] += 1
        self._known(client)

    def lost(self, client: Connected) -> None:
        """Take note of the end of a socket."""
        self._sockets -= 1
        self._known(client)
        if client in self._admitted:
            self._admitted.remove(client)
            self._addresses[client.address] -= 1
            if not self._addresses[client.address]:
                del self._addresses[client.address]

    def _known(self, client: Connected) -> None:
        waiting = self._strangers.get(client.address)
        if waiting is not None:
            waiting.pop(client, None)
            if not waiting:
                del self._strangers[client.address]


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
