"""Who follows a log in Redis: heard from memory while it keeps up, and read from the log only where news were lost."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.redis import following
from iotsphere.drivers.redis.following import LOOK_EVERY_S, Feed, Follower, is_deaf
from iotsphere.drivers.redis.log import RedisMessagingDriver
from iotsphere.entities.channel import ChannelSpec
from iotsphere.entities.message import Record
from iotsphere.entities.position import Partition, Position
from iotsphere.use_cases.ports.message_log import Slice
from tests.support.servers import Server
from tests.support.waiting import until

from .patience import PATIENT

P0 = Partition("iotsphere", "telemetry", 0)
HERE = Position(1, 7)


@pytest.mark.parametrize(
    ("before", "place", "last", "deaf"),
    [
        (HERE, HERE, 7, False),  # nothing has come
        (HERE, HERE, 9, True),  # two came, and it has not moved for a second
        (HERE, Position(1, 8), 9, False),  # it moves: the other one is on its way
        (HERE, Position(2, 7), 9, False),
        (None, HERE, 9, False),  # it has only begun
        (HERE, HERE, 3, True),  # the log was made anew
    ],
)
def test_only_who_stands_still_is_deaf(before: Position | None, place: Position, last: int, deaf: bool) -> None:
    assert is_deaf(before, place, last) is deaf


class Looked(dict[Partition, object]):
    """Shelves that are looked at."""


@pytest.mark.parametrize("heard", [True, False])
async def test_what_is_on_its_way_is_waited_for(monkeypatch: pytest.MonkeyPatch, heard: bool) -> None:
    """The process stood still for a second; then the answer of the look came before that of an append."""
    monkeypatch.setattr(following, "LOOK_EVERY_S", 0.05)
    follower = Follower({P0: HERE}, 1_000)
    follower.behind.clear()
    shelf = SimpleNamespace(epoch=1, last=7)
    looks = 0

    async def peek(_: object) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            shelf.last = 9
            if heard:
                piece = Slice(P0, [], Position(1, 9), None)
                asyncio.get_running_loop().call_later(0.01, follower.offer, piece, HERE, 10)

    feed = Feed(cast(Any, None), "", "")
    feed._followers.add(follower)
    shelves = cast(Any, Looked({P0: shelf}))
    shelves.peek = peek
    looking = asyncio.create_task(feed._look(shelves))
    await until(lambda: looks == 3, "it has looked again")
    looking.cancel()
    assert bool(follower.waiting) is heard
    assert (P0 in follower.behind) is not heard


async def test_who_keeps_up_is_never_sent_to_the_log(redis_server: Server) -> None:
    """However busy the log is when somebody looks whether news were lost."""
    clock = SystemClock()
    async with RedisMessagingDriver(
        f"redis://127.0.0.1:{redis_server.port}/0", clock, "fsynced", options=PATIENT
    ) as log:
        await log.ensure("iotsphere", {"telemetry": ChannelSpec(partitions=1)})
        start = (await log.bounds(P0)).last
        async with aclosing(log.follow({P0: start})) as slices:
            await _talk(log, slices, 1.5 * LOOK_EVERY_S)  # a follower begins by reading what is there
            reads = _reads(redis_server)
            await _talk(log, slices, 2.5 * LOOK_EVERY_S)
            assert _reads(redis_server) == reads


async def _talk(log: RedisMessagingDriver, slices: AsyncGenerator[Slice, None], seconds: float) -> None:
    """Append without a pause, and hear each message once and in order."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        names = [uuid.uuid4().hex for _ in range(20)]
        appending = asyncio.ensure_future(log.append([record(name) for name in names]))
        told: list[str] = []
        while len(told) < len(names):
            told += [entry.record.message_id for entry in (await anext(slices)).entries]
        await appending
        assert told == names


def record(name: str) -> Record:
    return Record(P0, "iotsphere/devices/d/telemetry/t", name, b"{}", 0)


def _reads(server: Server) -> int:
    """How often entries were read from a stream so far."""
    with redis.Redis(port=server.port) as client:
        return int(client.info("commandstats").get("cmdstat_xrange", {"calls": 0})["calls"])
