"""How much the MQTT door takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...adapters.mqtt.life import Offer


@dataclass(frozen=True, slots=True)
class MqttLimits:
    """Bounds of the door.

    ``per_address`` does not bind loopback addresses unless ``limit_loopback``; ``strangers_per_address`` always does:
    past it, the oldest connection that has not logged in is cut. ``unappended_bytes``: what one client may have on its
    way into the log before its socket is read no further. ``outbox_bytes``: what may wait for one client before its
    reader falls back to the log. ``close_on_denial``: a 3.1.1 client that publishes where it must not is cut off;
    otherwise it is told on its errors topic. ``requests_under_way``: requests of one client that are being carried out.
    """

    connections: int = 10_000
    per_address: int = 200
    limit_loopback: bool = False
    strangers_per_address: int = 100
    unappended_bytes: int = 256 * 1024
    outbox_bytes: int = 256 * 1024
    filters: int = 1_000
    waiting_requests: int = 16
    requests_under_way: int = 64
    close_on_denial: bool = True
    offer: Offer = field(default_factory=lambda: Offer(connect_within=4.5))
