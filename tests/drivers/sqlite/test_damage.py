"""Damage to a SQLite log is put aside or announced, never passed over in silence."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.drivers.sqlite.queue import SqliteWorkQueue
from iotsphere.entities.position import Gap
from tests.contracts.records import (
    BEGINNING,
    CHANNELS,
    DOMAIN,
    P0,
    offsets,
    read_all,
    records,
)


@pytest.mark.parametrize("harm", ["garbage", "header", "middle", "cut"])
async def test_a_damaged_file_is_put_aside_and_a_new_epoch_begins(
    tmp_path: Path, clock: ManualClock, harm: str
) -> None:
    async with SqliteLog(tmp_path, clock) as log:
        await log.ensure(DOMAIN, CHANNELS)
        for _ in range(5):
            old = (await log.append(records(20, size=2_000))).positions[-1]
    path = tmp_path / "log.db"
    whole = path.read_bytes()
    if harm == "garbage":
        path.write_bytes(b"this is no database " * 1_000)
    elif harm == "header":
        path.write_bytes(os.urandom(100) + whole[100:])
    elif harm == "middle":
        path.write_bytes(whole[:8_192] + b"\xff" * 40_960 + whole[8_192 + 40_960 :])
    else:
        path.write_bytes(whole[: len(whole) // 2 // 4_096 * 4_096])
    damaged = path.read_bytes()
    async with SqliteLog(tmp_path, clock) as log:
        assert log.quarantined is not None
        assert log.quarantined.read_bytes() == damaged
        assert list(log.domains()) == []
        await log.ensure(DOMAIN, CHANNELS)
        fresh = (await log.append(records(1))).positions[0]
        assert fresh.offset == 1
        assert fresh.epoch > old.epoch
        piece = await log.read(P0, old)
        assert piece.gap == Gap(P0, 1, 0, "rebuilt")
        assert [entry.position for entry in piece.entries] == [fresh]
    async with SqliteLog(tmp_path, clock) as log:
        assert log.quarantined is None
        assert len(await read_all(log)) == 1


async def test_a_log_that_was_removed_begins_a_later_epoch(tmp_path: Path, clock: ManualClock) -> None:
    async with SqliteLog(tmp_path, clock) as log:
        await log.ensure(DOMAIN, CHANNELS)
        old = (await log.append(records(1))).positions[0]
    (tmp_path / "log.db").unlink()
    clock.advance(-86_400_000)  # and the clock went back by a day
    async with SqliteLog(tmp_path, clock) as log:
        await log.ensure(DOMAIN, CHANNELS)
        assert (await log.append(records(1))).positions[0].epoch > old.epoch


async def test_lengths_that_are_damaged_lose_their_chunk_only(log: SqliteLog, tmp_path: Path) -> None:
    await log.append(records(3))
    await log.append(records(3))
    await log.append(records(3))
    with closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
        (number,) = connection.execute(
            "SELECT id FROM partitions WHERE channel = 'telemetry' AND number = 0"
        ).fetchone()
        connection.execute(f"UPDATE chunks_{number} SET sizes = X'0102' WHERE first = 4")
    seen: list[object] = []
    place = BEGINNING
    while (piece := await log.read(P0, place)).end != place:
        seen += [piece.gap] if piece.gap else []
        seen += [entry.position.offset for entry in piece.entries]
        place = piece.end
    assert seen == [1, 2, 3, Gap(P0, 4, 6, "corrupt"), 7, 8, 9]


async def test_a_chunk_that_is_missing_is_a_gap(log: SqliteLog, tmp_path: Path) -> None:
    for _ in range(3):
        await log.append(records(2))
    with closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
        (number,) = connection.execute(
            "SELECT id FROM partitions WHERE channel = 'telemetry' AND number = 0"
        ).fetchone()
        connection.execute(f"DELETE FROM chunks_{number} WHERE first = 3")
    before = await log.read(P0, BEGINNING)
    assert offsets([entry.position for entry in before.entries]) == [1, 2]
    after = await log.read(P0, before.end)
    assert after.gap == Gap(P0, 3, 4, "corrupt")
    assert offsets([entry.position for entry in after.entries]) == [5, 6]


async def test_a_damaged_entry_of_a_work_queue_is_lost_and_the_queue_moves_on(log: SqliteLog, tmp_path: Path) -> None:
    queue = SqliteWorkQueue(log)
    await log.append(records(3))
    await queue.create("iotsphere/workers", [(P0, BEGINNING)])
    with closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
        (number,) = connection.execute(
            "SELECT id FROM partitions WHERE channel = 'telemetry' AND number = 0"
        ).fetchone()
        (stored,) = connection.execute(f"SELECT stored FROM chunks_{number}").fetchone()
        connection.execute(f"UPDATE chunks_{number} SET stored = ?", (b"\0" * 20 + stored[20:],))
    taken = await queue.take("iotsphere/workers", "one", 5)
    assert [delivery.entry.position.offset for delivery in taken] == [2, 3]
    (backlog,) = await queue.backlog("iotsphere/workers")
    assert (backlog.waiting, backlog.pending, backlog.lost) == (0, 2, 1)
