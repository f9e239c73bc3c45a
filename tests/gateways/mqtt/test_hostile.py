from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress

import psutil
import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.encode import encode
from iotsphere.adapters.mqtt.life import Offer
from iotsphere.adapters.mqtt.primitives import write_varint
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.gateways.mqtt import MqttLimits
from iotsphere.gateways.mqtt.client import MqttClient
from iotsphere.use_cases.access.rate_limit import Rate, RateLimit
from tests.support.waiting import until

from .house import House, open_house
from .peer import Peer, message

VERSIONS = (p.MQTT_3_1_1, p.MQTT_5)
T = "iotsphere/devices/d1/telemetry"


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


def frame(first: int, body: bytes) -> bytes:
    return bytes((first,)) + write_varint(len(body)) + body


MALFORMED = {
    "length of 5 bytes": (b"\x30\xff\xff\xff\xff\x01", 0x81),
    "empty topic": (frame(0x30, b"\x00\x00\x00x"), 0x82),
    "packet id 0": (frame(0x32, b"\x00\x01a\x00\x00\x00x"), 0x82),
    "QoS 3": (frame(0x36, b"\x00\x01a\x00\x01\x00x"), 0x81),
    "topic not UTF-8": (frame(0x30, b"\x00\x02\xc3\x28\x00x"), 0x81),
    "topic with NUL": (frame(0x30, b"\x00\x03a\x00b\x00x"), 0x81),
    "topic with a wildcard": (frame(0x30, b"\x00\x03a/+\x00x"), 0x81),
    "second CONNECT": (encode(p.Connect(5, "again"), 5), 0x82),
    "reserved type": (b"\x00\x00", 0x81),
    "reserved flags": (b"\xc1\x00", 0x81),
    "a packet of the server": (b"\xd0\x00", 0x82),
    "topic alias": (encode(p.Publish(b"a", b"1", 1, 2, Properties(topic_alias=65)), 5), 0x94),
    "PUBREL too early": (encode(p.Publish(b"a", b"1", 5, 4), 5) + encode(p.Ack(p.PUBREL, 5), 5), 0x82),
    "AUTH": (encode(p.Auth(), 5), 0x82),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_d11_what_breaks_the_rules_ends_its_connection_with_a_reason_and_no_other(
    house: House, name: str
) -> None:
    bad, reason = MALFORMED[name]
    device = await house.device("d1")
    address = await house.door()
    async with Peer(address) as peer, Peer(address) as neighbour:
        await neighbour.connect(device, "neighbour")
        await peer.connect(device)
        peer.write(encode(message(T, b"1", 9), 5) + bad + encode(message(T, b"2", 10), 5))
        assert (await peer.expect(p.Disconnect)).reason == reason
        await peer.end()
        await neighbour.ping()
        await until(lambda: house.gateway.connections == 1, "only the neighbour is left")
        assert [e["payload"]["value"] for e in await house.envelopes()] == [1]


@pytest.mark.parametrize("more", [0, 32], ids=["silent", "flooding"])
async def test_who_does_not_leave_when_it_is_cut_off_is_not_kept(house: House, more: int) -> None:
    reader, writer = await asyncio.open_connection(*await house.door())
    try:
        writer.write(b"\x00\x00")
        assert await asyncio.wait_for(reader.read(), 60) == b""
        with suppress(ConnectionError):
            for _ in range(more):
                writer.write(bytes(1024 * 1024))
                await writer.drain()
        await until(lambda: house.gateway.connections == 0, "it is gone")
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("version", VERSIONS)
async def test_d11_noise_closes_connections_and_nothing_else(house: House, version: int) -> None:
    device = await house.device("d1")
    address = await house.door()
    chance = random.Random(11)
    wire = b"".join(encode(packet, version) for packet in (message(T, b"1", 1), message(T, b"x" * 200), p.PingReq()))
    async with Peer(address, version) as neighbour:
        await neighbour.connect(device, "neighbour")
        for _ in range(150):
            reader, writer = await asyncio.open_connection(*address)
            if chance.random() < 0.5:
                login = p.Connect(version, "fuzz", username=device.username, password=device.password.encode())
                writer.write(encode(login, version))
            noise = bytearray(wire)
            for _ in range(chance.randrange(1, 6)):
                noise[chance.randrange(len(noise))] = chance.randrange(256)
            writer.write(bytes(noise) + chance.randbytes(chance.randrange(64)))
            if chance.random() < 0.5:
                writer.write_eof()
                await reader.read()
            writer.close()
        await neighbour.ping()
        await until(lambda: house.gateway.connections == 1, "only the neighbour is left")
        neighbour.send(message(T, b"7", 1))
        assert (await neighbour.expect(p.Ack)).reason == 0
    assert house.gateway.counts["closed_malformed_packet"] > 0


async def test_a_client_that_only_asks_and_never_reads_is_not_served_without_end(house: House) -> None:
    """A flood of pings whose answers nobody takes: what waits to be sent stays bounded."""
    device = await house.device("d1")
    async with Peer(await house.door(), p.MQTT_3_1_1, buffer=4_096) as peer:
        await peer.connect(device)
        peer.awake.clear()
        peer.write(encode(p.PingReq(), 4))  # its answer lets the reader fall asleep
        pings = encode(p.PingReq(), 4) * 32_768

        async def flood() -> None:
            while True:
                peer.write(pings)
                await peer.drain()

        flooding = asyncio.create_task(flood())
        await until(lambda: house.gateway.counts["paused_for_write"], "it is read no further")
        flooding.cancel()
        (client,) = house.gateway._door.clients
        assert client._wire._transport.get_write_buffer_size() < 1_000_000  # type: ignore[attr-defined]  # its own affair
        peer.abort()
        peer.awake.set()


async def test_pings_are_charged_like_messages(house: House) -> None:
    device = await house.device("d1")
    house.rates = RateLimit(Rate(100, 0, burst=1), Rate(0, 0))
    async with Peer(await house.door()) as peer:
        await peer.connect(device)
        while not house.gateway.counts["paused_for_rate"]:  # until it is read no further
            peer.send(*[p.PingReq()] * 100)
            await peer.take(p.PingResp, 100)
        await peer.ping()


async def test_topics_without_end_leave_the_memory_of_topics_bounded(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        await peer.connect(device)
        for start in range(0, 3_000, 500):
            peer.send(*(message(f"{T}/m{start + i}", b"1", i + 1) for i in range(500)))
            await peer.take(p.Ack, 500)
        (client,) = house.gateway._door.clients
        assert isinstance(client, MqttClient)
        assert client.visit is not None
        assert client.visit.ingress is not None
        assert len(client.visit.ingress.ways) <= 1_024
        assert len(client.session._parser._topics) <= 1_024
        assert not [name for name in house.gateway.counts if "m1" in name or "d1" in name]


@pytest.mark.timeout(400)
async def test_d6_a_thousand_idle_connections(house: House) -> None:
    """They cost little, and one more client is served as if they were not there."""
    device = await house.device("d1")
    address = await house.door(MqttLimits(offer=Offer(connect_within=60)))
    login = p.Connect(4, "", username=device.username, password=device.password.encode())
    writers: list[asyncio.StreamWriter] = []
    process = psutil.Process()
    before = process.memory_info().rss
    for start in range(0, 1_000, 50):
        opened = await asyncio.gather(*(asyncio.open_connection(*address) for _ in range(50)))
        for number, (_, writer) in enumerate(opened):
            writer.write(encode(login._replace(client_id=f"idle-{start + number}"), 4))
            writers.append(writer)
        for reader, _ in opened:
            assert await reader.readexactly(4) == b"\x20\x02\x00\x00"
    used = process.memory_info().rss - before
    assert house.gateway.connections == 1_000
    assert used / 1_000 < 60_000  # both ends of each connection, in this one process
    async with Peer(address) as peer:
        await peer.connect(device)
        peer.send(message(T, b"1", 1))
        assert (await peer.expect(p.Ack)).reason == 0
    for writer in writers:
        writer.close()
    await until(lambda: house.gateway.connections == 0, "all are gone", 200)
