"""No message reaches a client at a higher QoS than it was published at, nor than the client asked for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.entities.topic import parse_filter
from tests.support.waiting import until

from .house import House, open_house
from .peer import Peer, ack

VERSIONS = (p.MQTT_3_1_1, p.MQTT_5)
EVERYTHING = "iotsphere/devices/+/telemetry/#"
T = "iotsphere/devices/d1/telemetry/q{}"
QOS = (0, 1, 2)
KEPT = Properties(session_expiry_interval=600)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


def value(packet: p.Publish) -> Any:
    return json.loads(packet.payload)["payload"]["value"]


def seen(packets: list[p.Publish]) -> list[tuple[Any, int]]:
    """(what was published at which QoS, the QoS at which it came), sorted."""
    return sorted((value(each), each.qos) for each in packets)


async def publish(house: House, version: int, address: tuple[str, int], *, retain: bool = False) -> None:
    """The numbers 0, 1 and 2, each at that QoS."""
    device = await house.device("d1")
    async with Peer(address, version) as sender:
        await sender.connect(device, "sender")
        for qos in QOS:
            flags = qos << 1 | (p.RETAIN if retain else 0)
            sender.send(p.Publish(T.format(qos).encode(), str(qos).encode(), qos, flags))
        await sender.take(p.Ack, 2)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("asked", QOS)
async def test_a_message_comes_at_the_lower_qos_of_its_publisher_and_its_subscriber(
    house: House, version: int, asked: int
) -> None:
    address = await house.door()
    async with Peer(address, version) as peer:
        await peer.connect(house.token("s", "subscribe:iotsphere/#"))
        assert await peer.subscribe(p.Request(EVERYTHING, asked)) == (asked,)
        await publish(house, version, address)
        assert seen(await peer.take(p.Publish, 3)) == [(qos, min(qos, asked)) for qos in QOS]


async def test_a_retained_value_keeps_the_qos_of_its_publication(house: House) -> None:
    address = await house.door()
    await publish(house, p.MQTT_5, address, retain=True)
    await until(lambda: len(list(house.last_values.retained([parse_filter(EVERYTHING)]))) == 3, "all are known")
    async with Peer(address) as peer:
        await peer.connect(house.token("s", "subscribe:iotsphere/#"))
        await peer.subscribe(p.Request(EVERYTHING, 2))
        assert seen(await peer.take(p.Publish, 3)) == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("qos", QOS)
async def test_a_will_comes_at_its_own_qos(house: House, qos: int) -> None:
    device = await house.device("d1")
    address = await house.door()
    async with Peer(address) as peer:
        await peer.connect(house.token("s", "subscribe:iotsphere/#"))
        await peer.subscribe(p.Request(EVERYTHING, 2))
        async with Peer(address) as lost:
            await lost.connect(device, will=p.Will(T.format("w"), b"7", qos))
        assert seen([await peer.expect(p.Publish)]) == [(7, qos)]


async def test_what_waited_for_a_session_comes_at_the_lower_qos(house: House) -> None:
    address, token = await house.door(), house.token("s", "subscribe:iotsphere/#")
    async with Peer(address) as peer:
        await peer.connect(token, properties=KEPT)
        await peer.subscribe(p.Request(EVERYTHING, 2))
    await until(lambda: house.gateway.connections == 0, "the session is saved")
    await publish(house, p.MQTT_5, address)
    async with Peer(address) as peer:
        await peer.connect(token, clean_start=False, properties=KEPT)
        assert seen(await peer.take(p.Publish, 3)) == [(0, 0), (1, 1), (2, 2)]
    async with Peer(address) as peer:  # what needed no answer does not come again
        await peer.connect(token, clean_start=False, properties=KEPT)
        again = await peer.take(p.Publish, 2)
        assert (seen(again), [bool(each.flags & p.DUP) for each in again]) == ([(1, 1), (2, 2)], [True, True])


async def test_members_of_a_share_get_messages_at_the_lower_qos(house: House) -> None:
    address = await house.door()
    async with Peer(address) as peer:
        await peer.connect(house.token("s", "subscribe:iotsphere/#"), properties=Properties(receive_maximum=1))
        assert await peer.subscribe(p.Request(f"$share/g/{EVERYTHING}", 1)) == (1,)
        await publish(house, p.MQTT_5, address)
        got = [await peer.expect(p.Publish), await peer.expect(p.Publish)]
        peer.send(ack(next(each.packet_id for each in got if each.packet_id)))
        got.append(await peer.expect(p.Publish))  # the one at QoS 0 took no place in the window
        assert seen(got) == [(0, 0), (1, 1), (2, 1)]


async def test_what_did_not_come_over_mqtt_comes_at_the_qos_that_was_asked(house: House) -> None:
    async with Peer(await house.door()) as peer:
        await peer.connect(house.token("s", "subscribe:iotsphere/#"))
        await peer.subscribe(p.Request(EVERYTHING, 2))
        await house.say(T.format("x"), 5)
        assert seen([await peer.expect(p.Publish)]) == [(5, 2)]
