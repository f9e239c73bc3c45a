"""The wire to Redis: answers in order, errors as values, and an end that whoever waits hears of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio.connection import Connection
from redis.exceptions import ConnectionError as ConnectionBroken
from redis.exceptions import InvalidResponse, ResponseError

from iotsphere.drivers.redis.endpoint import Endpoint
from iotsphere.drivers.redis.options import RedisOptions
from iotsphere.drivers.redis.wire import Wire
from tests.support.servers import Server

LONG = 30.0
BRIEF = 8.0


@asynccontextmanager
async def opened(server: Server, timeout: float = LONG) -> AsyncIterator[Wire]:
    """A wire. Times are looked at when those of its first answers would have been up, for one timer serves all."""
    endpoint = Endpoint(
        f"redis://127.0.0.1:{server.port}/0", "logged", RedisOptions(timeout=timeout, trust_server=True)
    )
    wire, _ = await endpoint.connect()
    try:
        yield wire
    finally:
        wire.close()


async def test_answers_come_in_order_with_errors_among_them(shared_redis: Server) -> None:
    async with opened(shared_redis) as wire:
        replies: list[Any] = []
        await wire.exchange([("ECHO", "a"), ("INCR", "a", "b"), ("ECHO", b"\r\n$3")], replies, LONG)
        assert [replies[0], replies[2]] == [b"a", b"\r\n$3"]
        assert type(replies[1]) is ResponseError
        assert "wrong number of arguments" in str(replies[1])


async def test_answers_larger_than_a_read_arrive_whole(shared_redis: Server) -> None:
    large = bytes(range(256)) * 20_000
    async with opened(shared_redis) as wire:
        for _ in range(3):
            replies: list[Any] = []
            await wire.exchange([("ECHO", large), ("ECHO", "x")], replies, LONG)
            assert replies == [large, b"x"]


async def test_an_answer_that_does_not_come_is_a_timeout(shared_redis: Server) -> None:
    async with opened(shared_redis, BRIEF) as wire:
        replies: list[Any] = []
        with pytest.raises(TimeoutError, match="no answer within 5 s"):
            await wire.exchange([("ECHO", "a"), ("BLPOP", "test-wire-nothing", "0")], replies, 5.0)
        assert replies == [b"a"]


async def test_time_runs_anew_with_each_part_of_the_answers(shared_redis: Server) -> None:
    async with opened(shared_redis, BRIEF) as wire:
        replies: list[Any] = []
        waits = [("BLPOP", "test-wire-nothing", "2")] * 5
        await wire.exchange(waits, replies, BRIEF)
        assert replies == [None] * 5


async def test_a_connection_that_the_server_ends_is_broken_for_good(shared_redis: Server) -> None:
    async with opened(shared_redis) as wire, opened(shared_redis) as other:
        found: list[Any] = []
        await wire.exchange([("CLIENT", "ID")], found, LONG)
        waiting = asyncio.ensure_future(wire.exchange([("BLPOP", "test-wire-nothing", "0")], [], LONG))
        await asyncio.sleep(0.05)
        await other.exchange([("CLIENT", "KILL", "ID", found[0])], [], LONG)
        with pytest.raises(ConnectionBroken):
            await waiting
        assert not wire.is_connected
        with pytest.raises(ConnectionBroken):
            await wire.exchange([("PING",)], [], LONG)


async def test_closing_tells_whoever_waits(shared_redis: Server) -> None:
    async with opened(shared_redis) as wire:
        waiting = asyncio.ensure_future(wire.exchange([("BLPOP", "test-wire-nothing", "0")], [], LONG))
        await asyncio.sleep(0.05)
        wire.close()
        with pytest.raises(ConnectionBroken, match="was closed"):
            await waiting


async def test_bytes_that_are_no_answer_break_the_connection() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while sent := await reader.read(1 << 16):
            writer.write(b"?nonsense\r\n" if b"PING" in sent else b"+OK\r\n" * sent.count(b"CLIENT"))
        writer.close()
        await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        connection = Connection(host="127.0.0.1", port=server.sockets[0].getsockname()[1], protocol=2)
        await connection.connect()  # type: ignore[no-untyped-call] # the library's types end here
        wire = Wire(connection)
        with pytest.raises(InvalidResponse):
            await wire.exchange([("PING",)], [], LONG)
        assert not wire.is_connected
        await asyncio.wait_for(ended.wait(), 60)  # a link that is open at the end would be a leak


async def test_what_the_server_says_by_itself_is_read_one_by_one(shared_redis: Server) -> None:
    async with opened(shared_redis) as wire, opened(shared_redis) as other:
        await wire.exchange([("SUBSCRIBE", "test-wire-news")], [], LONG)
        waiting = asyncio.ensure_future(wire.read())
        await asyncio.sleep(0.02)
        await other.exchange([("PUBLISH", "test-wire-news", str(number)) for number in range(3)], [], LONG)
        told = [await waiting, await wire.read(), await wire.read()]
        assert told == [[b"message", b"test-wire-news", str(number).encode()] for number in range(3)]
