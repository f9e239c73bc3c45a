"""The bounds of the WebSocket door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CLOSE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class WebSocketLimits:
    """Bounds of the door. Times in seconds.

    ``outbox_bytes``: what may wait for one client; what comes after it has reached that stays in the log.
    ``per_address`` does not bind loopback addresses unless ``limit_loopback``; ``unauthenticated_per_address`` always
    does: past it the oldest connection that has not shown a token within a second is cut. A client that sends more
    than ``requests_per_second`` is read more slowly.
    """

    outbox_bytes: int = 1024 * 1024
    connections: int = 10_000
    per_address: int = 200
    limit_loopback: bool = False
    unauthenticated_per_address: int = 100
    handshake: float = 5.0
    authentication: float = 5.0
    ping_interval: float = 20.0
    ping_timeout: float = 60.0
    requests_per_second: float = 10_000.0
    compression: bool = False
    origins: tuple[str, ...] = ()
