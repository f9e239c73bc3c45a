"""Batches and changes share transactions without harming each other, and single messages are found."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.sqlite.log import SqliteLog, time_of
from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import LogUnavailable, RequestInvalid
from iotsphere.entities.position import Position
from iotsphere.use_cases.ports.message_log import Tally
from tests.contracts.records import (
    BEGINNING,
    CHANNELS,
    DOMAIN,
    P0,
    P1,
    collect,
    ids,
    offsets,
    read_all,
    record,
    records,
)

FOREVER = 1 << 50
STORE = "iotsphere/store"


async def test_a_record_that_cannot_be_stored_is_refused_alone(log: SqliteLog) -> None:
    outcomes = await asyncio.gather(
        log.append(records(2)),
        log.append([record(), record(message_id="x" * 70_000)]),
        log.append([record(message_id="\ud800")]),
        log.append(records(2)),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes[1:3]] == [RequestInvalid, RequestInvalid]
    assert offsets([entry.position for entry in await read_all(log)]) == [1, 2, 3, 4]


async def test_a_refused_change_leaves_the_others_of_its_transaction(log: SqliteLog) -> None:
    outcomes = await asyncio.gather(
        log.register(STORE, {P0: BEGINNING}),
        log.commit("iotsphere/nobody", {P0: (Position(1, 1), Tally())}),
        log.append(records(1)),
        log.register("iotsphere/other", {P0: BEGINNING}),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], RequestInvalid)
    assert [outcome for outcome in (outcomes[0], outcomes[3])] == [None, None]
    assert list(await log.readers(DOMAIN)) == ["iotsphere/other", STORE]


async def test_a_large_batch_is_cut_into_chunks_and_read_back_from_anywhere(log: SqliteLog) -> None:
    batch = [*records(2_500, size=100), *records(3, size=300_000), *records(5)]
    positions = (await log.append(batch)).positions
    assert [entry.record for entry in await read_all(log)] == batch
    for place in (0, 1_023, 1_024, 2_047, 2_499, 2_501, 2_506):
        piece = await log.read(P0, positions[place], limit=2)
        assert [entry.record for entry in piece.entries] == batch[place + 1 : place + 3]


async def test_closing_answers_what_is_waiting_and_then_refuses(tmp_path: Path, clock: ManualClock) -> None:
    log = SqliteLog(tmp_path, clock)
    with pytest.raises(LogUnavailable):
        await log.ready()
    async with log:
        await log.ensure(DOMAIN, CHANNELS)
        waiting = [asyncio.ensure_future(log.append(records(10))) for _ in range(20)]
        follower = log.follow({P0: BEGINNING})
        await collect(follower, 200)
        idle = asyncio.ensure_future(anext(follower))
        await asyncio.sleep(0)
        more = asyncio.ensure_future(log.append(records(1, P1)))
        await asyncio.sleep(0)
    appended = await asyncio.gather(*waiting)
    assert sorted(offset for one in appended for offset in offsets(one.positions)) == list(range(1, 201))
    assert offsets((await more).positions) == [1]
    with pytest.raises(LogUnavailable, match="closed"):
        await idle
    for attempt in (log.append(records(1)), log.bounds(P0), log.register(STORE, {P0: BEGINNING}), log.ready()):
        with pytest.raises(LogUnavailable):
            await attempt
    async with SqliteLog(tmp_path, clock) as log:
        assert len(await read_all(log)) == 200


async def test_ids_tell_their_time() -> None:
    assert time_of("0190b0c0-1234-7000-8000-000000000001") == 0x0190B0C01234
    assert time_of("0190b0c0-1234-4000-8000-000000000001") is None
    assert time_of("zzzzzzzz-1234-7000-8000-000000000001") is None
    assert time_of("short") is None


async def test_find_goes_through_a_long_log(log: SqliteLog, clock: ManualClock) -> None:
    wanted = record(P1, "needle")
    stamp = f"{clock.now() + 3_600_000:012x}"
    timed = record(P0, f"{stamp[:8]}-{stamp[8:]}-7000-8000-000000000000", minted=True)
    await log.append([wanted])
    for _ in range(600):
        await log.append(records(2))
    clock.advance(3_600_000)
    await log.append([timed])
    for one in (wanted, timed):
        entry = await log.find(DOMAIN, one.message_id)
        assert entry is not None
        assert entry.record == one
    assert await log.find(DOMAIN, "no such id") is None
    await log.retain(P1, Retention(max_age=0), FOREVER)
    assert await log.find(DOMAIN, "needle") is None
    assert ids(await read_all(log))[-1] == timed.message_id
