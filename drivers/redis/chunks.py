"""Batches, divided into what one script call appends to one partition."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import repeat
from operator import attrgetter
from typing import Final

from ...adapters.record import pack
from ...entities.message import Record
from ...entities.position import Partition, Position
from .scripts import APPEND
from .shelves import Shelf, Shelves, places
from .wire import Command

CHUNK_RECORDS: Final = 500
CHUNK_BYTES: Final = 1 << 20
SETTLED_S: Final = 15 * 60.0
_NO_DIGEST: Final = bytes(16)
_minted: Final = attrgetter("minted")
_partition: Final = attrgetter("partition")
_message_id: Final = attrgetter("message_id")


@dataclass(slots=True, eq=False)
class Chunk:
    """Records of one partition for one call; ``indexes`` are their places in the batch."""

    shelf: Shelf
    indexes: Sequence[int]
    records: Sequence[Record]
    ids: Sequence[str]
    packed: Sequence[bytes]
    appended_at: int
    sizes: Sequence[int]
    number: int = 0
    all_minted: bool = False
    positions: list[Position] = field(default_factory=list)
    duplicates: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.all_minted = all(map(_minted, self.records))

    @property
    def size(self) -> int:
        """Bytes, as stored."""
        return sum(self.sizes)

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
        before: Position = tuple.__new__(Position, (int(epoch), int(first) - 1))
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


def divide(records: Sequence[Record], shelves: Shelves, now: int) -> tuple[list[Chunk], Mapping[int, int]]:
    """Sort a batch by partition, without repetitions (index -> index of the first), in bites for the server.

    Raises UnknownDomain.
    """
    lanes: dict[Partition, list[int]] = {}
    for index, partition in enumerate(map(_partition, records)):
        lane = lanes.get(partition)
        if lane is None:
            lane = lanes[partition] = []
        lane.append(index)
    owners = {partition: shelves[partition] for partition in lanes}
    chunks: list[Chunk] = []
    twins: dict[int, int] = {}
    for partition, lane in lanes.items():
        shelf = owners[partition]
        if shelf.settled:
            shelf.forget_settled()
        mine = records if len(lanes) == 1 else [records[index] for index in lane]
        ids = list(map(_message_id, mine))
        if len(set(ids)) < len(ids):
            lane = list(_first_ones(lane, ids, twins))  # noqa: PLW2901 - the rest are twins
            mine = [records[index] for index in lane]
            ids = list(map(_message_id, mine))
        packed = list(map(pack, mine, repeat(now)))
        sizes = list(map(len, packed))
        if len(packed) <= CHUNK_RECORDS and sum(sizes) <= CHUNK_BYTES:
            chunks.append(Chunk(shelf, lane, mine, ids, packed, now, sizes))
            continue
        for start, stop in _bites(sizes):
            bite = slice(start, stop)
            chunks.append(Chunk(shelf, lane[bite], mine[bite], ids[bite], packed[bite], now, sizes[bite]))
    return chunks, twins


def unknown(chunk: Chunk, positions: list[Position], duplicates: set[int]) -> Chunk | None:
    """The part of a chunk that this driver object has not appended already; the rest is filled in."""
    shelf, ids = chunk.shelf, chunk.ids
    known = [
        found for found in (shelf.recent, shelf.older, shelf.settled) if found and not found.keys().isdisjoint(ids)
    ]
    if not known:
        return chunk
    rest: list[int] = []
    for place, (index, message_id) in enumerate(zip(chunk.indexes, chunk.ids, strict=True)):
        position = next((found[message_id] for found in known if message_id in found), None)
        if position is None:
            rest.append(place)
        else:
            positions[index] = position
            duplicates.add(index)
    if not rest:
        return None
    return Chunk(
        shelf,
        [chunk.indexes[place] for place in rest],
        [chunk.records[place] for place in rest],
        [chunk.ids[place] for place in rest],
        [chunk.packed[place] for place in rest],
        chunk.appended_at,
        [chunk.sizes[place] for place in rest],
    )


def remember(chunk: Chunk) -> None:
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


def _bites(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = total = 0
    for place, size in enumerate(sizes):
        if place > start and (place - start >= CHUNK_RECORDS or total + size > CHUNK_BYTES):
            yield start, place
            start, total = place, 0
        total += size
    yield start, len(sizes)
