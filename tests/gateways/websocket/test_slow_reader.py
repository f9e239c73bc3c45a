"""A client that stops reading: bounded memory, no delay for the others, and everything once it wakes up (row D5)."""

from __future__ import annotations

import asyncio
import socket

import orjson
import pytest

from iotsphere.gateways.websocket import WebSocketLimits
from iotsphere.use_cases.catch_up import READ_BYTES
from tests.client.house import TOPIC, Door, House, open_door, open_house, values
from tests.client.raw import TEXT, RawClient
from tests.support.waiting import until

OUTBOX = 64 * 1024
MESSAGE = 8 * 1024
COUNT = 1_500  # 12 MiB
ONE_SLICE = 1024 * 1024  # what the feed or a reader hands over at once, at most


async def stalled_client(door: Door) -> RawClient:
    """A subscribed client with a small receive buffer that has read its answer and nothing after it."""
    client = await door.raw()
    raw: socket.socket = client.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    await client.send_frame(TEXT, orjson.dumps({"type": "subscribe", "ref": 1, "filters": [TOPIC]}))
    await client.read_frame()
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio has no public way to stop reading
    return client


async def publish(house: House, first: int, count: int, size: int = MESSAGE) -> None:
    payloads = [orjson.dumps({"value": value, "text": "x" * size}) for value in range(first, first + count)]
    route = house.edge.route(house.principal, TOPIC)
    await house.publish([house.edge.admit(route, payload, house.clock.now()) for payload in payloads])


async def read_values(client: RawClient, count: int) -> tuple[list[int], list[dict[str, object]]]:
    """The next ``count`` messages, and the other frames in between."""
    got: list[int] = []
    notices = []
    while len(got) < count:
        frame = orjson.loads((await client.read_frame())[1])
        if frame["type"] == "messages":
            got += values(frame["messages"])
        else:
            notices.append(frame)
    return got, notices


@pytest.mark.parametrize("compression", [False, True])
async def test_one_stalled_client_beside_healthy_ones(compression: bool) -> None:
    async with (
        open_house(partitions=1) as house,
        open_door(house, WebSocketLimits(outbox_bytes=OUTBOX, compression=compression)) as door,
    ):
        stalled = await stalled_client(door)
        healthy = [await door.connect(compression="deflate" if compression else None) for _ in range(5)]
        for client in healthy:
            await client.subscribe(TOPIC)
        (stuck,) = [c for c in door.gateway._clients if c.connection.remote_address[1] == port_of(stalled)]
        largest = 0
        for first in range(0, COUNT, 50):
            await publish(house, first, 50)
            for client in healthy:
                assert values(await client.messages(50)) == list(range(first, first + 50))
            largest = max(largest, stuck.connection.transport.get_write_buffer_size())
        assert stuck.full
        assert largest < OUTBOX + ONE_SLICE
        assert stuck.bytes_out < COUNT * MESSAGE / 2
        stalled.reader._transport.resume_reading()  # type: ignore[attr-defined]  # as above
        got, notices = await read_values(stalled, COUNT)
        assert got == list(range(COUNT))
        lagging = notices[0]
        assert (lagging["type"], lagging["policy"]) == ("lagging", "complete")
        assert isinstance(lagging["behind"], int)
        assert lagging["behind"] > 0
        caught_up = orjson.loads((await stalled.read_frame())[1]) if len(notices) < 2 else notices[-1]
        assert (caught_up["type"], caught_up["behind"]) == ("lagging", 0)
        await publish(house, COUNT, 1, 10)
        assert (await read_values(stalled, 1))[0] == [COUNT]


def port_of(client: RawClient) -> int:
    port: int = client.writer.get_extra_info("sockname")[1]
    return port


async def test_a_stalled_client_catches_up_in_small_reads() -> None:
    async with (
        open_house(partitions=1) as house,
        open_door(house, WebSocketLimits(outbox_bytes=OUTBOX)) as door,
    ):
        stalled = await stalled_client(door)
        await publish(house, 0, COUNT)
        (stuck,) = door.gateway._clients
        await until(lambda: stuck.connection.paused, "it is stuck")
        stalled.reader._transport.resume_reading()  # type: ignore[attr-defined]  # as above
        largest = 0
        got: list[int] = []
        while len(got) < COUNT:
            got += (await read_values(stalled, 1))[0]
            largest = max(largest, stuck.connection.transport.get_write_buffer_size())
        assert got == list(range(COUNT))
        assert largest < OUTBOX + ONE_SLICE + READ_BYTES


async def test_a_client_that_asks_without_reading_is_not_read_any_more() -> None:
    async with (
        open_house(partitions=1) as house,
        open_door(house, WebSocketLimits(outbox_bytes=OUTBOX)) as door,
    ):
        stalled = await stalled_client(door)
        (stuck,) = door.gateway._clients
        ping = orjson.dumps({"type": "ping", "ref": "r" * 100})
        sending = asyncio.ensure_future(send_until_blocked(stalled, ping))
        await until(lambda: stuck.connection.paused, "it is stuck")
        assert not sending.done()
        assert stuck.connection.transport.get_write_buffer_size() < 2 * OUTBOX
        sending.cancel()
        other = await door.connect()
        assert (await other.ask("ping"))["type"] == "ok"


async def send_until_blocked(client: RawClient, frame: bytes) -> None:
    while True:
        await client.send_frame(TEXT, frame)


async def test_a_stalled_client_whose_credential_ends_is_cut_with_what_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("iotsphere.gateways.websocket.gateway.CHECK_EVERY_S", 0.02)
    async with (
        open_house(partitions=1) as house,
        open_door(house, WebSocketLimits(outbox_bytes=OUTBOX)) as door,
    ):
        await stalled_client(door)
        await publish(house, 0, COUNT)
        (stuck,) = door.gateway._clients
        await until(lambda: stuck.connection.paused, "it is stuck")
        await house.identity.tokens.revoke_subject(house.identity.operator, "user:ada")
        await until(lambda: door.gateway.connections == 0, "it is gone")


async def test_latest_gives_a_woken_client_the_newest_values_only() -> None:
    async with (
        open_house(partitions=1) as house,
        open_door(house, WebSocketLimits(outbox_bytes=OUTBOX)) as door,
    ):
        client = await door.raw()
        request = {"type": "subscribe", "ref": 1, "filters": [TOPIC], "policy": "latest"}
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        await client.send_frame(TEXT, orjson.dumps(request))
        await client.read_frame()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]  # as above
        for first in range(0, COUNT, 50):
            await publish(house, first, 50)
            house.clock.advance(1)
        await house.handed_out()
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]  # as above
        got: list[int] = []
        while not got or got[-1] != COUNT - 1:
            got += (await read_values(client, 1))[0]
        assert got == sorted(got)
        assert len(got) < COUNT
        (stuck,) = door.gateway._clients
        superseded = house.flow.superseded
        assert len(got) + superseded == COUNT
        assert stuck.session.delivered == len(got)
