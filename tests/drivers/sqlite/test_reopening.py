"""A SQLite log that is opened again holds everything, and its epochs tell what may be missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.drivers.sqlite.queue import SqliteWorkQueue
from iotsphere.entities.channel import ChannelSpec, Retention
from iotsphere.entities.errors import Fenced, LeaseHeld
from iotsphere.entities.position import Gap, Position
from iotsphere.use_cases.ports.message_log import Tally
from tests.contracts.records import (
    BEGINNING,
    CHANNELS,
    DOMAIN,
    P0,
    P1,
    offsets,
    read_all,
    record,
    records,
)

FOREVER = 1 << 50
STORE = "iotsphere/store"


async def test_everything_is_there_after_reopening(tmp_path: Path, clock: ManualClock) -> None:
    batch = records(30)
    async with SqliteLog(tmp_path, clock) as log:
        await log.ensure(DOMAIN, CHANNELS)
        positions = (await log.append(batch)).positions
        await log.register(STORE, {P0: BEGINNING})
        await log.commit(STORE, {P0: (positions[9], Tally(applied=8, expired=2))})
        lease = await log.lease(STORE, P0, "one", 60_000)
        queue = SqliteWorkQueue(log)
        await queue.create("iotsphere/workers", [(P0, BEGINNING)])
        assert len(await queue.take("iotsphere/workers", "one", 5, visibility=1_000)) == 5
    clock.advance(5_000)
    async with SqliteLog(tmp_path, clock) as log:
        assert list(log.domains()) == [DOMAIN]
        assert list(log.partitions(DOMAIN, "telemetry")) == [P0, P1]
        await log.ensure(DOMAIN, {"telemetry": ChannelSpec(partitions=7)})
        assert len(log.partitions(DOMAIN, "telemetry")) == 2
        assert [entry.record for entry in await read_all(log)] == batch
        assert [entry.position for entry in await read_all(log)] == list(positions)
        again = await log.append([*batch[3:6], record()])
        assert list(again.positions[:3]) == list(positions[3:6])
        assert again.positions[3].offset == 31
        assert again.duplicates == {0, 1, 2}
        progress = (await log.committed(STORE))[P0]
        assert (progress.position, progress.tally) == (positions[9], Tally(applied=8, expired=2))
        # Whoever had the lease is no more, since it was alone with the file.
        assert (await log.lease(STORE, P0, "two", 1_000)).fence == lease.fence + 1
        with pytest.raises(LeaseHeld):
            await log.lease(STORE, P0, "one", 60_000)
        clock.advance(60_000)
        with pytest.raises(Fenced):
            await log.commit(STORE, {P0: (positions[10], Tally())}, {P0: lease.fence})
        taken = await SqliteWorkQueue(log).take("iotsphere/workers", "two", 6)
        assert [(one.entry.position.offset, one.attempt) for one in taken] == [
            (1, 2),
            (2, 2),
            (3, 2),
            (4, 2),
            (5, 2),
            (6, 1),
        ]


async def test_trimmed_offsets_are_not_given_again_after_reopening(tmp_path: Path, clock: ManualClock) -> None:
    async with SqliteLog(tmp_path, clock) as log:
        await log.ensure(DOMAIN, CHANNELS)
        await log.append(records(5))
        await log.retain(P0, Retention(max_age=0), FOREVER)
    async with SqliteLog(tmp_path, clock) as log:
        bounds = await log.bounds(P0)
        assert (bounds.first.offset, bounds.last.offset) == (6, 5)
        assert offsets((await log.append(records(1))).positions) == [6]


async def test_repeated_ids_are_known_beyond_the_last_few_and_across_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    batches = [records(500, size=10) for _ in range(40)]
    async with SqliteLog(tmp_path, clock, "logged") as log:
        await log.ensure(DOMAIN, CHANNELS)
        for batch in batches:
            await log.append(batch)
        again = await log.append([batches[0][7], batches[20][1], batches[39][499]])
        assert offsets(again.positions) == [8, 10_002, 20_000]
    clock.advance(9 * 60_000)
    async with SqliteLog(tmp_path, clock) as log:
        again = await log.append([batches[0][7], batches[20][1], batches[39][499]])
        assert offsets(again.positions) == [8, 10_002, 20_000]
        assert again.duplicates == {0, 1, 2}


async def test_repeated_ids_are_known_after_a_restart_even_when_their_entries_are_gone(
    tmp_path: Path, clock: ManualClock
) -> None:
    batches = [records(2) for _ in range(200)]
    async with SqliteLog(tmp_path, clock) as log:
        await log.ensure(DOMAIN, CHANNELS)
        for batch in batches:
            await log.append(batch)
        await log.retain(P0, Retention(max_bytes=300), 0)
        assert (await log.bounds(P0)).first.offset > 390
    clock.advance(9 * 60_000)
    async with SqliteLog(tmp_path, clock) as log:
        again = await log.append([batches[0][1], batches[100][0], batches[199][1]])
        assert offsets(again.positions) == [2, 201, 400]
        clock.advance(2 * 60_000)
        await log.retain(P0, Retention(), clock.now())
        assert await log.file.query(lambda c: c.execute("SELECT count(*) FROM remnants").fetchone()[0]) == 0


async def test_the_epoch_stays_while_nothing_can_be_forgotten(tmp_path: Path, clock: ManualClock) -> None:
    epochs = set()
    for _ in range(3):
        async with SqliteLog(tmp_path, clock) as log:
            await log.ensure(DOMAIN, CHANNELS)
            epochs.add((await log.append(records(1))).positions[0].epoch)
        clock.advance(60_000)
    assert len(epochs) == 1


async def test_after_a_weaker_run_there_is_a_new_epoch_of_the_same_lineage(tmp_path: Path, clock: ManualClock) -> None:
    positions: list[Position] = []
    for _ in range(3):  # all within one second of the clock
        async with SqliteLog(tmp_path, clock, "logged") as log:
            await log.ensure(DOMAIN, CHANNELS)
            positions += (await log.append(records(2))).positions
    async with SqliteLog(tmp_path, clock, "fsynced") as log:
        positions += (await log.append(records(2))).positions
        assert [position.offset for position in positions] == list(range(1, 9))
        assert len({position.epoch for position in positions}) == 4
        assert positions == sorted(positions)
        assert [entry.position for entry in await read_all(log)] == positions
        for place, position in enumerate(positions, 1):
            piece = await log.read(P0, position)
            assert piece.gap is None
            assert [entry.position for entry in piece.entries] == positions[place:]


async def test_a_reader_that_saw_what_was_forgotten_is_told_and_gets_what_came_instead(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with SqliteLog(tmp_path, clock, "logged") as log:
        await log.ensure(DOMAIN, CHANNELS)
        first = (await log.append(records(3))).positions[0]
    async with SqliteLog(tmp_path, clock, "logged") as log:
        fresh = records(4)
        await log.append(fresh)
        piece = await log.read(P0, first._replace(offset=5))  # as if a power loss had taken 4 and 5 of that epoch
        assert piece.gap == Gap(P0, 4, 3, "rebuilt")
        assert [entry.record for entry in piece.entries] == fresh
