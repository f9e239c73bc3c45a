"""What of a partition is due to go, how it goes, and what is kept of it: the hashes of recent message ids."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from .chunks import Shelf, first_retained, first_where, head_of, newest

SWEPT_AT_ONCE: Final = 64


def due(connection: sqlite3.Connection, shelf: Shelf, age: int, size: int, now: int) -> int:
    """The last offset that is older than ``age`` (ms) or lies beyond the newest ``size`` stored bytes."""
    latest = newest(connection, shelf)
    if latest is None:
        return 0
    young = first_where(connection, shelf, lambda head: head.appended_at >= now - age)
    old = young.first - 1 if young is not None else latest.end
    surplus = latest.total - size
    edge = first_where(connection, shelf, lambda head: head.total >= surplus)
    if surplus <= 0 or edge is None:
        return old
    (sizes,) = connection.execute(f"SELECT sizes FROM {shelf.table} WHERE first = ?", (edge.first,)).fetchone()
    lengths = struct.unpack(f"<{len(sizes) // 4}I", sizes)
    totals = list(accumulate(lengths, initial=edge.total - sum(lengths)))
    beyond = next(index for index, total in enumerate(totals) if total >= surplus)
    return max(old, edge.first - 1 + beyond)


def sweep(connection: sqlite3.Connection, shelf: Shelf, since: int) -> bool:
    """Delete a few chunks that hold nothing retained; True when there may be more.

    The hashes of what was appended at or after ``since`` (ms) are kept, so that repetitions are known after a restart.
    """
    latest = newest(connection, shelf)
    if latest is None:
        return False
    kept = head_of(connection, shelf, "WHERE first <= ? ORDER BY first DESC LIMIT 1", first_retained(connection, shelf))
    limit = min(kept.first if kept is not None else 0, latest.first)
    rows = connection.execute(
        f"SELECT first FROM {shelf.table} WHERE first < ? ORDER BY first LIMIT {SWEPT_AT_ONCE}", (limit,)
    ).fetchall()
    if rows:
        connection.execute(
            f"INSERT INTO remnants SELECT ?, first, appended_at, hashes FROM {shelf.table}"
            " WHERE first <= ? AND appended_at >= ? AND hashes IS NOT NULL",
            (shelf.number, rows[-1][0], since),
        )
        connection.execute(f"DELETE FROM {shelf.table} WHERE first <= ?", (rows[-1][0],))
    connection.execute("DELETE FROM remnants WHERE part = ? AND appended_at < ?", (shelf.number, since))
    return len(rows) == SWEPT_AT_ONCE


def hashes_since(connection: sqlite3.Connection, shelf: Shelf, time: int) -> Iterator[tuple[int, int, int]]:
    """(hash, offset, appended_at) of the records that have a hash and were appended at or after ``time`` (ms)."""
    head = first_where(connection, shelf, lambda head: head.appended_at >= time)
    for first, appended_at, hashes in connection.execute(
        "SELECT first, appended_at, hashes FROM remnants WHERE part = ?1 AND appended_at >= ?2 UNION ALL"
        f" SELECT first, appended_at, hashes FROM {shelf.table} WHERE first >= ?3 AND hashes IS NOT NULL",
        (shelf.number, time, head.first if head is not None else shelf.last + 1),
    ):
        for index, value in enumerate(struct.unpack(f"<{len(hashes) // 8}Q", hashes)):
            if value:
                yield value, first + index, appended_at
