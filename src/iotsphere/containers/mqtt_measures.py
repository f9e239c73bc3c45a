"""Figures of the MQTT door and of shared subscriptions for ``/metrics``."""

from __future__ import annotations

from typing import Any


def mqtt_measures(box: Any) -> Any:
    """The door's own counters by their fixed names, however many there are, and what its clients hold."""
    from ..gateways.http import Measure

    door, sharing = box.mqtt_gateway(), box.sharing()
    return (
        Measure("iotsphere_mqtt_connections", "Open sockets of MQTT clients", lambda: door.connections, "gauge"),
        Measure("iotsphere_mqtt_events", "What happened at the MQTT door", lambda: door.counts, label="event"),
        Measure("iotsphere_share_groups", "Shared subscriptions with members here", lambda: sharing.groups, "gauge"),
        Measure(
            "iotsphere_share_failures", "Times that shared subscriptions waited for the log", lambda: sharing.failures
        ),
    )
