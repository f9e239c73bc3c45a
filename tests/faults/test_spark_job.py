"""A job of `iotsphere spark` whose processes are ended, or whose disk is full: it says so, and goes on where it was."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.command_line import running
from tests.support.telemetry import fill_sqlite
from tests.support.waiting import until

LITTLE = ("--conf", "spark.sql.shuffle.partitions=1", "--set", "compact_s=0")


def rows_of(lake: Path) -> list[float]:
    """The values in a lake, sorted."""
    return sorted(DeltaTable(str(lake)).to_pyarrow_table(columns=["value"])["value"].to_pylist())


def java_of(process: int) -> int:
    """The Java that a process has started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    (java,) = (int(child) for child in children if Path(f"/proc/{child}/comm").read_text().strip() == "java")
    return java


async def first_batch(data: Path, commit: int) -> None:
    await until(lambda: list(data.glob(f"spark/lake/*/commits/{commit}")), "a batch is committed", within=200)


@pytest.mark.slow
@pytest.mark.timeout(800)
async def test_java_killed_alone_is_told_and_a_service_stopped_at_once_ends_in_order(tmp_path: Path) -> None:
    """Kill -9 of Java; then TERM to all processes at the same moment, as systemd and `timeout` send it."""
    words = ("spark", "lake", "--follow", "--data", str(tmp_path), *LITTLE)
    await asyncio.to_thread(fill_sqlite, tmp_path, 50)
    async with running(*words) as job:
        await first_batch(tmp_path, 0)
        os.kill(java_of(job.pid), signal.SIGKILL)
        _, err = await job.communicate()
    assert job.returncode == 1, err.decode()
    assert "unavailable: Spark's own process has ended" in err.decode()
    assert "Traceback" not in err.decode()

    await asyncio.to_thread(fill_sqlite, tmp_path, 50, start=50)
    async with running(*words) as job:
        await first_batch(tmp_path, 1)
        os.killpg(job.pid, signal.SIGTERM)
        out, err = await job.communicate()
    assert job.returncode == 0, err.decode()
    assert {line.split()[0] for line in err.decode().splitlines()} <= {"lake", "stopping"}, (
        "Spark's words are in a file"
    )
    assert (tmp_path / "spark" / "work" / "lake.log").stat().st_size > 0
    assert "stopped on request" in out.decode()
    assert rows_of(tmp_path / "lake") == list(range(100))


@pytest.mark.slow
@pytest.mark.timeout(800)
async def test_a_full_disk_is_told_and_no_reading_is_lost_or_doubled(tmp_path: Path, small_disk: Path) -> None:
    lake = small_disk / "lake"
    words = (
        "spark",
        "lake",
        "--checkpoint",
        str(tmp_path / "place"),
        "--output",
        str(lake),
        "--data",
        str(tmp_path),
        "--json",
    )
    await asyncio.to_thread(fill_sqlite, tmp_path, 500)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free))
    async with running(*words, *LITTLE) as job:
        _, err = await job.communicate()
    assert job.returncode == 1, err.decode()
    assert "unavailable: a disk is full: make room" in err.decode()

    filler.unlink()
    async with running(*words, *LITTLE) as job:
        out, err = await job.communicate()
    assert job.returncode == 0, err.decode()
    summary = json.loads(out)
    assert (summary["ended"], summary["messages"]) == ("done", 500)
    assert rows_of(lake) == list(range(500))
