"""The figures of the MQTT door, as Prometheus asks for them."""

from __future__ import annotations

from iotsphere.adapters.mqtt import packets as p
from tests.gateways.mqtt.peer import Peer
from tests.support.gateway import Gateway


async def figures(gateway: Gateway) -> dict[str, float]:
    async with gateway.api() as api:
        lines = (await api.get("/metrics")).text.splitlines()
    return {name: float(figure) for name, _, figure in (each.rpartition(" ") for each in lines if each[0] != "#")}


async def test_prometheus_learns_what_happens_at_the_mqtt_door(gateway: Gateway) -> None:
    async with Peer(gateway.mqtt) as stranger:
        assert (await stranger.connect(None)).reason == 0x87
    async with Peer(gateway.mqtt) as peer:
        await peer.connect(gateway.token)
        assert await peer.subscribe(p.Request("$share/figures/iotsphere/devices/+/telemetry", 1)) == (1,)
        found = await figures(gateway)
    assert found["iotsphere_mqtt_connections"] >= 1
    assert found['iotsphere_mqtt_events_total{event="connected"}'] >= 1
    assert found['iotsphere_mqtt_events_total{event="connect_refused_unauthenticated"}'] >= 1
    assert found["iotsphere_share_groups"] >= 1
    assert found["iotsphere_share_failures_total"] == 0
