from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.life import Offer
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.drivers.clock import ManualClock
from iotsphere.entities.topic import parse_filter
from iotsphere.gateways.mqtt import MqttLimits
from iotsphere.gateways.mqtt.client import MqttClient
from tests.support.waiting import until

from .house import House, open_house
from .peer import Peer, ack, message

VERSIONS = (p.MQTT_3_1_1, p.MQTT_5)
ALL = "subscribe:iotsphere/#"
T = "iotsphere/devices/{}/telemetry"


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


def value(packet: p.Publish) -> Any:
    return json.loads(packet.payload)["payload"]["value"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1])
async def test_a_subscriber_gets_the_envelope(house: House, version: int, qos: int) -> None:
    async with Peer(await house.door(), version) as peer:
        await peer.connect(house.token("s", ALL))
        assert await peer.subscribe(p.Request("iotsphere/devices/+/telemetry/#", qos)) == (qos,)
        await house.say(T.format("d1"), 1)
        got = await peer.expect(p.Publish)
        assert (got.topic.decode(), got.flags) == (T.format("d1"), qos << 1)
        (entry,) = await house.entries()
        assert got.payload == entry.record.body


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_qos_is_granted_as_asked(house: House, version: int) -> None:
    async with Peer(await house.door(), version) as peer:
        await peer.connect(house.token("s", ALL))
        requests = [p.Request(f"iotsphere/devices/d{qos}/#", qos) for qos in (0, 1, 2)]
        assert await peer.subscribe(*requests) == (0, 1, 2)


A1 = {
    "#": 0x87,
    "+/devices/#": 0x87,
    "+/+/+/+": 0x87,
    "$SYS/#": 0x87,
    "$share/g/#": 0x87,
    "$share/g/iotsphere/devices/d2/#": 0x87,
    "$share/g/iotsphere/devices/d1/shadow/#": 0x01,
    "$share//iotsphere/devices/d1/#": 0x8F,
    "$share/g+/iotsphere/devices/d1/#": 0x8F,
    "$share/g": 0x8F,
    "$share/g/": 0x8F,
    "iotsphere/#": 0x87,
    "iotsphere/devices/+/telemetry": 0x87,
    "iotsphere/devices/d2/#": 0x87,
    "other/devices/d1/#": 0x87,
    "iotsphere/devices/d1/#/x": 0x8F,
    "iotsphere/devices/d1/te+": 0x8F,
    "": 0x8F,
    "iotsphere/devices/d1/telemetry/#": 0x01,
}


@pytest.mark.parametrize("version", VERSIONS)
async def test_a1_each_filter_is_granted_or_refused_by_itself(house: House, version: int) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(), version) as peer:
        await peer.connect(device)
        reasons = await peer.subscribe(*A1)
        assert reasons == tuple(r if version == p.MQTT_5 or r < 0x80 else 0x80 for r in A1.values())
        assert house.gateway.counts["filters_refused"] == len(A1) - 2
        await house.say(T.format("d2"), 1)
        await house.say("other/devices/d1/telemetry", 1)
        await house.say(T.format("d1"), 2)
        assert value(await peer.expect(p.Publish)) == 2
        await peer.ping()
        assert peer.packets == []


async def test_a_refused_filter_comes_with_words(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        await peer.connect(device)
        peer.send(p.Subscribe(1, (p.Request("iotsphere/#", 1),)))
        assert "grants" in str((await peer.expect(p.SubAck)).properties.reason_string)


async def test_filters_are_bounded(house: House) -> None:
    async with Peer(await house.door(MqttLimits(filters=2))) as peer:
        await peer.connect(house.token("s", ALL))
        assert await peer.subscribe(*(f"iotsphere/devices/d{i}/#" for i in range(3))) == (1, 1, 0x97)
        assert await peer.subscribe("iotsphere/devices/d0/#") == (1,)


async def test_many_requests_are_answered_in_order(house: House) -> None:
    async with Peer(await house.door()) as peer:
        await peer.connect(house.token("s", ALL))
        for number in range(1, 61):
            peer.send(p.Subscribe(number, (p.Request(f"iotsphere/devices/d{number}/#", 1),)))
        assert [a.packet_id for a in await peer.take(p.SubAck, 60)] == list(range(1, 61))
        assert house.gateway.counts["paused_for_requests"] >= 1
        await house.say(T.format("d60"), 1)
        await peer.expect(p.Publish)


@pytest.mark.parametrize("version", VERSIONS)
async def test_unsubscribing_ends_delivery(house: House, version: int) -> None:
    async with Peer(await house.door(), version) as peer:
        await peer.connect(house.token("s", ALL))
        await peer.subscribe(T.format("d1"), T.format("d2"))
        peer.send(p.Unsubscribe(5, (T.format("d1"), "iotsphere/nothing")))
        assert (await peer.expect(p.UnsubAck)).reasons == ((0, 0x11) if version == p.MQTT_5 else ())
        await house.say(T.format("d1"), 1)
        await house.say(T.format("d2"), 2)
        assert value(await peer.expect(p.Publish)) == 2
        peer.send(p.Unsubscribe(6, (T.format("d2"),)))
        await peer.expect(p.UnsubAck)
        await house.say(T.format("d2"), 3)
        await peer.ping()
        assert peer.packets == []


async def test_overlapping_filters_send_a_message_once_at_the_highest_qos(house: House) -> None:
    async with Peer(await house.door()) as peer:
        await peer.connect(house.token("s", ALL))
        first = p.Subscribe(1, (p.Request("iotsphere/#", 0),), Properties(subscription_identifiers=(5,)))
        second = p.Subscribe(2, (p.Request(T.format("+"), 1),), Properties(subscription_identifiers=(6,)))
        peer.send(first, second)
        await peer.take(p.SubAck, 2)
        await house.say(T.format("d1"), 1)
        got = await peer.expect(p.Publish)
        assert got.qos == 1
        assert sorted(got.properties.subscription_identifiers) == [5, 6]
        await peer.ping()
        assert peer.packets == []


async def test_a_client_need_not_hear_itself(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        await peer.connect(device)
        await peer.subscribe(p.Request(T.format("d1"), 1, no_local=True))
        peer.send(message(T.format("d1"), b"1", 1))
        await peer.expect(p.Ack)
        await house.say(T.format("d1"), 2)
        assert value(await peer.expect(p.Publish)) == 2
        await peer.ping()
        assert peer.packets == []


# -- retained values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_retained_values_come_first_and_marked(house: House, version: int) -> None:
    device = await house.device("d1")
    address = await house.door()
    async with Peer(address, version) as sender:
        await sender.connect(device, "sender")
        sender.send(
            message(T.format("d1"), b"1", 1, retain=True),
            message(T.format("d1"), b"2", 2),
            message(T.format("d1") + "/t", b"3", 3, retain=True),
        )
        await sender.take(p.Ack, 3)
        await until(lambda: len(list(house.last_values.retained([parse_filter("iotsphere/#")]))) == 3, "all are known")
    async with Peer(address, version) as peer:
        await peer.connect(house.token("s", ALL))
        await peer.subscribe(T.format("+") + "/#")
        got = await peer.take(p.Publish, 2)
        assert sorted((value(each), each.retain, each.qos) for each in got) == [(1, True, 1), (3, True, 1)]
        await house.say(T.format("d1"), 4, retain=True)
        live = await peer.expect(p.Publish)
        assert (value(live), live.retain) == (4, False)


async def test_retain_handling_decides_over_retained_values(house: House) -> None:
    await house.say(T.format("d1"), 1, retain=True)
    async with Peer(await house.door()) as peer:
        await peer.connect(house.token("s", ALL))
        wanted = T.format("d1")
        seen = []
        for handling in (2, 1, 1, 0):
            await peer.subscribe(p.Request(wanted, 1, retain_handling=handling))
            await peer.ping()
            seen.append(len([x for x in peer.packets if isinstance(x, p.Publish)]))
            if handling == 2:
                peer.send(p.Unsubscribe(9, (wanted,)))
                await peer.expect(p.UnsubAck)
        assert seen == [0, 1, 1, 2]


async def test_retain_as_published_keeps_the_mark(house: House) -> None:
    async with Peer(await house.door()) as peer:
        await peer.connect(house.token("s", ALL))
        await peer.subscribe(p.Request(T.format("d1"), 1, retain_as_published=True))
        await house.say(T.format("d1"), 1, retain=True)
        await house.say(T.format("d1"), 2)
        assert [(value(x), x.retain) for x in await peer.take(p.Publish, 2)] == [(1, True), (2, False)]


async def test_an_empty_retained_message_takes_the_value_away(house: House) -> None:
    device = await house.device("d1")
    address = await house.door()
    wanted = T.format("d1")
    await house.say(wanted, 1, retain=True)
    async with Peer(address) as sender, Peer(address) as listener:
        await listener.connect(house.token("s", ALL))
        await listener.subscribe(p.Request(wanted, 1, retain_handling=2))
        await sender.connect(device)
        sender.send(message(wanted, b"", 1, retain=True))
        await sender.expect(p.Ack)
        gone = await listener.expect(p.Publish)
        assert (gone.payload, gone.retain) == (b"", False)
        assert list(house.last_values.retained([parse_filter(wanted)])) == []
        assert house.gateway.counts["retained_cleared"] == 1
    async with Peer(address) as late:
        await late.connect(house.token("s2", ALL))
        await late.subscribe(wanted)
        await late.ping()
        assert late.packets == []


async def test_retained_values_respect_the_window(house: House) -> None:
    for number in range(10):
        await house.say(T.format(f"d{number}"), number, retain=True)
    async with Peer(await house.door()) as peer:
        await peer.connect(house.token("s", ALL), properties=Properties(receive_maximum=3))
        await peer.subscribe("iotsphere/#")
        seen: list[Any] = []
        while len(seen) < 10:
            got = await peer.take(p.Publish, min(3, 10 - len(seen)))
            await peer.ping()
            assert [x for x in peer.packets if isinstance(x, p.Publish)] == []
            seen += [value(x) for x in got]
            peer.send(*(ack(x.packet_id) for x in got))
        assert sorted(seen) == list(range(10))


# -- flow --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_window_of_the_client_is_never_exceeded(house: House, version: int) -> None:
    offer = Offer(window=4)
    async with Peer(await house.door(MqttLimits(offer=offer)), version) as peer:
        maximum = Properties(receive_maximum=4) if version == p.MQTT_5 else Properties()
        await peer.connect(house.token("s", ALL), properties=maximum)
        await peer.subscribe("iotsphere/#")
        for number in range(20):
            await house.say(T.format("d1"), number)
        seen: list[Any] = []
        while len(seen) < 20:
            (first,) = await peer.take(p.Publish, 1)
            await peer.ping()
            waiting = [x for x in peer.packets if isinstance(x, p.Publish)]
            assert len(waiting) <= 3
            seen.append(value(first))
            peer.send(ack(first.packet_id))
        assert seen == list(range(20))


async def test_d5_a_stalled_subscriber_costs_a_bounded_queue_and_gets_everything_later(house: House) -> None:
    async with Peer(await house.door(MqttLimits(outbox_bytes=32 * 1024)), p.MQTT_3_1_1) as peer:
        await peer.connect(house.token("s", ALL))
        await peer.subscribe(p.Request("iotsphere/#", 0))
        peer.awake.clear()
        text = "x" * 20_000
        for number in range(400):
            await house.say(T.format("d1"), {"value": number, "text": text})
        await until(lambda: house.gateway.counts["fell_behind"], "it fell behind")
        (client,) = house.gateway._door.clients
        assert isinstance(client, MqttClient)
        assert client.visit is not None
        assert client.visit.outbox.bytes_waiting < 2_000_000
        peer.awake.set()
        assert [value(x) for x in await peer.take(p.Publish, 400)] == list(range(400))


async def test_a_client_gets_no_packet_above_its_maximum(house: House) -> None:
    async with Peer(await house.door()) as peer:
        await peer.connect(house.token("s", ALL), properties=Properties(maximum_packet_size=600))
        await peer.subscribe("iotsphere/#")
        await house.say(T.format("d1"), {"value": 1, "text": "x" * 600})
        await house.say(T.format("d1"), 2)
        assert value(await peer.expect(p.Publish)) == 2
        assert house.gateway.counts["too_large_for_client"] == 1


async def test_the_rest_of_a_messages_life_travels_with_it(house: House) -> None:
    async with Peer(await house.door()) as peer:
        await peer.connect(house.token("s", ALL))
        await peer.subscribe("iotsphere/#")
        await house.say(T.format("d1"), 1, expires_at=house.clock.now() + 600_000)
        left = (await peer.expect(p.Publish)).properties.message_expiry_interval
        assert left in range(540, 601)


async def test_an_expired_message_is_not_sent() -> None:
    clock = ManualClock(1_790_000_000_000)
    async with open_house(clock=clock) as house, Peer(await house.door()) as peer:
        await peer.connect(house.token("s", ALL), properties=Properties(receive_maximum=1))
        await peer.subscribe("iotsphere/#")
        await house.say(T.format("d1"), 1)
        await house.say(T.format("d1"), 2, expires_at=clock.now() + 150)
        await house.say(T.format("d1"), 3)
        first = await peer.expect(p.Publish)
        await until(lambda: house.feed.entries_seen == 3, "all wait for the client")
        clock.advance(150)
        peer.send(ack(first.packet_id))
        assert value(await peer.expect(p.Publish)) == 3
        assert house.gateway.counts["expired"] == 1


async def test_subscribers_of_both_versions_share_what_is_encoded(house: House) -> None:
    address = await house.door()
    peers = [Peer(address, version) for version in (4, 4, 5, 5)]
    try:
        for number, peer in enumerate(peers):
            await peer.__aenter__()
            await peer.connect(house.token("s", ALL), f"c{number}")
            await peer.subscribe(p.Request("iotsphere/#", number % 2))
        for number in range(50):
            await house.say(T.format("d1"), number)
        for number, peer in enumerate(peers):
            got = await peer.take(p.Publish, 50)
            assert [value(x) for x in got] == list(range(50))
            assert {x.qos for x in got} == {number % 2}
    finally:
        for peer in peers:
            await peer.drop()


async def test_a_filter_that_is_added_later_counts_from_then_on(house: House) -> None:
    """Also while the client is far behind with its other filters."""
    async with Peer(await house.door(MqttLimits(outbox_bytes=1_000))) as peer:
        await peer.connect(house.token("s", ALL), properties=Properties(receive_maximum=1))
        await peer.subscribe(T.format("d1"))
        for number in range(30):
            await house.say(T.format("d1"), number)
            await house.say(T.format("d2"), 100 + number)
        await until(lambda: house.feed.entries_seen == 60, "all are handed out")
        assert house.gateway.counts["fell_behind"]
        await peer.subscribe(T.format("d2"))
        await house.say(T.format("d2"), 200)
        seen: list[Any] = []
        while not {200, 29} <= set(seen):
            got = await peer.expect(p.Publish)
            seen.append(value(got))
            peer.send(ack(got.packet_id))
        assert [x for x in seen if x < 100] == list(range(30))
        assert [x for x in seen if x >= 100] == [200]
