"""Rollups that begin in the middle of a day, from a real log: the rows of that day are whole all the same."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.spark.jobs import Run
from iotsphere.drivers.spark.jobs.rollup import COLLECTION, JOB
from iotsphere.drivers.spark.progress import Progress
from iotsphere.drivers.spark.runner import Plan, Runner
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.spark import IotSphereSource
from tests.support.telemetry import CHANNELS, DOMAIN, records_of

from .stores import Embedded

pytestmark = pytest.mark.timeout(600)  # the first of them starts Spark
YESTERDAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)


def at(hour: float) -> datetime:
    return YESTERDAY + timedelta(hours=hour)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A reading every half hour, from four hours before yesterday until its eighteenth hour."""
    data = tmp_path_factory.mktemp("data")

    async def work() -> None:
        clock = ManualClock(int(at(-4).timestamp() * 1_000))
        async with SqliteLog(data / "log", clock) as log:
            await log.ensure(DOMAIN, CHANNELS)
            for index in range(44):
                await log.append(records_of(log, 1, start=index, devices=1, clock=clock))
                clock.advance(1_800_000)

    asyncio.run(work())
    return f"sqlite:{data}"


def passed(
    spark: SparkSession,
    log: str,
    database: Path,
    source: dict[str, str],
    checkpoint: Path | None = None,
    **options: str,
) -> Progress:
    def run_to(application: str, following: bool) -> Run:
        return Run(JOB.settings(options), application, following, Path(), str(database))

    return Runner(spark, Plan(JOB, {"log": log, **source}, run_to, checkpoint), IotSphereSource)()


def rows(database: Path, resolution: str) -> dict[str, tuple[int, float]]:
    """Count and sum of the rows of a resolution, by their start."""
    found: dict[str, dict[str, Any]] = Embedded(str(database)).read(COLLECTION)
    return {
        key.rpartition("/")[2]: (one["count"], one["sum"]) for key, one in found.items() if f"/{resolution}/" in key
    }


def day(hour: float) -> str:
    return f"{at(hour):%Y-%m-%dT%H:%M:%SZ}"


def test_one_pass_an_hour_keeps_the_row_of_the_day_whole(spark: SparkSession, log: str, tmp_path: Path) -> None:
    for hour in (10, 11, 14):
        # The hours between are not asked for, and the row of the day has them.
        done = passed(spark, log, tmp_path, {"from": at(hour - 1).isoformat(), "to": at(hour).isoformat()})
        assert rows(tmp_path, "1d") == {day(0): (2 * hour, sum(range(8, 8 + 2 * hour)))}
        assert (done.messages, done.counts["rollups_that_stayed"]) == (2 * hour, 0)
    assert rows(tmp_path, "1h") == {day(hour): (2, 2 * (8 + 2 * hour) + 1) for hour in range(14)}
    assert passed(spark, log, tmp_path, {"from": at(9).isoformat(), "to": at(11).isoformat()}).counts == {
        "rollups": 22 + 11, "rollups_that_stayed": 1,
    }  # fmt: skip
    assert rows(tmp_path, "1d") == {day(0): (28, sum(range(8, 36)))}


def test_a_zone_that_fits_no_device_is_told(spark: SparkSession, log: str, tmp_path: Path) -> None:
    done = passed(spark, log, tmp_path, {"from": at(17).isoformat()}, zones="elsewhere-*=Europe/Berlin,*=UTC")
    assert done.counts["zones_unused"] == 1
    assert rows(tmp_path, "1d") == {day(0): (36, sum(range(8, 44)))}


def test_a_checkpoint_that_began_within_a_day_knows_where_when_it_goes_on(
    spark: SparkSession, log: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    passed(spark, log, tmp_path, {"from": at(9).isoformat()}, checkpoint)
    assert rows(tmp_path, "1d") == {day(0): (36, sum(range(8, 44)))}
    assert rows(tmp_path, "late") == {}
    done = passed(spark, log, tmp_path, {"from": at(17).isoformat()}, checkpoint)
    assert done.messages == 0


def test_who_begins_at_offsets_reads_what_is_asked_for(spark: SparkSession, log: str, tmp_path: Path) -> None:
    first = passed(spark, log, tmp_path, {"from": "earliest", "to": at(9).isoformat()})
    passed(spark, log, tmp_path / "rest", {"from": json.dumps(first.place)})
    assert rows(tmp_path / "rest", "1d") == {day(0): (18, sum(range(26, 44)))}
