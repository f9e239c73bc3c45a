"""Several processes write to one database, and are killed at it: no update is lost, and each is told once."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.sqlite.database import SqliteDatabase
from iotsphere.use_cases.ports.database import Change, Stored

from .counting import COUNTERS, SHARED, TASKS

HERE = Path(__file__).parent


def start(path: Path, name: str, most: int = 0) -> subprocess.Popen[bytes]:
    """Start a process that counts."""
    return subprocess.Popen(
        [sys.executable, str(HERE / "counting.py"), str(path), name, str(most)],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[2] / "src")},
        stdout=subprocess.PIPE,
    )


def count_until_killed(path: Path, lines: int) -> dict[str, int]:
    """Let two processes count until so many lines were seen, kill both, and return the highest numbers they printed."""
    printed = b""
    with start(path, "one") as first, start(path, "two") as second:
        try:
            assert first.stdout is not None
            assert second.stdout is not None
            for child in (first, second):
                assert child.stdout is not None
                printed += b"".join(child.stdout.readline() for _ in range(lines))
        finally:
            first.kill()
            second.kill()
        for child in (first, second):
            assert child.stdout is not None
            printed += child.stdout.read().rpartition(b"\n")[0] + b"\n"  # the last line may be cut
    numbers: dict[str, int] = {}
    for line in printed.decode().split("\n"):
        key, _, number = line.partition(" ")
        if number:
            numbers[key] = max(numbers.get(key, 0), int(number))
    return numbers


async def history(database: SqliteDatabase, token: str) -> dict[str, list[Change]]:
    """All changes after a token, per document."""
    changes: dict[str, list[Change]] = {}
    async for change in database.changes(token):
        if change.kind == "quiet":
            return changes
        changes.setdefault(change.key, []).append(change)
    raise AssertionError("a feed has no end")


def check(changes: dict[str, list[Change]], documents: list[Stored]) -> None:
    """Each document counts without a hole, and its changes end where it stands."""
    assert {document.key for document in documents} == set(changes)
    for document in documents:
        seen = changes[document.key]
        assert [change.revision for change in seen] == list(range(1, len(seen) + 1))
        assert [change.after for change in seen] == [{"n": number} for number in range(1, len(seen) + 1)]
        assert [change.before for change in seen[1:]] == [change.after for change in seen[:-1]]
        assert seen[-1].after == document.body
        assert seen[-1].revision == document.revision


async def test_no_update_of_three_processes_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with SqliteDatabase(path, SystemClock()) as database:
        await database.ensure([COUNTERS])
        token = await database.now()
        children = [start(path, name, 20) for name in ("one", "two", "three")]
        try:
            async with asyncio.timeout(300):
                for child in children:
                    await asyncio.to_thread(child.communicate)
        finally:
            for child in children:
                child.kill()
        assert [child.returncode for child in children] == [0, 0, 0]
        shared = await database.get(COUNTERS.name, SHARED)
        assert shared == Stored(SHARED, 3 * TASKS * 20, {"n": 3 * TASKS * 20})
        check(await history(database, token), list(await database.scan(COUNTERS.name)))


@pytest.mark.slow
async def test_what_was_answered_before_a_kill_is_there_and_told(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with SqliteDatabase(path, SystemClock()) as database:
        await database.ensure([COUNTERS])
        token = await database.now()
    lines = random.Random(3)
    answered: dict[str, int] = {}
    for _ in range(4):
        answered |= await asyncio.to_thread(count_until_killed, path, lines.randint(20, 400))
    async with SqliteDatabase(path, SystemClock()) as database:
        await database.ensure([COUNTERS])
        documents = list(await database.scan(COUNTERS.name))
        standing = {document.key: document.body["n"] for document in documents}
        assert all(number <= standing[key] for key, number in answered.items())
        check(await history(database, token), documents)
