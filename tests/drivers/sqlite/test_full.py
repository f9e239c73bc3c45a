"""A SQLite log without room refuses, loses nothing, and goes on by itself once there is room."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable
from pathlib import Path

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import LogFull
from iotsphere.entities.message import Entry
from iotsphere.use_cases.ports.message_log import MessageLog
from tests.contracts.records import (
    BEGINNING,
    CHANNELS,
    DOMAIN,
    P0,
    offsets,
    read_all,
    records,
)

STORE = "iotsphere/store"


async def fill(log: MessageLog) -> list[Entry]:
    """Append until there is no room; what was accepted."""
    for _ in range(10_000):
        try:
            await log.append(records(5, size=10_000))
        except LogFull:
            return await read_all(log)
    raise AssertionError("it is never full")


async def fill_for_good(log: MessageLog) -> list[Entry]:
    """Fill the disk until nothing at all is taken; what was accepted.

    The write-ahead log is copied into the file behind the appends, and each time that this gets somewhere there is a
    little room again: it ends once there is none to copy into.
    """
    for _ in range(200):
        await fill(log)
        if await refuses(log.ready()) and await refuses(log.append(records(20, size=10_000))):
            return await read_all(log)
    raise AssertionError("it is never full for good")


async def refuses(call: Awaitable[object]) -> bool:
    try:
        await call
    except LogFull:
        return True
    return False


async def test_a_full_log_says_so_and_goes_on_once_there_is_room(tmp_path: Path, clock: ManualClock) -> None:
    async with SqliteLog(tmp_path, clock, max_bytes=4 << 20) as log:
        await log.ensure(DOMAIN, CHANNELS)
        kept = await fill(log)
        assert 200 < len(kept) < 420
        with pytest.raises(LogFull) as caught:
            await log.append(records(5, size=10_000))
        assert caught.value.retry
        assert [entry.position.offset for entry in kept] == list(range(1, len(kept) + 1))
        assert await log.retain(P0, Retention(max_bytes=1 << 20), 0) is None
        more = (await log.append(records(50, size=10_000))).positions
        assert offsets(more) == list(range(len(kept) + 1, len(kept) + 51))
        await log.ready()
    async with SqliteLog(tmp_path, clock, max_bytes=4 << 20) as log:
        assert (await log.bounds(P0)).last == more[-1]


async def test_one_append_without_room_spoils_nobody_elses(tmp_path: Path, clock: ManualClock) -> None:
    async with SqliteLog(tmp_path, clock, max_bytes=2 << 20) as log:
        await log.ensure(DOMAIN, CHANNELS)
        await log.register(STORE, {P0: BEGINNING})
        huge, small = records(300, size=20_000), records(3)
        outcomes = await asyncio.gather(
            log.append(huge),
            log.append(small),
            log.register("iotsphere/other", {P0: BEGINNING}),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], LogFull)
        assert [entry.record for entry in await read_all(log)] == small
        assert list(await log.readers(DOMAIN)) == ["iotsphere/other", STORE]


async def test_repeating_what_found_no_room_loses_and_doubles_nothing(tmp_path: Path, clock: ManualClock) -> None:
    async with SqliteLog(tmp_path, clock, max_bytes=2 << 20) as log:
        await log.ensure(DOMAIN, CHANNELS)
        kept = await fill(log)
        batch = [*records(3, size=9_000), *records(3, size=9_000, minted=True)]
        with pytest.raises(LogFull):
            await log.append(batch)
        await log.retain(P0, Retention(max_bytes=500_000), 0)
        appended = await log.append(batch)
        assert appended.duplicates == frozenset()
        assert offsets(appended.positions) == list(range(len(kept) + 1, len(kept) + 7))


async def test_a_full_disk_is_told_and_survived(small_disk: Path, clock: ManualClock) -> None:
    async with SqliteLog(small_disk / "log", clock) as log:
        await log.ensure(DOMAIN, CHANNELS)
        kept = await fill_for_good(log)
        assert len(kept) > 100
        assert await read_all(log) == kept
        await asyncio.to_thread(
            subprocess.run, ["mount", "-o", "remount,size=32m", str(small_disk)], check=True, capture_output=True
        )
        await log.ready()
        more = (await log.append(records(20, size=10_000))).positions
        assert offsets(more) == list(range(len(kept) + 1, len(kept) + 21))
    async with SqliteLog(small_disk / "log", clock) as log:
        assert log.quarantined is None
        assert len(await read_all(log)) == len(kept) + 20
