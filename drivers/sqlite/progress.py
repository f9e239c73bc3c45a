"""What is kept about readers: their progress and tallies, their leases, and retention that waits for them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from ...entities.channel import Retention
from ...entities.errors import Fenced, LeaseHeld, RequestInvalid
from ...entities.position import Gap, Partition, Position
from ...use_cases.ports.message_log import Lease, Progress, Tally
from . import chunks, trimming
from .chunks import Shelf

KEPT_LOSSES: Final = 1_000
Connection = sqlite3.Connection
Shelves = Mapping[Partition, Shelf]


def settled(connection: Connection, shelf: Shelf, position: Position) -> Position:
    """What a position means now: the beginning and unknown epochs are turned into a place in this log."""
    bounds = chunks.bounds(connection, shelf)
    offset, gap = shelf.lineage.locate(shelf.partition, position, bounds.first.offset, bounds.last.offset)
    return position if gap is not None and gap.reason == "retention" else shelf.lineage.position(offset)


def register(connection: Connection, reader: str, positions: Sequence[tuple[Shelf, Position]]) -> None:
    """Add the partitions that the reader has not yet."""
    for shelf, position in positions:
        start = settled(connection, shelf, position)
        connection.execute(
            "INSERT INTO readers(reader, part, start_epoch, start_offset, epoch, offset) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING",
            (reader, shelf.number, *start, *start),
        )


def commit(
    connection: Connection,
    reader: str,
    progress: Sequence[tuple[Shelf, Position, Tally]],
    fences: Sequence[tuple[Shelf, int]],
) -> None:
    """Move the reader on. Raises RequestInvalid, Fenced."""
    known = {
        part: Position(epoch, offset)
        for part, epoch, offset in connection.execute(
            "SELECT part, epoch, offset FROM readers WHERE reader = ?", (reader,)
        )
    }
    for shelf, _, _ in progress:
        if shelf.number not in known:
            raise RequestInvalid(f"{reader!a} does not read {shelf.partition}: register it first")
    for shelf, fence in fences:
        row = connection.execute(
            "SELECT fence FROM leases WHERE reader = ? AND part = ?", (reader, shelf.number)
        ).fetchone()
        if row is not None and row[0] > fence:
            raise Fenced(f"{reader!a} lost {shelf.partition}: a newer owner has it; stop and take the lease again")
    connection.executemany(
        "UPDATE readers SET epoch = ?, offset = ?, applied = applied + ?, superseded = superseded + ?,"
        " expired = expired + ?, dead_lettered = dead_lettered + ?, lost = lost + ? WHERE reader = ? AND part = ?",
        [
            (*position, *tally, reader, shelf.number)
            for shelf, position, tally in progress
            if position > known[shelf.number]
        ],
    )


def committed(connection: Connection, shelves: Shelves, reader: str) -> Mapping[Partition, Progress]:
    """The reader's progress."""
    partitions = {shelf.number: partition for partition, shelf in shelves.items()}
    return {
        partitions[part]: Progress(Position(*numbers[:2]), Position(*numbers[2:4]), Tally(*numbers[4:]))
        for part, *numbers in connection.execute(
            "SELECT part, start_epoch, start_offset, epoch, offset, applied, superseded, expired, dead_lettered, lost"
            " FROM readers WHERE reader = ?",
            (reader,),
        )
        if part in partitions
    }


def readers(connection: Connection, domain: str) -> Sequence[str]:
    """The names that begin with the domain, sorted."""
    # '0' is the character after '/'.
    rows = connection.execute(
        "SELECT DISTINCT reader FROM readers WHERE reader > ? AND reader < ? ORDER BY reader",
        (domain + "/", domain + "0"),
    )
    return [name for (name,) in rows]


def forget(connection: Connection, reader: str) -> None:
    """Remove a reader. Its fences stay, so that a former owner never counts again."""
    connection.execute("DELETE FROM readers WHERE reader = ?", (reader,))


def lease(connection: Connection, wanted: Lease, shelf: Shelf, now: int) -> Lease:
    """Take or renew a lease. ``wanted.fence`` is not looked at. Raises LeaseHeld."""
    reader, partition, owner, _, expires_at = wanted
    row = connection.execute(
        "SELECT owner, fence, expires_at FROM leases WHERE reader = ? AND part = ?", (reader, shelf.number)
    ).fetchone()
    holder, fence, until = row if row is not None else ("", 0, 0)
    if holder not in ("", owner) and until > now:
        raise LeaseHeld(f"{partition} is read for {reader!a} by {holder!a}: retry later", owner=holder)
    if row is None or holder != owner:
        fence += 1
    connection.execute(
        "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?)", (reader, shelf.number, owner, fence, expires_at)
    )
    return Lease(reader, partition, owner, fence, expires_at)


def release(connection: Connection, held: Lease, shelf: Shelf) -> None:
    """Give a lease back; its fence is remembered."""
    connection.execute(
        "UPDATE leases SET owner = '', expires_at = 0 WHERE reader = ? AND part = ? AND owner = ? AND fence = ?",
        (held.reader, shelf.number, held.owner, held.fence),
    )


def retain(connection: Connection, shelf: Shelf, retention: Retention, now: int) -> Gap | None:
    """Move the first retained offset on; ``trimming.sweep`` deletes what lies before it afterwards."""
    first = chunks.first_retained(connection, shelf)
    needs: list[tuple[str, int]] = connection.execute(
        "SELECT reader, offset + 1 FROM readers WHERE part = ?1"
        " UNION ALL SELECT team, coalesce((SELECT min(offset) FROM taken"
        " WHERE taken.team = lanes.team AND taken.part = ?1), cursor + 1) FROM lanes WHERE part = ?1",
        (shelf.number,),
    ).fetchall()
    soft = trimming.due(connection, shelf, retention.max_age, retention.max_bytes, now)
    hard = trimming.due(connection, shelf, retention.hard_age, retention.hard_bytes, now)
    upto = max(min(soft, min((need for _, need in needs), default=soft + 1) - 1), hard)
    if upto < first:
        return None
    lost = [
        (name, Gap(shelf.partition, max(need, first), upto, "retention"))
        for name, need in sorted(needs)
        if need <= upto
    ]
    connection.execute("UPDATE partitions SET first = ? WHERE id = ?", (upto + 1, shelf.number))
    _drop_trimmed(connection, shelf, upto)
    domain = shelf.partition.domain
    connection.executemany(
        "INSERT INTO losses(domain, reader, part, first, last) VALUES (?, ?, ?, ?, ?)",
        [(domain, name, shelf.number, gap.first, gap.last) for name, gap in lost],
    )
    connection.execute("DELETE FROM losses WHERE id <= (SELECT max(id) FROM losses) - ?", (KEPT_LOSSES,))
    return min((gap for _, gap in lost), default=None)


def _drop_trimmed(connection: Connection, shelf: Shelf, upto: int) -> None:
    """Count what the work queues lost by a trim, and move them past it."""
    connection.execute(
        "UPDATE lanes SET lost = lost + max(0, ?1 - cursor)"
        " + (SELECT count(*) FROM taken WHERE taken.team = lanes.team AND taken.part = ?2 AND offset <= ?1),"
        " cursor = max(cursor, ?1) WHERE part = ?2",
        (upto, shelf.number),
    )
    connection.execute("DELETE FROM taken WHERE part = ? AND offset <= ?", (shelf.number, upto))


def losses(connection: Connection, shelves: Shelves, domain: str) -> Sequence[tuple[str, Gap]]:
    """The announced losses of the domain, oldest first."""
    partitions = {shelf.number: partition for partition, shelf in shelves.items()}
    rows = connection.execute("SELECT reader, part, first, last FROM losses WHERE domain = ? ORDER BY id", (domain,))
    return [(reader, Gap(partitions[part], first, last, "retention")) for reader, part, first, last in rows]
