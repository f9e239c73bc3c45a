"""Following: what this process appends goes to its followers from memory, what others append is read when they say so.

A follower that is not at the end, or does not take what it is given, reads the log at its own pace. News of other
processes come by PUBLISH on one connection; a look at every followed partition each second covers news that were lost.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Final

from redis.exceptions import RedisError

from ...entities.errors import IotSphereError, LogUnavailable, ShuttingDown, Unavailable
from ...entities.position import Partition, Position
from ...use_cases.ports.message_log import Slice
from .endpoint import Endpoint
from .keys import parse_partition
from .shelves import Shelves

LOOK_EVERY_S: Final = 1.0
ON_ITS_WAY_S: Final = 0.2
_LIMIT: Final = 500
_FAR_LIMIT: Final = 2_000
_MAX_BYTES: Final = 1 << 20


class Follower:
    """One reader that follows: its places, what waits for it in memory, and what it has to read from the log."""

    __slots__ = ("behind", "bytes", "closed", "places", "queued", "reading", "room", "turn", "waiting", "wake")

    def __init__(self, after: Mapping[Partition, Position], room: int) -> None:
        self.places = dict(after)
        self.behind = dict.fromkeys(after)
        self.waiting: deque[tuple[Slice, int]] = deque()
        self.queued: Counter[Partition] = Counter()
        self.turn = False
        self.bytes = 0
        self.room = room
        self.reading: Partition | None = None
        self.closed = False
        self.wake = asyncio.Event()

    def offer(self, piece: Slice, before: Position, size: int) -> None:
        """Take entries that lie right after ``before``, when that is where this follower is."""
        partition = piece.partition
        place = self.places.get(partition)
        if place is None or (place.epoch == piece.end.epoch and place.offset >= piece.end.offset):
            return
        if (
            place == before
            and partition not in self.behind
            and partition != self.reading
            and self.bytes + size <= self.room
        ):
            self.waiting.append((piece, size))
            self.queued[partition] += 1
            self.bytes += size
            self.places[partition] = piece.end
        else:
            self.behind[partition] = None
        self.wake.set()

    def look(self, partition: Partition) -> None:
        """Read this partition when its turn comes."""
        if partition in self.places:
            self.behind[partition] = None
            self.wake.set()

    async def take(self, shelves: Shelves) -> Slice:
        """The next slice that has something to tell. Raises ShuttingDown when the driver was closed."""
        while not self.closed:
            self.wake.clear()
            # By turns, so that what comes from memory without end does not keep the rest waiting. What waits of a
            # partition goes before what is read of it.
            self.turn = not self.turn
            partition = next((one for one in self.behind if not self.queued[one]), None)
            if self.waiting and (self.turn or partition is None):
                piece, size = self.waiting.popleft()
                self.queued[piece.partition] -= 1
                self.bytes -= size
                return piece
            if partition is None:
                await self.wake.wait()
                continue
            piece = await self._read(partition, shelves)
            if piece.entries or piece.gap is not None:
                return piece
        raise ShuttingDown("the log was closed while it was followed")

    async def _read(self, partition: Partition, shelves: Shelves) -> Slice:
        self.reading = partition
        del self.behind[partition]
        try:
            place = self.places[partition]
            # Who is far behind a log that grows fast must read faster than it grows.
            far = shelves[partition].last - place.offset > _LIMIT
            piece = await shelves.slice(partition, place, _FAR_LIMIT if far else _LIMIT, _MAX_BYTES)
        except BaseException:
            self.behind[partition] = None
            raise
        finally:
            self.reading = None
        self.places[partition] = piece.end
        if piece.end.offset < shelves[partition].last:
            self.behind[partition] = None
        return piece


class Feed:
    """The followers of one driver object, and the tasks that keep them awake."""

    def __init__(self, endpoint: Endpoint, news: str, producer: str) -> None:
        self._endpoint = endpoint
        self._news = news
        self._producer = producer.encode()
        self._followers: set[Follower] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def follow(self, after: Mapping[Partition, Position], shelves: Shelves) -> AsyncGenerator[Slice, None]:
        """Slices after the given positions, for ever; a log that is away is waited for. Raises UnknownDomain."""
        for partition in after:
            shelves[partition]
        follower = Follower(after, self._endpoint.options.follower_bytes)
        self._followers.add(follower)
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._look(shelves))]
        try:
            while True:
                try:
                    piece = await follower.take(shelves)
                except Unavailable as error:
                    if not error.retry or follower.closed:
                        raise
                    await asyncio.sleep(random.uniform(0.02, 0.2))
                else:
                    yield piece
        finally:
            self._followers.discard(follower)

    def want(self, partition: Partition) -> bool:
        """Whether anybody follows a partition."""
        return any([partition in follower.places for follower in self._followers])  # a list: few, and asked often

    def appended(self, piece: Slice, before: Position, size: int) -> None:
        """Hand over entries of ``size`` bytes in all that were appended here, right after ``before``."""
        for follower in self._followers:
            follower.offer(piece, before, size)

    def changed(self, partition: Partition) -> None:
        """Say that there is something new, without the entries."""
        for follower in self._followers:
            follower.look(partition)

    async def close(self) -> None:
        """End the tasks, and the followers that still wait."""
        for follower in self._followers:
            follower.closed = True
            follower.wake.set()
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _listen(self) -> None:
        """Hear what other processes appended; after each new connection, everything may have been missed."""
        while True:
            # While it is away, the look at every second does its work.
            with suppress(IotSphereError):
                await self._hear()
            await asyncio.sleep(random.uniform(0.1, 0.5))

    async def _hear(self) -> None:
        wire, _ = await self._endpoint.connect()
        try:
            await wire.exchange([("SUBSCRIBE", self._news)], [], self._endpoint.options.timeout)
            for follower in self._followers:
                for partition in follower.places:
                    follower.look(partition)
            while True:
                _, _, payload = await wire.read()
                producer, *partitions = payload.split()
                if producer != self._producer:
                    for partition in partitions:
                        self.changed(parse_partition(partition.decode()))
        except (RedisError, OSError) as error:
            raise LogUnavailable(f"the news of Redis at {self._endpoint.name} broke off: {error}") from error
        finally:
            wire.close()

    async def _look(self, shelves: Shelves) -> None:
        """Each second, see whether a followed partition moved without our hearing of it."""
        stood: dict[tuple[Follower, Partition], Position] = {}
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            followed = sorted({partition for follower in self._followers for partition in follower.places})
            # The followers themselves meet an outage when they read.
            with suppress(IotSphereError):
                await shelves.peek(followed)
            before = stood
            stood = {(one, partition): place for one in self._followers for partition, place in one.places.items()}
            silent = [
                one
                for one, place in stood.items()
                if shelves[one[1]].epoch == 0 or is_deaf(before.get(one), place, shelves[one[1]].last)
            ]
            if silent:
                # When this process or the server stood still for a second, all stood where they stood, and what was
                # appended just now may be heard of right after the answer of the look.
                await asyncio.sleep(ON_ITS_WAY_S)
            for follower, partition in silent:
                if follower.places[partition] == stood[follower, partition]:
                    follower.look(partition)


def is_deaf(before: Position | None, place: Position, last: int) -> bool:
    """Whether a follower missed the news: it stands where it stood a second ago, and the server's last offset is another.

    One that has moved hears, and what the server has beyond it is on its way. To read that from the log as well would
    keep a follower of a busy log behind it for ever.
    """
    return place == before and place.offset != last
