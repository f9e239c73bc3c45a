"""Appending: one script call per partition and batch, numbered, so that a call whose answer was lost is not run twice.

Calls of one driver object are numbered per partition. The server keeps the results of the last ones, refuses a number
that it has seen, and refuses a call that follows a failed one in the same write: so the order of each partition is
that of the calls, whatever breaks. A call without an answer is in doubt; before anything else is appended, the server
is asked what became of it, which also shuts it out should it still be under way.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final, Protocol

from redis.exceptions import NoScriptError, RedisError

from ...entities.errors import LogUnavailable
from ...entities.message import Entry, Record
from ...entities.position import Partition, Position
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.message_log import Appended, Slice
from .chunks import Chunk, divide, remember, unknown
from .keys import Keys
from .link import Link
from .scripts import SETTLE
from .shelves import Shelf, Shelves
from .wire import Command

CHUNKS_IN_FLIGHT: Final = 16
RECENT: Final = 4_096


class Followers(Protocol):
    """Who wants to hear of what was appended here."""

    def want(self, partition: Partition) -> bool:
        """Whether anybody follows a partition."""
        ...

    def appended(self, piece: Slice, before: Position, size: int) -> None:
        """Hand over entries of ``size`` bytes in all that lie right after ``before``."""
        ...

    def changed(self, partition: Partition) -> None:
        """Say that there is something new, without the entries."""
        ...


class Appender:
    """Appends batches one after the other, on a connection of its own."""

    def __init__(self, link: Link, keys: Keys, clock: Clock) -> None:
        self._link = link
        self._news = keys.news
        self._clock = clock
        self.producer = secrets.token_hex(8)
        self._doubts: list[Chunk] = []
        self._lock = asyncio.Lock()

    async def append(self, records: Sequence[Record], shelves: Shelves, followers: Followers) -> Appended:
        """Append a batch. Raises LogUnavailable, LogFull, UnknownDomain."""
        if not records:
            return Appended([], frozenset())
        chunks, twins = divide(records, shelves, self._clock.now())
        whole = len(chunks) == 1 and not twins
        positions: list[Position] = [Position(0, 0)] * len(records)
        duplicates: set[int] = set()
        async with self._lock:
            if self._doubts:
                await self._settle(followers)
            chunks = [part for chunk in chunks if (part := unknown(chunk, positions, duplicates)) is not None]
            try:
                await self._deliver(chunks, followers)
            except BaseException:
                # Whoever repeats the batch must not write again what did get through.
                for chunk in chunks:
                    remember(chunk)
                raise
        if whole and chunks and len(chunks[0].positions) == len(records):
            return Appended(chunks[0].positions, frozenset(chunks[0].duplicates))
        for chunk in chunks:
            for index, position in zip(chunk.indexes, chunk.positions, strict=True):
                positions[index] = position
            if chunk.duplicates:
                duplicates.update(chunk.indexes[place] for place in chunk.duplicates)
        for index, first in twins.items():
            positions[index] = positions[first]
            duplicates.add(index)
        return Appended(positions, frozenset(duplicates))

    async def _deliver(self, chunks: Sequence[Chunk], followers: Followers) -> None:
        try:
            await self._send(chunks, followers)
        except LogUnavailable as error:
            # The server may just have closed an idle connection, or restarted: one more try finds out.
            if not self._link.served or isinstance(error.__cause__, TimeoutError):
                raise
            if self._doubts:
                await self._settle(followers)
            await self._send([chunk for chunk in chunks if not chunk.positions], followers)

    async def _send(self, chunks: Sequence[Chunk], followers: Followers) -> None:
        """Run the calls of all chunks. Raises the first error once all answers are in."""
        reloaded = False
        waiting = list(chunks)
        while waiting:
            await self._link.open()
            flight = waiting[:CHUNKS_IN_FLIGHT]
            failed = await self._fly(flight, followers)
            if failed and isinstance(failed[0][1], NoScriptError) and not reloaded:
                reloaded = True
                await self._link.load()
            elif failed:
                raise self._link.endpoint.translate(failed[0][1]) from failed[0][1]
            waiting = [chunk for chunk, _ in failed] + waiting[CHUNKS_IN_FLIGHT:]

    async def _fly(self, flight: Sequence[Chunk], followers: Followers) -> list[tuple[Chunk, RedisError]]:
        """One write and its answers; returns the chunks that the server refused, with its reasons."""
        commands: list[Command] = []
        flown: set[Shelf] = set()
        greeting = self._link.greeting
        server_ms = greeting.now()
        for chunk in flight:
            chunk.number = chunk.shelf.number = chunk.shelf.number + 1
            commands.append(chunk.command(greeting.run, self.producer, chunk.shelf in flown, server_ms))
            flown.add(chunk.shelf)
        commands.append(("PUBLISH", self._news, " ".join([self.producer, *[shelf.name for shelf in flown]])))
        replies: list[Any] = []
        try:
            await self._link.send([*commands, *self._link.endpoint.confirm()], replies)
            self._link.endpoint.check(replies[len(commands) :])
        except LogUnavailable:
            # Without enough replicas, what the server answered is as doubtful as no answer.
            if len(replies) > len(commands):
                replies.clear()
            raise
        finally:
            failed = self._land(flight, replies, followers)
        return failed

    def _land(
        self, flight: Sequence[Chunk], replies: Sequence[Any], followers: Followers
    ) -> list[tuple[Chunk, RedisError]]:
        failed: list[tuple[Chunk, RedisError]] = []
        for chunk, reply in zip(flight, replies, strict=False):
            if reply == b"order":
                reply = RedisError("the call before this one failed")  # noqa: PLW2901 - what the script says, as an error
            if isinstance(reply, RedisError):
                failed.append((chunk, reply))
                chunk.shelf.number = min(chunk.shelf.number, chunk.number - 1)
            else:
                self._landed(chunk, reply, followers)
        self._doubts += flight[len(replies) :]
        return failed

    def _landed(self, chunk: Chunk, result: bytes, followers: Followers) -> None:
        before, count = chunk.take(result)
        shelf = chunk.shelf
        shelf.recent.update(chunk.minted())
        if len(shelf.recent) > RECENT:
            shelf.recent, shelf.older = {}, shelf.recent
        if not count:
            return
        shelf.grew(before.epoch, before.offset + count, max(chunk.sizes))
        if followers.want(shelf.partition):
            facts: Iterable[tuple[Position, int, Record]] = zip(
                chunk.positions, repeat(chunk.appended_at), chunk.records
            )
            if chunk.duplicates:
                known = set(chunk.duplicates)
                facts = (one for place, one in enumerate(facts) if place not in known)
            entries = list(map(tuple.__new__, repeat(Entry), facts))
            followers.appended(Slice(shelf.partition, entries, entries[-1].position), before, chunk.size)

    async def _settle(self, followers: Followers) -> None:
        """Find out what became of the calls in doubt."""
        shelves = {chunk.shelf: [one for one in self._doubts if one.shelf is chunk.shelf] for chunk in self._doubts}
        spans = [(chunks[0].number, chunks[-1].number) for chunks in shelves.values()]
        commands = [
            SETTLE((shelf.keys.call(self.producer),), *span) for shelf, span in zip(shelves, spans, strict=True)
        ]
        answers = await self._link.write(*commands)
        for (shelf, chunks), (start, end), results in zip(shelves.items(), spans, answers, strict=True):
            shelf.number = max(shelf.number, end)
            for chunk in chunks:
                if result := results[chunk.number - start]:
                    chunk.take(result)
                    remember(chunk)
            followers.changed(shelf.partition)
        self._doubts = []
