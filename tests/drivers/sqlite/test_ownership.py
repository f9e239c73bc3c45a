"""One process writes a SQLite log; its files belong to its user, and others may read them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.channel import ChannelSpec, Retention
from iotsphere.entities.errors import LogUnavailable, RequestInvalid
from tests.contracts.records import (
    BEGINNING,
    CHANNELS,
    DOMAIN,
    P0,
    collect,
    read_all,
    records,
)
from tests.contracts.times import take

STORE = "iotsphere/store"


async def test_a_second_writer_is_refused_and_told_who_writes(
    log: SqliteLog, tmp_path: Path, clock: ManualClock
) -> None:
    second = SqliteLog(tmp_path, clock)
    with pytest.raises(LogUnavailable, match=f"written by process {os.getpid()}") as caught:
        await second.__aenter__()
    assert caught.value.facts == {"pid": os.getpid()}
    await log.append(records(1))
    assert len(await read_all(log)) == 1


async def test_a_folder_that_takes_no_file_is_told(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "log.db").symlink_to(tmp_path / "gone" / "log.db")
    with pytest.raises(LogUnavailable, match=r"cannot be made \(No such file or directory\): check the disk"):
        await SqliteLog(tmp_path, clock).__aenter__()


async def test_a_writer_in_another_process_is_refused(log: SqliteLog, tmp_path: Path) -> None:
    program = (
        "import asyncio, sys; from pathlib import Path; from iotsphere.drivers.clock import SystemClock;"
        "from iotsphere.drivers.sqlite.log import SqliteLog;"
        "asyncio.run(SqliteLog(Path(sys.argv[1]), SystemClock()).__aenter__())"
    )
    source = str(Path(__file__).parents[3] / "src")
    child = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 1
    assert f"written by process {os.getpid()}" in child.stderr
    await log.ready()


async def test_the_folder_is_free_again_after_closing(tmp_path: Path, clock: ManualClock) -> None:
    for _ in range(3):
        async with SqliteLog(tmp_path, clock):
            pass


async def test_only_its_owner_may_read_the_files(log: SqliteLog, tmp_path: Path) -> None:
    await log.append(records(1))
    for name in ("log.db", "log.db-wal", "log.db-shm", "log.lock"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name


async def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogUnavailable, match="check its rights"):
        await SqliteLog(tmp_path / "file" / "log", clock).__aenter__()


async def test_a_newer_format_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    with closing(sqlite3.connect(tmp_path / "log.db")) as connection:
        connection.execute("PRAGMA user_version=2")
    with pytest.raises(LogUnavailable, match="newer version"):
        await SqliteLog(tmp_path, clock).__aenter__()
    assert not [name for name in os.listdir(tmp_path) if "damaged" in name]


def test_an_unknown_durability_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(RequestInvalid):
        SqliteLog(tmp_path, clock, "perhaps")


@pytest.mark.parametrize(("durability", "synchronous"), [("fsynced", 2), ("logged", 1)])
async def test_durability_is_what_sqlite_was_told(
    tmp_path: Path, clock: ManualClock, durability: str, synchronous: int
) -> None:
    async with SqliteLog(tmp_path, clock, durability) as log:
        assert log.durability == durability
        settings = await log.file.change(
            lambda c: (c.execute("PRAGMA synchronous").fetchone()[0], c.execute("PRAGMA journal_mode").fetchone()[0])
        )
        assert settings == (synchronous, "wal")


async def test_a_reader_changes_nothing(log: SqliteLog, tmp_path: Path, clock: ManualClock) -> None:
    await log.append(records(1))
    async with SqliteLog(tmp_path, clock, read_only=True) as reader:
        await reader.ready()
        await reader.ensure(DOMAIN, CHANNELS)
        for change in (
            reader.append(records(1)),
            reader.ensure(DOMAIN, {"users": ChannelSpec(1)}),
            reader.register(STORE, {P0: BEGINNING}),
            reader.lease(STORE, P0, "one", 1_000),
            reader.retain(P0, Retention(), 0),
        ):
            with pytest.raises(RequestInvalid):
                await change
        assert len(await read_all(reader)) == 1


async def test_there_must_be_a_log_to_read(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(LogUnavailable):
        await SqliteLog(tmp_path, clock, read_only=True).__aenter__()
    assert os.listdir(tmp_path) == []


async def test_a_log_can_be_read_when_nobody_writes_it(tmp_path: Path, clock: ManualClock) -> None:
    async with SqliteLog(tmp_path, clock) as log:
        await log.ensure(DOMAIN, CHANNELS)
        await log.append(records(3))
    async with SqliteLog(tmp_path, clock, read_only=True) as reader:
        assert len(await read_all(reader)) == 3


async def test_a_reader_learns_of_a_new_epoch(tmp_path: Path, clock: ManualClock) -> None:
    async with SqliteLog(tmp_path, clock, "logged") as log:
        await log.ensure(DOMAIN, CHANNELS)
        await log.append(records(2))
    async with (
        SqliteLog(tmp_path, clock, read_only=True) as reader,
        aclosing(reader.follow({P0: BEGINNING})) as follower,
    ):
        await collect(follower, 2)
        async with SqliteLog(tmp_path, clock, "logged") as log:
            position = (await log.append(records(1))).positions[0]
            piece = await take(follower)
            assert (piece.gap, [entry.position for entry in piece.entries]) == (None, [position])
