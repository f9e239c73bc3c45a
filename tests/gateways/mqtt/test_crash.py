"""kill -9 of the whole gateway while QoS 1 flows through it both ways, MQTT in and MQTT out."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.properties import Properties
from tests.support.device import Device
from tests.support.gateway import Gateway
from tests.support.waiting import until

from .peer import Gone, Peer, ack

COUNT = 600
DEVICES = 4


class Listener:
    """A subscriber over MQTT with a session that is kept; it acknowledges what it gets, and comes back when it is cut."""

    def __init__(self, gateway: Gateway) -> None:
        self.got: dict[str, list[int]] = {}
        self.resumed = 0
        self.ready = asyncio.Event()
        self._gateway = gateway

    async def run(self) -> None:
        while True:
            with suppress(ConnectionError, Gone):
                async with Peer(self._gateway.mqtt) as peer:
                    await self._listen(peer)
            await asyncio.sleep(0.05)

    async def _listen(self, peer: Peer) -> None:
        kept = Properties(session_expiry_interval=600)
        connack = await peer.connect(self._gateway.token, "listener", clean_start=False, properties=kept)
        self.resumed += connack.session_present
        if not connack.session_present:
            assert not self.ready.is_set(), "the session is lost"
            await peer.subscribe("iotsphere/devices/+/telemetry/#")
        self.ready.set()
        while True:
            packet = await peer.expect(p.Publish)
            envelope = json.loads(packet.payload)
            self.got.setdefault(envelope["metadata"]["source"], []).append(envelope["payload"]["seq"])
            peer.send(ack(packet.packet_id))

    def complete(self) -> bool:
        return sum(len(set(seen)) for seen in self.got.values()) == COUNT * DEVICES


def acked(devices: list[Device], count: int) -> bool:
    return sum(len(device.acked) for device in devices) >= count


@pytest.mark.slow
async def test_kill_9_loses_nothing_that_was_acknowledged_and_keeps_the_order(tmp_path: Path) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        credentials = await gateway.add_devices([f"dev-{i}" for i in range(DEVICES)])
        listener = Listener(gateway)
        listening = asyncio.create_task(listener.run())
        try:
            await asyncio.wait_for(listener.ready.wait(), 60)
            devices = [Device(each, lambda: gateway.mqtt, count=COUNT, window=20) for each in credentials]
            sending = asyncio.gather(*(device.run() for device in devices))
            for part in (1, 2):
                wanted = DEVICES * COUNT * part // 3
                await until(partial(acked, devices, wanted), "a part is acknowledged", 150)
                await gateway.restart()
                await until(lambda part=part: listener.resumed >= part, "the listener is back")  # type: ignore[misc]  # it is bound
            await asyncio.wait_for(sending, 150)
            await until(listener.complete, "everything has arrived", 150)
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
    assert listener.resumed >= 2
    for seen in listener.got.values():
        first = list(dict.fromkeys(seen))
        assert first == list(range(COUNT))
