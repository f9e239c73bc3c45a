"""Two devices with one client id (case B04): the operator is told, and nothing of the session is lost."""

from __future__ import annotations

import json
from typing import Any

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.drivers.clock import ManualClock
from tests.support.waiting import until

from .house import House, open_house
from .peer import Peer, ack

T = "iotsphere/devices/d1/telemetry"
KEPT = Properties(session_expiry_interval=600)


async def alerts(house: House) -> list[Any]:
    return [
        envelope["payload"]
        for envelope in await house.envelopes("system")
        if envelope["metadata"]["topic"].endswith("/alerts")
    ]


async def fight(address: tuple[str, int], device: Any, rounds: int) -> None:
    """Connect again and again without leaving, as two processes with one configuration do."""
    peers = []
    for _ in range(rounds):
        peer = Peer(address)
        await peer.__aenter__()
        peers.append(peer)
        assert (await peer.connect(device)).reason == 0
    for peer in peers:
        await peer.drop()


async def test_b04_a_client_that_is_taken_over_more_than_five_times_a_minute_is_flagged() -> None:
    clock = ManualClock(1_790_000_000_000)
    async with open_house(clock=clock) as house:
        device = await house.device("d1")
        address = await house.door()
        await fight(address, device, 6)
        await until(lambda: house.gateway.connections == 0, "all are gone")
        assert (house.gateway.counts["taken_over"], await alerts(house)) == (5, [])
        await fight(address, device, 8)
        await until(lambda: house.gateway.connections == 0, "all are gone")
        told = [
            {"alert": "duplicate_client_id", "kind": "device", "name": "d1", "clientId": "c1", "perMinute": 5},
        ]
        assert await alerts(house) == told  # once a minute
        clock.advance(60_000)
        await fight(address, device, 7)
        await until(lambda: house.gateway.connections == 0, "all are gone")
        assert await alerts(house) == told * 2
        assert house.gateway.counts["duplicate_client_id"] == 2


async def test_b04_takeovers_that_are_far_apart_are_no_alert() -> None:
    clock = ManualClock(1_790_000_000_000)
    async with open_house(clock=clock) as house:
        device = await house.device("d1")
        address = await house.door()
        for _ in range(7):
            await fight(address, device, 2)
            await until(lambda: house.gateway.connections == 0, "both are gone")
            clock.advance(12_001)
        assert house.gateway.counts["taken_over"] == 7
        assert await alerts(house) == []


async def test_b04_a_session_that_changes_hands_all_the_time_loses_and_repeats_nothing() -> None:
    async with open_house() as house:
        device = await house.device("d1")
        address = await house.door()
        got: list[int] = []
        before: Peer | None = None
        for number in range(12):
            peer = Peer(address)
            await peer.__aenter__()
            await peer.connect(device, clean_start=False, properties=KEPT)
            if before is None:
                await peer.subscribe(p.Request(T, 2))
            else:
                await before.end()
                await before.drop()
            await house.say(T, number)
            packet = await peer.expect(p.Publish)
            got.append(json.loads(packet.payload)["payload"]["value"])
            peer.send(p.Ack(p.PUBREC, packet.packet_id))
            assert (await peer.expect(p.Ack)).kind == p.PUBREL
            before = peer
        assert before is not None
        await before.drop()
        assert got == list(range(12))


async def test_b04_a_session_that_two_processes_fight_for_goes_to_the_newer_one() -> None:
    async with open_house() as house:
        device = await house.device("d1")
        first = await house.door()
        peer = Peer(first)
        await peer.__aenter__()
        await peer.connect(device, clean_start=False, properties=KEPT)
        await peer.subscribe(T)
        elsewhere = house.gateway
        async with Peer(await house.door()) as other:
            assert (await other.connect(device, clean_start=False, properties=KEPT)).session_present
            peer.send(p.Subscribe(7, (p.Request(f"{T}/a", 1),)))
            assert (await peer.expect(p.Disconnect)).reason == 0x8E
            assert elsewhere.counts["taken_over"] == 1
            await house.say(T, 1)
            other.send(ack((await other.expect(p.Publish)).packet_id))
        await peer.drop()
