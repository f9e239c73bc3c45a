"""How records lie in the file: each partition has a table of chunks, one per group commit and partition.

A chunk holds consecutive packed records (adapters/record.py), their lengths, and the time that they share. One row
instead of one per record is what makes large group commits cheap; a single message is a chunk of one. ``total`` counts
the stored bytes of the partition up to and with the chunk, so that any range's size is a subtraction.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Final, NamedTuple

from ...adapters.record import CorruptRecord, unpack
from ...entities.message import Entry
from ...entities.position import Bounds, Gap, Partition, Position
from ...use_cases.ports.message_log import Slice
from ..lineage import Lineage

MOST_BYTES: Final = 256 << 10
MOST_RECORDS: Final = 1_024
NEAR: Final = 64
SCANNED_AT_ONCE: Final = 256


class Shelf:
    """One partition as the driver object knows it. ``last``, ``total`` and ``touched_at`` (ms) are what is committed."""

    __slots__ = ("last", "lineage", "number", "partition", "table", "total", "touched_at")

    def __init__(self, number: int, partition: Partition, lineage: Lineage) -> None:
        self.number = number
        self.partition = partition
        self.lineage = lineage
        self.table = f"chunks_{number}"
        self.last = 0
        self.total = 0
        self.touched_at = 0


class Head(NamedTuple):
    """A chunk without its records. ``end``: its last offset."""

    first: int
    records: int
    appended_at: int
    total: int

    @property
    def end(self) -> int:
        """The offset of its last record."""
        return self.first + self.records - 1


def create(connection: sqlite3.Connection, shelf: Shelf) -> None:
    """Make the partition's table."""
    connection.execute(
        f"CREATE TABLE {shelf.table}(first INTEGER PRIMARY KEY, count INTEGER NOT NULL, appended_at INTEGER NOT NULL,"
        " total INTEGER NOT NULL, sizes BLOB NOT NULL, hashes BLOB, stored BLOB NOT NULL)"
    )


def insert(
    connection: sqlite3.Connection, shelf: Shelf, now: int, stored: Sequence[bytes], hashes: Sequence[int]
) -> int:
    """Append records after what the shelf holds and return the new ``total``. ``hashes``: 0 where there is none."""
    first, total, start = shelf.last + 1, shelf.total, 0
    while start < len(stored):
        end, size = start, 0
        while end < len(stored) and end - start < MOST_RECORDS and (size == 0 or size + len(stored[end]) <= MOST_BYTES):
            size += len(stored[end])
            end += 1
        total += size
        some = hashes[start:end]
        connection.execute(
            f"INSERT INTO {shelf.table} VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                first + start,
                end - start,
                now,
                total,
                struct.pack(f"<{end - start}I", *map(len, stored[start:end])),
                struct.pack(f"<{end - start}Q", *some) if any(some) else None,
                b"".join(stored[start:end]),
            ),
        )
        start = end
    return total


def first_retained(connection: sqlite3.Connection, shelf: Shelf) -> int:
    """The first offset that has not been trimmed."""
    row = connection.execute("SELECT first FROM partitions WHERE id = ?", (shelf.number,)).fetchone()
    return int(row[0])


def newest(connection: sqlite3.Connection, shelf: Shelf) -> Head | None:
    """The newest chunk. It is never deleted, so it tells how many messages were ever accepted."""
    return head_of(connection, shelf, "ORDER BY first DESC LIMIT 1")


def bounds(connection: sqlite3.Connection, shelf: Shelf) -> Bounds:
    """What is retained."""
    head = newest(connection, shelf)
    last = head.end if head is not None else 0
    return Bounds(shelf.lineage.position(first_retained(connection, shelf)), shelf.lineage.position(last))


def read(connection: sqlite3.Connection, shelf: Shelf, after: Position, limit: int, max_bytes: int) -> Slice:
    """Entries after a position, and the gap before them; call it inside a transaction."""
    partition, lineage = shelf.partition, shelf.lineage
    first = first_retained(connection, shelf)
    head = newest(connection, shelf)
    last = head.end if head is not None else 0
    offset, gap = lineage.locate(partition, after, first, last)
    entries: list[Entry] = []
    if offset < first - 1 or offset >= last:
        end = after if gap is None else lineage.position(offset)
        return Slice(partition, entries, end, gap)
    room = max_bytes
    for place, entry in _scan(connection, shelf, offset + 1, last):
        if entry is None:
            if entries or (gap is not None and gap.reason != "corrupt"):
                break
            gap = Gap(partition, gap.first if gap is not None else offset + 1, place, "corrupt")
            offset = place
            continue
        room -= len(entry.record.body)
        if len(entries) >= limit or (room < 0 and entries):
            break
        entries.append(entry)
        offset = place
    return Slice(partition, entries, lineage.position(offset), gap)


def holding(connection: sqlite3.Connection, shelf: Shelf, start: int, last: int) -> sqlite3.Cursor:
    """The chunks that hold the offsets ``start`` to ``last``: (first, count, sizes, stored) of each."""
    return connection.execute(
        f"SELECT first, count, sizes, stored FROM {shelf.table} WHERE first >="
        f" coalesce((SELECT max(first) FROM {shelf.table} WHERE first <= ?1), 0) AND first <= ?2 ORDER BY first",
        (start, last),
    )


def _scan(connection: sqlite3.Connection, shelf: Shelf, start: int, last: int) -> Iterator[tuple[int, Entry | None]]:
    """(offset, entry) from an offset on; None where the record is damaged or missing."""
    cursor = holding(connection, shelf, start, last)
    try:
        expected = start
        for first, count, sizes, stored in cursor:
            for missing in range(expected, first):
                yield missing, None
            yield from _unpacked(shelf, (first, count, sizes, stored), max(expected, first))
            expected = max(expected, first + count)
        for missing in range(expected, last + 1):
            yield missing, None
    finally:
        cursor.close()


def _unpacked(shelf: Shelf, row: tuple[int, int, bytes, bytes], start: int) -> Iterator[tuple[int, Entry | None]]:
    """(offset, entry) of one chunk from an offset on; None where the record is damaged."""
    first, count, sizes, stored = row
    ends = list(accumulate(struct.unpack(f"<{count}I", sizes), initial=0)) if len(sizes) == 4 * count else []
    sound = len(ends) == count + 1 and ends[-1] == len(stored)
    for index in range(start - first, count):
        entry = None
        if sound:
            # A damaged record is a gap for its reader, which tells it in the one way that it can be told.
            with suppress(CorruptRecord, UnicodeDecodeError):
                position = shelf.lineage.position(first + index)
                entry = unpack(stored[ends[index] : ends[index + 1]], shelf.partition, position)
        yield first + index, entry


def entry_at(connection: sqlite3.Connection, shelf: Shelf, offset: int) -> Entry | None:
    """One entry by its offset; None when it is trimmed or damaged."""
    row = connection.execute(
        f"SELECT first, count, sizes, stored FROM {shelf.table} WHERE first <= ? ORDER BY first DESC LIMIT 1", (offset,)
    ).fetchone()
    if row is None:
        return None
    return next((entry for _, entry in _unpacked(shelf, row, offset)), None)


def entries(connection: sqlite3.Connection, shelf: Shelf, offsets: Sequence[int]) -> dict[int, Entry]:
    """The entries at some ascending offsets, by offset; those that are trimmed or damaged are left out."""
    first = first_retained(connection, shelf)
    wanted = [offset for offset in offsets if offset >= first]
    found: dict[int, Entry] = {}
    start = 0
    for index, offset in enumerate(wanted, 1):
        if index == len(wanted) or wanted[index] > offset + NEAR:
            run = set(wanted[start:index])
            pairs = _scan(connection, shelf, wanted[start], offset)
            found.update((place, entry) for place, entry in pairs if place in run and entry is not None)
            start = index
    return found


def entries_at(connection: sqlite3.Connection, places: Sequence[tuple[Shelf, int]]) -> list[Entry | None]:
    """The entry at each of some places; None where it is trimmed or damaged."""
    wanted: dict[Shelf, set[int]] = {}
    for shelf, offset in places:
        wanted.setdefault(shelf, set()).add(offset)
    found = {shelf: entries(connection, shelf, sorted(offsets)) for shelf, offsets in wanted.items()}
    return [found[shelf].get(offset) for shelf, offset in places]


def find(connection: sqlite3.Connection, shelf: Shelf, message_id: str, start: int) -> tuple[int, Entry | None]:
    """Look for a message id in the next few chunks from an offset on: (where to go on, 0 at the end; the entry)."""
    needle = message_id.encode()
    rows = connection.execute(
        f"SELECT first, count, sizes, stored FROM {shelf.table} WHERE first >="
        f" coalesce((SELECT max(first) FROM {shelf.table} WHERE first <= ?), 0) ORDER BY first LIMIT {SCANNED_AT_ONCE}",
        (start,),
    )
    following = 0
    for row in rows:
        following = max(start, row[0] + row[1])
        if needle in row[3]:
            for _, entry in _unpacked(shelf, row, max(start, row[0])):
                if entry is not None and entry.record.message_id == message_id:
                    return 0, entry
    return following if following > start else 0, None


def head_of(connection: sqlite3.Connection, shelf: Shelf, rest: str, *values: int) -> Head | None:
    """The first chunk of a query, without its records; ``rest`` is what follows FROM."""
    row = connection.execute(f"SELECT first, count, appended_at, total FROM {shelf.table} {rest}", values).fetchone()
    return None if row is None else Head(*row)


def first_where(connection: sqlite3.Connection, shelf: Shelf, holds: Callable[[Head], bool]) -> Head | None:
    """The first chunk for which a condition holds that, once it holds, holds for all later ones. Logarithmic."""
    oldest = head_of(connection, shelf, "ORDER BY first LIMIT 1")
    latest = newest(connection, shelf)
    if oldest is None or latest is None or not holds(latest):
        return None
    low, found = oldest.first, latest
    while low < found.first:
        middle = (low + found.first) // 2
        head = head_of(connection, shelf, "WHERE first <= ? ORDER BY first DESC LIMIT 1", middle)
        assert head is not None
        if holds(head):
            found = head
        else:
            low = max(head.end, middle) + 1
    return found


def at(connection: sqlite3.Connection, shelf: Shelf, time: int) -> Position:
    """The position before the first entry that was appended at or after ``time`` (ms)."""
    head = first_where(connection, shelf, lambda head: head.appended_at >= time)
    if head is None:
        return bounds(connection, shelf).last
    return shelf.lineage.position(max(head.first, first_retained(connection, shelf)) - 1)
