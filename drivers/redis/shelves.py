"""Reading: what the driver knows of each partition, and the slices that it makes of the stream's entries."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final

from ...adapters.record import CorruptRecord, Packed, unpack
from ...entities.errors import UnknownDomain
from ...entities.message import Entry
from ...entities.position import Bounds, Gap, Partition, Position
from ...use_cases.ports.message_log import Slice
from ..lineage import Lineage
from .keys import Keys, PartitionKeys
from .link import Links
from .scripts import READ
from .trimming import AT

FRESH_S: Final = 1.0
_SCAN: Final = 500


class Shelf:
    """One partition as last seen: epoch, newest offset, largest record (stored bytes), and what was appended here.

    ``number``: the number of the last append call. ``recent`` and ``older``: where the newest minted message ids are;
    ``settled``: those of batches that failed halfway.
    """

    __slots__ = (
        "epoch", "keys", "largest", "last", "name", "number", "older", "partition", "recent", "seen_at", "settled",
        "settled_until",
    )  # fmt: skip

    def __init__(self, partition: Partition, keys: PartitionKeys) -> None:
        self.partition = partition
        self.name = str(partition)
        self.keys = keys
        self.epoch = self.last = self.largest = self.number = 0
        self.seen_at = float("-inf")
        self.recent: dict[str, Position] = {}
        self.older: dict[str, Position] = {}
        self.settled: dict[str, Position] = {}
        self.settled_until = 0.0

    def saw(self, epoch: int, last: int, largest: int) -> None:
        """Take note of what the server says of the partition now."""
        self.epoch, self.last, self.largest = epoch, last, largest
        self.seen_at = time.monotonic()

    def grew(self, epoch: int, last: int, largest: int) -> None:
        """Take note of what was appended here."""
        self.epoch, self.last, self.largest = epoch, last, max(self.largest, largest)

    def forget_settled(self) -> None:
        """Let go of the ids of failed batches once nobody can still repeat them."""
        if self.settled and time.monotonic() > self.settled_until:
            self.settled.clear()


class State:
    """What the server says of a partition: its lineage, and the offsets that are retained."""

    __slots__ = ("first", "last", "lineage")

    def __init__(self, lineage: bytes, first: int, last: int) -> None:
        pairs = (pair.split(b":") for pair in lineage.split())
        self.lineage = Lineage([(int(epoch), int(start)) for epoch, start in pairs])
        self.first = first
        self.last = last


class Shelves(Mapping[Partition, Shelf]):
    """The partitions that the driver object knows, and how they are read.

    ``begin`` makes a partition anew where the server has forgotten it.
    """

    def __init__(self, links: Links, keys: Keys, begin: Callable[[Partition], Awaitable[None]]) -> None:
        self._links = links
        self._keys = keys
        self._begin = begin
        self._shelves: dict[Partition, Shelf] = {}

    def add(self, partitions: Iterable[Partition]) -> None:
        """Make partitions known."""
        for partition in partitions:
            if partition not in self._shelves:
                self._shelves[partition] = Shelf(partition, self._keys.partition(partition))

    def __getitem__(self, partition: Partition) -> Shelf:
        """A partition's shelf. Raises UnknownDomain."""
        try:
            return self._shelves[partition]
        except KeyError as error:
            raise UnknownDomain(f"there is no partition {partition}: make its channel first") from error

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._shelves)

    def __len__(self) -> int:
        return len(self._shelves)

    async def slice(self, partition: Partition, after: Position, limit: int, max_bytes: int) -> Slice:
        """Entries after a position. Where there is nothing to tell, ``end`` is what the position means now."""
        shelf = self[partition]
        if (
            after.epoch == shelf.epoch
            and after.offset < shelf.last
            and limit * shelf.largest <= max_bytes
            and time.monotonic() - shelf.seen_at < FRESH_S
        ):
            (rows,) = await self._links.call(("XRANGE", shelf.keys.log, _beyond(after), "+", "COUNT", limit))
            if rows and _dense(rows[0][0], rows[-1][0], after.epoch, after.offset, len(rows)):
                return _slice(partition, [row[1][1] for row in rows], after, None)
        state, ids, bodies = await self._read(shelf, after, limit, max_bytes)
        offset, gap = state.lineage.locate(partition, after, state.first, state.last)
        if (_offset(ids[0]) if ids else state.last + 1) != offset + 1 and limit and offset < state.last:
            # The position means another place than it says: read there.
            state, ids, bodies = await self._read(shelf, state.lineage.position(offset), limit, max_bytes)
        here = state.lineage.position(offset)
        if not ids:
            if gap is None and limit and state.first <= offset + 1 <= state.last:
                gap = Gap(partition, offset + 1, state.last, "corrupt")
                here = state.lineage.position(state.last)
            return Slice(partition, [], here, gap)
        if (hole := _offset(ids[0])) != offset + 1:
            if gap is not None:
                return Slice(partition, [], here, gap)
            reason = "retention" if hole == state.first else "corrupt"
            gap = Gap(partition, offset + 1, hole - 1, reason)
            here = state.lineage.position(hole - 1)
        if _dense(ids[0], ids[-1], state.lineage.position(here.offset + 1).epoch, here.offset, len(ids)):
            return _slice(partition, bodies, Position(_epoch(ids[0]), here.offset), gap)
        return _mixed(partition, ids, bodies, here, gap)

    async def state(self, partition: Partition) -> State:
        """The partition's lineage and bounds."""
        return (await self._read(self[partition], Position(0, 0), 0, 0))[0]

    async def _read(
        self, shelf: Shelf, after: Position, limit: int, max_bytes: int
    ) -> tuple[State, list[bytes], list[bytes]]:
        command = READ(shelf.keys[1:3], _beyond(after), limit, max_bytes)
        while (answer := (await self._links.call(command))[0]) is None:
            await self._begin(shelf.partition)
        epoch, last, largest, lineage, first = answer[:5]
        shelf.saw(int(epoch), int(last), int(largest))
        return State(lineage, _offset(first) if first else int(last) + 1, int(last)), answer[5::2], answer[6::2]

    async def peek(self, partitions: Sequence[Partition]) -> None:
        """Take note of the state of several partitions."""
        shelves = [self[partition] for partition in partitions]
        answers = await self._links.call(*(("HMGET", shelf.keys.meta, "epoch", "last", "largest") for shelf in shelves))
        for shelf, answer in zip(shelves, answers, strict=True):
            shelf.saw(*(int(number or 0) for number in answer))

    async def bounds(self, partition: Partition) -> Bounds:
        """What is retained."""
        state = await self.state(partition)
        return Bounds(state.lineage.position(state.first), state.lineage.position(state.last))

    async def at(self, partition: Partition, moment: int) -> Position:
        """The place before the first entry that was appended at or after ``moment`` (ms)."""
        shelf = self[partition]
        state = await self.state(partition)
        (offset,) = await self._links.call(AT(shelf.keys[1:4], moment))
        return state.lineage.position(offset)

    async def entries(self, places: Sequence[tuple[Partition, Position]]) -> list[Entry | None]:
        """The entry at each place; None where it is trimmed or damaged."""
        if not places:
            return []
        ids = [f"{position.epoch}-{position.offset}" for _, position in places]
        commands = [("XRANGE", self[one].keys.log, at, at) for (one, _), at in zip(places, ids, strict=True)]
        answers = await self._links.call(*commands)
        return [
            _entry(partition, rows[0][1][1], position) if rows else None
            for (partition, position), rows in zip(places, answers, strict=True)
        ]

    async def scan(self, partition: Partition, message_id: str) -> Entry | None:
        """Look for a message id through everything that is retained, newest first."""
        shelf = self[partition]
        needle = message_id.encode()
        end = "+"
        while True:
            (rows,) = await self._links.call(("XREVRANGE", shelf.keys.log, end, "-", "COUNT", _SCAN))
            for stored_id, fields in rows:
                if needle in fields[1]:
                    entry = _entry(partition, fields[1], Position(_epoch(stored_id), _offset(stored_id)))
                    if entry is not None and entry.record.message_id == message_id:
                        return entry
            if len(rows) < _SCAN:
                return None
            end = "(" + rows[-1][0].decode()


def places(before: Position, count: int) -> list[Position]:
    """The ``count`` positions that follow one, in its epoch."""
    epoch, offset = before
    # Made as the tuples that they are: it takes less than half the time.
    return list(map(tuple.__new__, repeat(Position), zip(repeat(epoch), range(offset + 1, offset + 1 + count))))


def _beyond(after: Position) -> str:
    return f"({after.epoch}-{after.offset}"


def _epoch(stored_id: bytes) -> int:
    return int(stored_id.partition(b"-")[0])


def _offset(stored_id: bytes) -> int:
    return int(stored_id.partition(b"-")[2])


def _dense(first: bytes, last: bytes, epoch: int, before: int, count: int) -> bool:
    # Ids ascend, so ends that fit the count leave no room for a hole between them.
    return first == b"%d-%d" % (epoch, before + 1) and last == b"%d-%d" % (epoch, before + count)


def _entry(partition: Partition, body: bytes, position: Position) -> Entry | None:
    try:
        return unpack(body, partition, position)
    except CorruptRecord:
        return None


def _slice(partition: Partition, bodies: Sequence[bytes], before: Position, gap: Gap | None) -> Slice:
    """The slice of records that follow a position without a hole in one epoch."""
    epoch, offset = before
    try:
        entries = Packed(partition, before, bodies)
    except CorruptRecord:
        ids = [b"%d-%d" % (epoch, offset + 1 + index) for index in range(len(bodies))]
        return _mixed(partition, ids, bodies, before, gap)
    return Slice(partition, entries, Position(epoch, offset + len(bodies)), gap)


def _mixed(partition: Partition, ids: Sequence[bytes], bodies: Sequence[Any], here: Position, gap: Gap | None) -> Slice:
    """The slice up to the next hole or damaged record; what is damaged at the beginning is its gap."""
    entries: list[Entry] = []
    for stored_id, body in zip(ids, bodies, strict=True):
        position = Position(_epoch(stored_id), _offset(stored_id))
        if position.offset != here.offset + 1:
            break
        entry = _entry(partition, body, position)
        if entry is None:
            if entries or (gap is not None and gap.reason != "corrupt"):
                break
            gap = Gap(partition, gap.first if gap is not None else position.offset, position.offset, "corrupt")
        else:
            entries.append(entry)
        here = position
    return Slice(partition, entries, here, gap)
