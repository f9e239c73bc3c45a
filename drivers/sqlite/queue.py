"""Work queues in the log's own file: what is taken, and how often, is kept in the same transactions as the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...entities.errors import RequestInvalid
from ...entities.position import Partition, Position
from ...use_cases.ports.work_queue import NEVER, Backlog, Delivery
from . import chunks
from .chunks import Shelf
from .log import SqliteLog

Connection = sqlite3.Connection


class Claim(NamedTuple):
    """An entry that was handed out, before it is read."""

    part: int
    offset: int
    attempt: int


class SqliteWorkQueue:
    """A ``WorkQueue`` over a ``SqliteLog`` that is open."""

    def __init__(self, log: SqliteLog) -> None:
        self._clock = log.clock
        self._file = log.file
        self._turn = 0

    async def create(self, group: str, start: Sequence[tuple[Partition, Position]]) -> None:
        """Make the group from what the positions mean now."""
        places = [(self._file.shelf(partition), position) for partition, position in start]

        def make(connection: Connection) -> None:
            for shelf, position in places:
                bounds = chunks.bounds(connection, shelf)
                cursor, _ = shelf.lineage.locate(shelf.partition, position, bounds.first.offset, bounds.last.offset)
                connection.execute(
                    "INSERT INTO lanes(team, part, start, cursor) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    (group, shelf.number, cursor, cursor),
                )

        await self._file.change(make)

    async def take(
        self, group: str, consumer: str, limit: int, visibility: int = 30_000, alone: int = NEVER
    ) -> Sequence[Delivery]:
        """Hand out what came back, then what is new; durable before it is returned."""
        if alone <= 1:
            limit = min(limit, 1)
        now = self._clock.now()
        self._turn += 1
        turn, shelves = self._turn, self._by_number()

        def claim(connection: Connection) -> list[Claim]:
            again = _claim_again(connection, group, limit, now)
            lone = next((place for place, one in enumerate(again) if one.attempt >= alone), None)
            new: list[Claim] = []
            if lone is not None:
                again = again[: max(lone, 1)]
            else:
                new = _claim_new(connection, group, limit - len(again), shelves, turn)
            connection.executemany(
                "INSERT OR REPLACE INTO taken VALUES (?, ?, ?, ?, ?, ?)",
                [(group, *one, consumer, now + visibility) for one in (*again, *new)],
            )
            return again + new

        claims = await self._file.change(claim)
        deliveries, vanished = await self._read(group, claims, shelves)
        if vanished:
            await self._file.change(lambda connection: _lose(connection, group, vanished))
        return deliveries

    async def _read(
        self, group: str, claims: Sequence[Claim], shelves: Mapping[int, Shelf]
    ) -> tuple[list[Delivery], list[Claim]]:
        wanted: dict[int, list[int]] = {}
        for claim in claims:
            wanted.setdefault(claim.part, []).append(claim.offset)
        if not wanted:
            return [], []
        found = await self._file.query(
            lambda c: {part: chunks.entries(c, shelves[part], sorted(offsets)) for part, offsets in wanted.items()}
        )
        deliveries, vanished = [], []
        for claim in claims:
            entry = found[claim.part].get(claim.offset)
            if entry is None:
                vanished.append(claim)
            else:
                deliveries.append(Delivery(group, shelves[claim.part].partition, entry, claim.attempt))
        return deliveries, vanished

    def _by_number(self) -> Mapping[int, Shelf]:
        return {shelf.number: shelf for shelf in self._file.catalogue.shelves.values()}

    def _place(self, delivery: tuple[Partition, Position]) -> tuple[int, int]:
        return self._file.shelf(delivery[0]).number, delivery[1].offset

    async def ack(self, group: str, deliveries: Sequence[tuple[Partition, Position]]) -> int:
        """Mark entries done."""
        places = [self._place(delivery) for delivery in deliveries]

        def settle(connection: Connection) -> int:
            _demand(connection, group)
            done = 0
            for part, offset in places:
                removed = connection.execute(
                    "DELETE FROM taken WHERE team = ? AND part = ? AND offset = ?", (group, part, offset)
                ).rowcount
                if removed:
                    done += 1
                    connection.execute(
                        "UPDATE lanes SET acknowledged = acknowledged + 1 WHERE team = ? AND part = ?", (group, part)
                    )
            return done

        return await self._file.change(settle)

    async def nack(
        self, group: str, delivery: tuple[Partition, Position], delay: int = 0, counted: bool = True
    ) -> None:
        """Give an entry back, to come again after ``delay`` ms."""
        place, due = self._place(delivery), self._clock.now() + delay

        def give_back(connection: Connection) -> None:
            _demand(connection, group)
            connection.execute(
                "UPDATE taken SET attempt = attempt - (? AND consumer != ''), consumer = '', hidden_until = ?"
                " WHERE team = ? AND part = ? AND offset = ?",
                (not counted, due, group, *place),
            )

        await self._file.change(give_back)

    async def extend(self, group: str, consumer: str, delivery: tuple[Partition, Position], visibility: int) -> bool:
        """Keep an entry for ``visibility`` ms more, when it is still this consumer's."""
        place, until = self._place(delivery), self._clock.now() + visibility

        def keep(connection: Connection) -> bool:
            _demand(connection, group)
            changed = connection.execute(
                "UPDATE taken SET hidden_until = ? WHERE team = ? AND part = ? AND offset = ? AND consumer = ?",
                (until, group, *place, consumer),
            )
            return changed.rowcount > 0

        return await self._file.change(keep)

    async def backlog(self, group: str) -> Sequence[Backlog]:
        """What is to do, by partition."""
        shelves = self._by_number()

        def count(connection: Connection) -> list[Backlog]:
            backlogs = []
            rows = connection.execute(
                "SELECT part, start, cursor, acknowledged, lost, (SELECT count(*) FROM taken"
                " WHERE taken.team = lanes.team AND taken.part = lanes.part) FROM lanes WHERE team = ?",
                (group,),
            ).fetchall()
            for part, start, cursor, acknowledged, lost, pending in rows:
                head = chunks.newest(connection, shelves[part])
                waiting = (head.end if head is not None else 0) - cursor
                backlogs.append(Backlog(shelves[part].partition, waiting, pending, acknowledged, lost, start))
            return sorted(backlogs)

        return await self._file.query(count)

    async def groups(self, domain: str) -> Sequence[str]:
        """The domain's groups, sorted."""
        # '0' is the character after '/'.
        question = "SELECT DISTINCT team FROM lanes WHERE team > ? AND team < ? ORDER BY team"
        rows = await self._file.query(lambda c: c.execute(question, (domain + "/", domain + "0")).fetchall())
        return [team for (team,) in rows]

    async def delete(self, group: str) -> None:
        """Remove the group."""

        def remove(connection: Connection) -> None:
            connection.execute("DELETE FROM taken WHERE team = ?", (group,))
            connection.execute("DELETE FROM lanes WHERE team = ?", (group,))

        await self._file.change(remove)


def _demand(connection: Connection, group: str) -> None:
    if connection.execute("SELECT 1 FROM lanes WHERE team = ? LIMIT 1", (group,)).fetchone() is None:
        raise RequestInvalid(f"there is no work-queue group {group!a}: create it first")


def _claim_again(connection: Connection, group: str, limit: int, now: int) -> list[Claim]:
    """What was handed out and came back, oldest first."""
    rows = connection.execute(
        "SELECT part, offset, attempt + 1 FROM taken WHERE team = ? AND hidden_until <= ? ORDER BY part, offset LIMIT ?",
        (group, now, limit),
    )
    return [Claim(*row) for row in rows]


def _claim_new(connection: Connection, group: str, limit: int, shelves: Mapping[int, Shelf], turn: int) -> list[Claim]:
    """What was never handed out. Each turn begins with another partition, so that a busy one does not starve the rest."""
    lanes = connection.execute("SELECT part, cursor FROM lanes WHERE team = ? ORDER BY part", (group,)).fetchall()
    if not lanes:
        raise RequestInvalid(f"there is no work-queue group {group!a}: create it first")
    claims: list[Claim] = []
    turn %= len(lanes)
    for part, cursor in lanes[turn:] + lanes[:turn]:
        head = chunks.newest(connection, shelves[part])
        last = min(head.end if head is not None else 0, cursor + limit - len(claims))
        if last > cursor:
            claims += (Claim(part, offset, 1) for offset in range(cursor + 1, last + 1))
            connection.execute("UPDATE lanes SET cursor = ? WHERE team = ? AND part = ?", (last, group, part))
    return claims


def _lose(connection: Connection, group: str, claims: Sequence[Claim]) -> None:
    """Count entries that can no longer be read. Those that a trim took were counted by it."""
    for part, offset, _ in claims:
        removed = connection.execute(
            "DELETE FROM taken WHERE team = ? AND part = ? AND offset = ?", (group, part, offset)
        ).rowcount
        connection.execute("UPDATE lanes SET lost = lost + ? WHERE team = ? AND part = ?", (removed, group, part))
