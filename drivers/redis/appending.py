"""Appending: one script call per partition and batch, numbered, so that a call whose answer was lost is not run twice.

Calls of one driver object are numbered per partition. The server keeps the results of the last ones, refuses a number
that it has seen, and refuses a call that follows a failed one in the same write: so the order of each partition is
that of the calls, whatever breaks. A call without an answer is in doubt; before anything else is appended, the server
is asked what became of it, which also shuts it out should it still be under way.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import repeat
from typing import Any, Final, Protocol

from redis.exceptions import NoScriptError, RedisError

from ...adapters.record import pack
from ...entities.errors import LogUnavailable
from ...entities.message import Entry, Record
from ...entities.position import Partition, Position
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.message_log import Appended, Slice
from .keys import Keys
from .link import Command, Link
from .scripts import APPEND, SETTLE
from .shelves import Shelf, Shelves, places

CHUNK_RECORDS: Final = 500
CHUNK_BYTES: Final = 1 << 20
CHUNKS_IN_FLIGHT: Final = 16
RECENT: Final = 4_096
SETTLED_S: Final = 15 * 60.0
_NO_DIGEST: Final = bytes(16)


class Followers(Protocol):
    """Who wants to hear of what was appended here."""

    def want(self, partition: Partition) -> bool:
        """Whether anybody follows a partition."""
        ...

    def appended(self, piece: Slice, before: Position) -> None:
        """Hand over entries that lie right after ``before``."""
        ...

    def changed(self, partition: Partition) -> None:
        """Say that there is something new, without the entries."""
        ...


@dataclass(slots=True, eq=False)
class Chunk:
    """Records of one partition for one call; ``indexes`` are their places in the batch."""

    shelf: Shelf
    indexes: Sequence[int]
    records: Sequence[Record]
    ids: Sequence[str]
    packed: Sequence[bytes]
    appended_at: int
    number: int = 0
    all_minted: bool = False
    positions: list[Position] = field(default_factory=list)
    duplicates: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.all_minted = all(record.minted for record in self.records)

    def command(self, run: str, producer: str, follows: bool, server_ms: float) -> Command:
        """The script call."""
        keys = self.shelf.keys
        epoch = max(int(server_ms), self.shelf.epoch + 1)
        names: tuple[str, ...] = (keys.log, keys.meta, keys.call(producer), keys.marks)
        digests = b""
        if not self.all_minted:
            names += keys.ids(server_ms)
            digests = b"".join(_NO_DIGEST if record.minted else digest(record.message_id) for record in self.records)
        return APPEND(names, run, self.number, int(follows), self.appended_at, epoch, digests, *self.packed)

    def take(self, result: bytes) -> tuple[Position, int]:
        """Read the script's result; returns the position before the new entries, and their count."""
        _, epoch, first, count, *known = result.split()
        before = Position(int(epoch), int(first) - 1)
        fresh = places(before, int(count))
        if known:
            found = dict(_found(word) for word in known)
            rest = iter(fresh)
            self.duplicates = list(found)
            self.positions = [found[place] if place in found else next(rest) for place in range(len(self.records))]
        else:
            self.positions = fresh
        return before, int(count)

    def minted(self) -> Iterator[tuple[str, Position]]:
        """Where the minted records are."""
        known = zip(self.ids, self.positions, strict=True)
        if self.all_minted:
            return known
        return (pair for record, pair in zip(self.records, known, strict=True) if record.minted)


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
        chunks, twins = self._chunks(records, shelves)
        whole = len(chunks) == 1 and not twins
        positions: list[Position] = [Position(0, 0)] * len(records)
        duplicates: set[int] = set()
        async with self._lock:
            await self._settle(followers)
            chunks = [part for chunk in chunks for part in _unknown(chunk, positions, duplicates)]
            try:
                await self._deliver(chunks, followers)
            except BaseException:
                # Whoever repeats the batch must not write again what did get through.
                for chunk in chunks:
                    _remember(chunk)
                raise
        if whole and chunks and len(chunks[0].positions) == len(records):
            return Appended(chunks[0].positions, frozenset(chunks[0].duplicates))
        for chunk in chunks:
            for index, position in zip(chunk.indexes, chunk.positions, strict=True):
                positions[index] = position
            duplicates.update(chunk.indexes[place] for place in chunk.duplicates)
        for index, first in twins.items():
            positions[index] = positions[first]
            duplicates.add(index)
        return Appended(positions, frozenset(duplicates))

    def _chunks(self, records: Sequence[Record], shelves: Shelves) -> tuple[list[Chunk], Mapping[int, int]]:
        """Sort a batch by partition, without repetitions (index -> index of the first), in bites for the server."""
        lanes: dict[Partition, list[int]] = {}
        for index, record in enumerate(records):
            lane = lanes.get(record.partition)
            if lane is None:
                lane = lanes[record.partition] = []
            lane.append(index)
        owners = {partition: shelves[partition] for partition in lanes}
        now = self._clock.now()
        chunks: list[Chunk] = []
        twins: dict[int, int] = {}
        for partition, lane in lanes.items():
            owners[partition].forget_settled()
            mine = [records[index] for index in lane]
            ids = [record.message_id for record in mine]
            if len(set(ids)) < len(ids):
                lane = list(_first_ones(lane, ids, twins))  # noqa: PLW2901 - the rest are twins
                mine = [records[index] for index in lane]
                ids = [record.message_id for record in mine]
            packed = list(map(pack, mine, repeat(now)))
            shelf = owners[partition]
            if len(packed) <= CHUNK_RECORDS and sum(map(len, packed)) <= CHUNK_BYTES:
                chunks.append(Chunk(shelf, lane, mine, ids, packed, now))
                continue
            for start, stop in _bites(packed):
                bite = slice(start, stop)
                chunks.append(Chunk(shelf, lane[bite], mine[bite], ids[bite], packed[bite], now))
        return chunks, twins

    async def _deliver(self, chunks: Sequence[Chunk], followers: Followers) -> None:
        try:
            await self._send(chunks, followers)
        except LogUnavailable as error:
            # The server may just have closed an idle connection, or restarted: one more try finds out.
            if not self._link.served or isinstance(error.__cause__, TimeoutError):
                raise
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
        commands.append(("PUBLISH", self._news, " ".join([self.producer, *(str(shelf.partition) for shelf in flown)])))
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
                reply = RedisError("the call before this one failed")  # noqa: PLW2901
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
        shelf.grew(before.epoch, before.offset + count, max(map(len, chunk.packed)))
        if followers.want(shelf.partition):
            facts: Iterable[tuple[Position, int, Record]] = zip(
                chunk.positions, repeat(chunk.appended_at), chunk.records
            )
            if chunk.duplicates:
                known = set(chunk.duplicates)
                facts = (one for place, one in enumerate(facts) if place not in known)
            entries = list(map(tuple.__new__, repeat(Entry), facts))
            followers.appended(Slice(shelf.partition, entries, entries[-1].position), before)

    async def _settle(self, followers: Followers) -> None:
        """Find out what became of the calls in doubt."""
        if not self._doubts:
            return
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
                    _remember(chunk)
            followers.changed(shelf.partition)
        self._doubts = []


def _unknown(chunk: Chunk, positions: list[Position], duplicates: set[int]) -> Iterator[Chunk]:
    """The part of a chunk that this driver object has not appended already."""
    shelf = chunk.shelf
    known = [found for found in (shelf.recent, shelf.older, shelf.settled) if not found.keys().isdisjoint(chunk.ids)]
    if not known:
        yield chunk
        return
    rest: list[int] = []
    for place, (index, message_id) in enumerate(zip(chunk.indexes, chunk.ids, strict=True)):
        position = next((found[message_id] for found in known if message_id in found), None)
        if position is None:
            rest.append(place)
        else:
            positions[index] = position
            duplicates.add(index)
    if rest:
        yield Chunk(
            shelf,
            [chunk.indexes[place] for place in rest],
            [chunk.records[place] for place in rest],
            [chunk.ids[place] for place in rest],
            [chunk.packed[place] for place in rest],
            chunk.appended_at,
        )


def _remember(chunk: Chunk) -> None:
    """Keep for long where the minted records of a chunk are whose batch failed: the batch will be repeated."""
    if chunk.positions:
        chunk.shelf.settled.update(chunk.minted())
        chunk.shelf.settled_until = time.monotonic() + SETTLED_S


def digest(message_id: str) -> bytes:
    """What the dedupe index knows a message id by: 16 bytes that nobody can forge a collision for."""
    return blake2b(message_id.encode(), digest_size=16).digest()


def _found(word: bytes) -> tuple[int, Position]:
    place, _, stored_id = word.partition(b"=")
    epoch, _, offset = stored_id.partition(b"-")
    return int(place), Position(int(epoch), int(offset))


def _first_ones(lane: Sequence[int], ids: Sequence[str], twins: dict[int, int]) -> Iterator[int]:
    first: dict[str, int] = {}
    for index, message_id in zip(lane, ids, strict=True):
        known = first.setdefault(message_id, index)
        if known == index:
            yield index
        else:
            twins[index] = known


def _bites(packed: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    start = size = 0
    for place, record in enumerate(packed):
        if place > start and (place - start >= CHUNK_RECORDS or size + len(record) > CHUNK_BYTES):
            yield start, place
            start, size = place, 0
        size += len(record)
    yield start, len(packed)
