"""`iotsphere spark --lag`: an operator sees what waits for a job, whether it runs or not, before retention passes it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from iotsphere.cli.spark_lag import BEHIND, show
from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.spark.checkpoints import Identity, opened
from iotsphere.drivers.spark.places import Offsets, offsets
from iotsphere.drivers.spark.standing import Standing, standing
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.channel import Retention
from iotsphere.entities.position import Partition, Position
from iotsphere.settings import Settings
from iotsphere.spark import open_ranges

from .support.command_line import iotsphere_command
from .support.telemetry import fill_sqlite

P = [Partition("iotsphere", "telemetry", number) for number in range(4)]
DAY = 86_400_000


def read_upto(log: str, offset: int) -> Offsets:
    with open_ranges(log) as ranges:
        return offsets({one: Position(ranges.bounds(one).last.epoch, offset) for one in P})


def stopped(data: Path, place: Offsets | None, job: str = "lake") -> None:
    """What a job leaves that was stopped after its first batch."""
    with opened(
        data / "spark" / job, Identity(job, 1, {}, {"channel": "telemetry", "domain": "iotsphere"})
    ) as checkpoint:
        if place is None:
            return
        for name, text in (("offsets", f"v1\n{{}}\n{json.dumps(place)}"), ("commits", "v1\n{}")):
            (checkpoint.location / name).mkdir()
            (checkpoint.location / name / "0").write_text(text)


def trim(data: Path) -> int:
    """Have retention take most of the first partition, and return its first offset."""

    async def work() -> int:
        async with SqliteLog(data / "log", SystemClock()) as log:
            await log.retain(P[0], Retention(max_bytes=20_000, hard_bytes=20_000), 0)
            return (await log.bounds(P[0])).first.offset

    return asyncio.run(work())


def test_a_job_stands_by_its_oldest_message(tmp_path: Path) -> None:
    log = fill_sqlite(tmp_path, 2_000)
    end = read_upto(log, 10_000)
    with open_ranges(log) as ranges:
        last = {one: ranges.bounds(one).last.offset for one in P}
        now = time.time_ns() // 1_000_000 + DAY
        assert standing(ranges, end, now, 7 * DAY) == Standing(0, 0, None, 0)
        early = standing(ranges, read_upto(log, 3), now, 7 * DAY)
        assert (early.waiting, early.lost, early.is_behind) == (2_000 - 12, 0, False)
        assert DAY <= early.age_ms < DAY + 600_000
        assert early.left_ms == 7 * DAY - early.age_ms
        assert standing(ranges, read_upto(log, 3), now, 2 * DAY - 1).is_behind
        assert standing(ranges, read_upto(log, 3), now, DAY - 1).left_ms == 0
    first = trim(tmp_path)
    with open_ranges(log) as ranges:
        late = standing(ranges, read_upto(log, 3), now, 7 * DAY)
        assert (late.waiting, late.lost) == (sum(last.values()) - 9 - (first - 1), first - 1 - 3)
        assert late.left_ms == 0  # the log holds as much as it may, and what waits is the oldest of it


async def test_each_job_is_told_with_an_exit_code_for_whoever_watches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = await asyncio.to_thread(fill_sqlite, tmp_path, 2_000)
    data = ("--data", str(tmp_path))
    (tmp_path / "spark" / "work").mkdir(parents=True)
    assert "there is no checkpoint" in await iotsphere_command("spark", "--lag", *data, expect=2)
    stopped(tmp_path, read_upto(log, 3))
    stopped(tmp_path, None, "health")
    rows = [json.loads(line) for line in (await iotsphere_command("spark", "--lag", "--json", *data)).splitlines()]
    assert [(row["job"], row["running"], row["waiting"], row["gone"], row["behind"]) for row in rows] == [
        ("health", False, None, 0, False),
        ("lake", False, 1_988, 0, False),
    ]
    told = await iotsphere_command("spark", "--lag", *data)
    assert "health    stopped  nothing is done yet" in told
    assert "lake      stopped  1,988 waiting  the oldest for " in told
    assert "7.0 days until it goes" in told
    with opened(
        tmp_path / "spark" / "health", Identity("health", 1, {}, {"channel": "telemetry", "domain": "iotsphere"})
    ):
        (row,) = (await iotsphere_command("spark", "health", "--lag", "--json", *data)).splitlines()
        assert json.loads(row)["running"] is True
    assert show(Settings(data=tmp_path, retention_days=1e-7), "lake", None, as_json=False) == BEHIND == 5
    assert "lake: more than half of the time is over" in " ".join(capsys.readouterr().err.split())
    await asyncio.to_thread(trim, tmp_path)
    assert "lake: messages went unread" in await iotsphere_command("spark", "--lag", *data, expect=3)
