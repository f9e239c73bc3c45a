"""The file of a database: reopened, restored, trimmed, damaged, without room, and closed."""

from __future__ import annotations

import asyncio
import shutil
import stat
import subprocess
from contextlib import aclosing
from pathlib import Path

import pytest

from iotsphere.drivers.clock import ManualClock, SystemClock
from iotsphere.drivers.sqlite.database import DAY_MS, SqliteDatabase, StateOptions
from iotsphere.entities.errors import ChangesLost, DatabaseUnavailable
from iotsphere.use_cases.ports.database import Stored, Write
from tests.contracts.database import COLLECTIONS, insert
from tests.contracts.database_changes import next_change, up_to_now
from tests.contracts.times import take


async def some_changes(path: Path, count: int) -> list[str]:
    """Open the file, make changes, and return a token from before each of them, and one from after all."""
    tokens = []
    async with SqliteDatabase(path, SystemClock()) as database:
        await database.ensure(COLLECTIONS)
        for number in range(count):
            tokens.append(await database.now())
            stands = await database.get("things", "d/a")
            await database.put("things", Write("d/a", stands, {"n": number}))
        return [*tokens, await database.now()]


async def after(path: Path, token: str) -> list[object]:
    """Open the file, and tell what was changed after a token."""
    async with SqliteDatabase(path, SystemClock()) as database:
        await database.ensure(COLLECTIONS)
        return [change.after for change in await up_to_now(database, token)]


async def fill(database: SqliteDatabase) -> int:
    """Make documents until there is no room; how many were made."""
    for number in range(100):
        try:
            await insert(database, "things", {f"d/{number:03}": {"text": "x" * 200_000}})
        except DatabaseUnavailable:
            return number
    raise AssertionError("it is never full")


async def test_documents_and_changes_are_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "data" / "state.db"
    tokens = await some_changes(path, 3)
    assert await after(path, tokens[0]) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert await after(path, tokens[2]) == [{"n": 2}]
    assert await after(path, tokens[3]) == []
    async with SqliteDatabase(path, SystemClock()) as database:
        await database.ensure(COLLECTIONS)
        assert await database.get("things", "d/a") == Stored("d/a", 3, {"n": 2})
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


async def test_a_restored_backup_is_noticed(tmp_path: Path) -> None:
    path, backup = tmp_path / "state.db", tmp_path / "backup.db"
    early = (await some_changes(path, 2))[0]
    shutil.copyfile(path, backup)
    late = (await some_changes(path, 3))[0]
    shutil.copyfile(backup, path)
    for token in (early, late):
        with pytest.raises(ChangesLost):
            await after(path, token)
    # The documents are those of the backup, and what is changed from now on is told.
    fresh = await some_changes(path, 6)
    assert await after(path, fresh[5]) == [{"n": 5}]
    with pytest.raises(ChangesLost):
        await after(path, late)


async def test_a_moved_folder_goes_on(tmp_path: Path) -> None:
    tokens = await some_changes(tmp_path / "here" / "state.db", 2)
    (tmp_path / "here").rename(tmp_path / "there")
    assert await after(tmp_path / "there" / "state.db", tokens[1]) == [{"n": 1}]


async def test_changes_are_kept_for_a_time(tmp_path: Path) -> None:
    clock = ManualClock(SystemClock().now())
    async with SqliteDatabase(tmp_path / "state.db", clock, StateOptions(kept_age=7 * DAY_MS)) as database:
        await database.ensure(COLLECTIONS)
        token = await database.now()
        await insert(database, "things", {f"d/{number}": {} for number in range(1_200)})
        clock.advance(7 * DAY_MS - 60_000)
        await database.sweep()
        assert len(await up_to_now(database, token)) == 1_200
        clock.advance(120_000)
        await database.sweep()
        with pytest.raises(ChangesLost):
            await take(database.changes(token))


async def test_changes_are_kept_up_to_a_size(tmp_path: Path) -> None:
    async with SqliteDatabase(tmp_path / "state.db", SystemClock(), StateOptions(kept_bytes=1_000_000)) as database:
        await database.ensure(COLLECTIONS)
        tokens = []
        for number in range(300):
            tokens.append(await database.now())
            await insert(database, "things", {f"d/{number}": {"text": "x" * 9_789}})
        await database.sweep()
        # Each takes 9,800 characters of JSON and 200 for itself; the end marks of the readers take a few more.
        assert len(await up_to_now(database, tokens[-100])) == 100
        with pytest.raises(ChangesLost):
            await take(database.changes(tokens[-102]))


async def test_a_follower_that_is_too_slow_is_told_so(tmp_path: Path) -> None:
    async with SqliteDatabase(tmp_path / "state.db", SystemClock(), StateOptions(kept_bytes=100_000)) as database:
        await database.ensure(COLLECTIONS)
        async with aclosing(database.changes(await database.now())) as feed:
            await insert(database, "things", {"d/first": {}})
            assert (await next_change(feed)).key == "d/first"
            for number in range(20):
                await insert(database, "things", {f"d/{number}": {"text": "x" * 10_000}})
            await database.sweep()
            with pytest.raises(ChangesLost):
                await next_change(feed)


async def test_large_changes_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    async with SqliteDatabase(tmp_path / "state.db", SystemClock()) as database:
        await database.ensure(COLLECTIONS)
        token = await database.now()
        text = "x" * 900_000
        for number in range(8):
            await insert(database, "things", {f"d/{number}": {"text": text}})
        assert [change.key for change in await up_to_now(database, token)] == [f"d/{number}" for number in range(8)]


async def test_a_damaged_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"no database " * 1_000)
    with pytest.raises(DatabaseUnavailable, match="is damaged") as caught:
        await SqliteDatabase(path, SystemClock()).__aenter__()
    assert caught.value.code == "database_unavailable"
    assert path.read_bytes() == b"no database " * 1_000


async def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DatabaseUnavailable, match="cannot be made"):
        await SqliteDatabase(tmp_path / "file" / "state.db", SystemClock()).__aenter__()


async def test_a_folder_that_takes_no_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.symlink_to(tmp_path / "gone" / "state.db")  # root may write everywhere, but not into what is not there
    with pytest.raises(DatabaseUnavailable) as caught:
        await SqliteDatabase(path, SystemClock()).__aenter__()
    why = "No such file or directory"
    assert caught.value.message == f"{path} cannot be made ({why}): check the disk and the folder's rights, then retry"


async def test_it_must_be_open(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "state.db", SystemClock())
    with pytest.raises(DatabaseUnavailable, match="not open"):
        await database.ensure(COLLECTIONS)
    async with database:
        await database.ensure(COLLECTIONS)
        feed = database.changes(await database.now())
        waiting = asyncio.ensure_future(next_change(feed))
        await asyncio.sleep(0.05)
    with pytest.raises(DatabaseUnavailable, match="not open"):
        await waiting
    for asking in (database.get("things", "d/a"), database.put("things", Write("d/a", None, {})), database.ready()):
        with pytest.raises(DatabaseUnavailable, match="not open"):
            await asking


async def test_a_full_disk_is_told_and_survived(small_disk: Path) -> None:
    async with SqliteDatabase(small_disk / "data" / "state.db", SystemClock()) as database:
        await database.ensure(COLLECTIONS)
        token = await database.now()
        kept = await fill(database)
        assert kept > 3
        with pytest.raises(DatabaseUnavailable, match="no room") as caught:
            await database.put("things", Write("d/more", None, {"text": "x" * 200_000}))
        assert caught.value.retry
        assert len(await database.scan("things")) == kept
        await asyncio.to_thread(
            subprocess.run, ["mount", "-o", "remount,size=64m", str(small_disk)], check=True, capture_output=True
        )
        await database.ready()
        await insert(database, "things", {"d/more": {}})
        assert [change.key for change in await up_to_now(database, token)] == [
            *(f"d/{number:03}" for number in range(kept)),
            "d/more",
        ]
