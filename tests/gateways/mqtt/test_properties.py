"""MQTT 5 properties on their way through: into the metadata, and out again as properties; and topic aliases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.properties import NONE, Properties
from iotsphere.entities.principal import Principal, parse_grant

from .house import House, open_house
from .peer import Peer

ALL = "subscribe:iotsphere/#"
T = "iotsphere/devices/d1/telemetry"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ID = "0191b0a0-0000-4000-8000-000000000001"


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


@asynccontextmanager
async def pair(house: House, version: int = p.MQTT_5, **wanted: Any) -> AsyncIterator[tuple[Peer, Peer]]:
    """A device and a subscriber, both connected."""
    address = await house.door()
    async with Peer(address) as device, Peer(address, version) as subscriber:
        await device.connect(await house.device("d1"))
        await subscriber.connect(house.token("s", ALL), "s", properties=Properties(**wanted) if wanted else NONE)
        await subscriber.subscribe(f"{T}/#")
        yield device, subscriber


async def test_properties_reach_the_metadata_and_the_subscriber(house: House) -> None:
    async with pair(house) as (device, subscriber):
        given = Properties(
            payload_format_indicator=1,
            content_type="application/json",
            response_topic="iotsphere/devices/d1/telemetry/answers",
            correlation_data=b"\x00\xff",
            user_properties=(("messageId", ID), ("b", "1"), ("traceparent", TRACE), ("a", "2"), ("b", "3")),
        )
        device.send(p.Publish(T.encode(), b"1", 1, 2, given))
        await device.expect(p.Ack)
        (envelope,) = await house.envelopes()
        metadata = envelope["metadata"]
        assert metadata["messageId"] == ID
        assert metadata["correlationId"] is None
        assert metadata["traceparent"] == TRACE
        assert metadata["contentType"] == "application/json"
        assert metadata["responseTopic"] == "iotsphere/devices/d1/telemetry/answers"
        assert metadata["correlationData"] == "AP8="
        assert metadata["properties"] == [["b", "1"], ["a", "2"], ["b", "3"]]
        got = await subscriber.expect(p.Publish, lambda x: x.topic == T.encode())
        assert got.properties == Properties(
            content_type="application/json",
            response_topic="iotsphere/devices/d1/telemetry/answers",
            correlation_data=b"\x00\xff",
            user_properties=(("b", "1"), ("a", "2"), ("b", "3"), ("traceparent", TRACE)),
        )


async def test_correlation_data_that_is_a_uuid_is_the_correlation_id(house: House) -> None:
    async with pair(house) as (device, subscriber):
        device.send(p.Publish(T.encode(), b"1", 1, 2, Properties(correlation_data=ID.encode())))
        await device.expect(p.Ack)
        (envelope,) = await house.envelopes()
        assert envelope["metadata"]["correlationId"] == ID
        assert "correlationData" not in envelope["metadata"]
        got = await subscriber.expect(p.Publish, lambda x: x.topic == T.encode())
        assert got.properties == Properties(correlation_data=ID.encode())


async def test_what_cannot_be_a_traceparent_stays_a_property(house: House) -> None:
    async with pair(house) as (device, _):
        device.send(p.Publish(T.encode(), b"1", 1, 2, Properties(user_properties=(("traceparent", "none"),))))
        await device.expect(p.Ack)
        (envelope,) = await house.envelopes()
        assert "traceparent" not in envelope["metadata"]
        assert envelope["metadata"]["properties"] == [["traceparent", "none"]]


@pytest.mark.parametrize(
    ("payload", "properties", "reason", "letter"),
    [
        (b'"\xff"', Properties(payload_format_indicator=1), 0x99, "payload_not_utf8"),
        (b"1", Properties(user_properties=(("a", ""),) * 33), 0x97, "payload_too_large"),
        (b"1", Properties(user_properties=(("a", "x" * 4_096),)), 0x97, "payload_too_large"),
        (b"1", Properties(correlation_data=b"x" * 513), 0x97, "payload_too_large"),
    ],
    ids=["not UTF-8", "33 properties", "4,097 bytes", "correlation data"],
)
async def test_properties_that_cannot_be_kept_are_refused(
    house: House, payload: bytes, properties: Properties, reason: int, letter: str
) -> None:
    async with pair(house) as (device, _):
        device.send(p.Publish(T.encode(), payload, 1, 2, properties))
        assert (await device.expect(p.Ack)).reason == reason
        assert [each["reason"] for each in await house.dead_letters()] == [letter]


async def test_a_command_asks_for_its_response(house: House) -> None:
    async with pair(house) as (device, _):
        await device.subscribe("iotsphere/devices/d1/commands/request")
        who = Principal("service", "o", "iotsphere", (parse_grant("command:iotsphere/#", domain="iotsphere"),))
        route = house.edge.route(who, "iotsphere/devices/d1/commands/request", "command")
        record = house.edge.admit(route, b'{"do":"restart"}', house.clock.now())
        await house.publish([record])
        got = await device.expect(p.Publish)
        assert got.properties.response_topic == "iotsphere/devices/d1/commands/response"
        assert got.properties.correlation_data == record.message_id.encode()


async def test_3_1_1_has_no_properties(house: House) -> None:
    async with pair(house, p.MQTT_3_1_1) as (device, subscriber):
        device.send(p.Publish(T.encode(), b"1", 1, 2, Properties(content_type="application/json")))
        got = await subscriber.expect(p.Publish, lambda x: x.topic == T.encode())
        assert got.properties == NONE


async def test_a3_an_alias_never_crosses_a_grant_nor_a_connection(house: House) -> None:
    async with pair(house) as (device, _):
        foreign = b"iotsphere/devices/d2/telemetry"
        device.send(p.Publish(foreign, b"1", 1, 2, Properties(topic_alias=3)))
        assert (await device.expect(p.Ack)).reason == 0x87
        device.send(p.Publish(b"", b"2", 2, 2, Properties(topic_alias=3)))
        assert (await device.expect(p.Ack)).reason == 0x87
        device.send(p.Publish(T.encode(), b"3", 3, 2, Properties(topic_alias=3)))
        device.send(p.Publish(b"", b"4", 4, 2, Properties(topic_alias=3)))
        assert [x.reason for x in await device.take(p.Ack, 2)] == [0, 0]
        assert [each["payload"]["value"] for each in await house.envelopes()] == [3, 4]
        await device.drop()
        async with Peer(device.address) as again:
            await again.connect(await house.device("d3"), "d3")
            again.send(p.Publish(b"", b"5", 5, 2, Properties(topic_alias=3)))
            assert (await again.expect(p.Disconnect)).reason == 0x94


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_client_that_allows_aliases_gets_them(house: House, qos: int) -> None:
    async with pair(house, topic_alias_maximum=1) as (_, subscriber):
        await subscriber.subscribe(p.Request(f"{T}/#", qos))
        for topic in (T, f"{T}/b", T, T, f"{T}/b"):
            await house.say(topic, 1)
        got = await subscriber.take(p.Publish, 5)
        assert [(x.topic.decode(), x.properties.topic_alias) for x in got] == [
            (T, None),
            (f"{T}/b", None),
            (T, 1),
            ("", 1),
            (f"{T}/b", None),
        ]


async def test_an_alias_in_a_packet_that_is_too_large_is_not_taken_for_known(house: House) -> None:
    async with pair(house, topic_alias_maximum=1, maximum_packet_size=2_000) as (_, subscriber):
        for payload in (1, "x" * 3_000, 2, 3):
            await house.say(T, payload)
        got = await subscriber.take(p.Publish, 3)
        assert [(x.topic.decode(), x.properties.topic_alias) for x in got] == [(T, None), (T, None), (T, 1)]
