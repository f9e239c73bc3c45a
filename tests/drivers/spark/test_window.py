"""The window of readings that a stream keeps: what came in it stays, however old it was, and what came before it goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from iotsphere.adapters.edge import Edge
from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.spark import window
from iotsphere.drivers.spark.findings import findings
from iotsphere.drivers.spark.jobs import Job, Run, lake, quality, report
from iotsphere.drivers.spark.runner import Plan, Runner
from iotsphere.drivers.spark.schema import ARROW_SCHEMA, SPARK_SCHEMA
from iotsphere.drivers.spark.sinks.delta import DeltaLake
from iotsphere.drivers.spark.sinks.upkeep import MANY
from iotsphere.drivers.spark.window import FOLDER, Kept
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.principal import device
from iotsphere.spark import IotSphereSource
from tests.support.telemetry import CHANNELS, DOMAIN

from .lakes import content, data_files

pytestmark = pytest.mark.timeout(600)  # the first of them starts Spark
MINUTE = timedelta(minutes=1)
DAYS = 1.0
LONG_AGO = timedelta(days=5)  # more than the window and what its upkeep leaves besides
Rows = Callable[..., DataFrame]


@pytest.fixture(autouse=True)
def _tidied_after_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "UPKEEP_S", 0.0)


@pytest.fixture
def rows(spark: SparkSession) -> Rows:
    """Makes readings of one partition: offset, how long ago it was measured, how long ago it came."""
    now = datetime.now(UTC)

    def make(*given: tuple[int, timedelta, timedelta]) -> DataFrame:
        made: list[tuple[Any, ...]] = []
        for offset, measured, came in given:
            marks = ["late"] if measured > came + 10 * MINUTE else []
            times = now - measured, now - came
            made.append(
                ("d", f"dev{offset}", "t", 1.0, None, None, None, *times, None, marks, f"m{offset}", 0, offset, 0)
            )
        return spark.createDataFrame(made, SPARK_SCHEMA)

    return make


def run_to(folder: Path, job: Job = quality.JOB, **options: Any) -> Run:
    settings = job.settings({}) | {"days": DAYS, "every_s": 0.0} | options
    return Run(settings, "app", True, folder, database="")


def offsets(held: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in held.select("offset").collect())


def on_disk(folder: Path) -> list[int]:
    return list(content(folder / FOLDER)["offset"].to_pylist())


def found_in(folder: Path) -> list[dict[str, Any]]:
    return list(pq.read_table(folder / "findings.parquet").to_pylist())


def test_what_came_in_the_window_stays_however_old_it_was(spark: SparkSession, tmp_path: Path, rows: Rows) -> None:
    """Measured 20 days ago, received now: kept by the upkeep, not taken for a hole in the log, and told as late."""
    given = rows((1, 2 * MINUTE, MINUTE), (2, timedelta(days=20), MINUTE), (3, MINUTE, MINUTE))
    run = run_to(tmp_path)
    for number in range(2):  # the second finds what the upkeep of the first left
        counts = quality.JOB.write(quality.JOB.transform(given, run), run, number)
        assert (counts["rows"], counts["known"], counts["looks"]) == ((3, 0, 1), (0, 3, 1))[number]
        assert (counts["findings"], counts["late"]) == ((1, 1), (0, 0))[number], "summed up, what the last look found"
    assert on_disk(tmp_path) == offsets(Kept(tmp_path, DAYS).readings(spark)) == [1, 2, 3]
    assert [(row["kind"], row["device_id"], row["count"]) for row in found_in(tmp_path)] == [("late", "dev2", 1)]
    assert len(found_in(tmp_path)) == findings(given).count()


def test_what_came_before_the_window_goes_from_what_is_looked_at_and_then_from_the_disk(
    spark: SparkSession, tmp_path: Path, rows: Rows
) -> None:
    """A window that begins with a log of long ago, of which some was old already when it came."""
    two_days, long = timedelta(days=2), LONG_AGO
    Kept(tmp_path, 30.0).add(
        rows((1, long, long), (2, long + timedelta(days=20), long), (3, two_days, two_days), (4, long, MINUTE)),
        run_to(tmp_path),
        0,
    )
    assert on_disk(tmp_path) == [1, 2, 3, 4]
    kept = Kept(tmp_path, DAYS)
    assert offsets(kept.readings(spark)) == [4]
    kept.add(rows((5, MINUTE, MINUTE)), run_to(tmp_path), 1)
    assert offsets(kept.readings(spark)) == [4, 5]
    assert on_disk(tmp_path) == [3, 4, 5]  # whole dates go, two days later, so that none goes too soon


@pytest.mark.parametrize("came", [LONG_AGO, timedelta(days=2)], ids=["gone", "out of the window"])
def test_a_window_that_has_emptied_has_no_findings_and_says_so(
    spark: SparkSession, tmp_path: Path, rows: Rows, came: timedelta
) -> None:
    run = run_to(tmp_path / "quality")
    Kept(run.output, 30.0).add(rows((1, came, came), (3, came + timedelta(days=20), came)), run, 0)
    quality.save(pa.table({"kind": ["hole"]}), run.output)
    once_more = rows((1, came, came))
    for _ in range(2):  # the same batch again, also when the table has no file at all
        counts = quality.JOB.write(quality.JOB.transform(once_more, run), run, 1)
        assert counts["looks"] == 1
        assert offsets(Kept(run.output, DAYS).readings(spark)) == []
        table = pq.read_table(run.output / "findings.parquet")
        assert (table.num_rows, table.column_names[:2]) == (0, ["kind", "domain"])
    assert on_disk(run.output) == ([] if came == LONG_AGO else [1, 3])
    paged = run_to(tmp_path / "report", report.JOB)
    assert report.JOB.write(report.JOB.transform(once_more, paged), paged, 0)["pages"] == 1
    assert "No reading was received in this range." in (paged.output / "index.html").read_text(encoding="utf-8")
    fresh = rows((4, timedelta(days=20), MINUTE))
    assert quality.JOB.write(quality.JOB.transform(fresh, run), run, 2)["looks"] == 1
    assert [(row["kind"], row["device_id"]) for row in found_in(run.output)] == [("late", "dev4")]


def test_a_table_with_nothing_in_it_is_an_empty_window(spark: SparkSession, tmp_path: Path, rows: Rows) -> None:
    """What a first batch leaves that brought nothing, or that a crash cut off."""
    kept = Kept(tmp_path, DAYS)
    assert kept.add(rows((1, MINUTE, MINUTE)).where("false"), run_to(tmp_path), 0)["rows"] == 0
    assert kept.is_due(0)
    assert kept.readings(spark).count() == 0


def test_a_window_that_an_older_release_dated_by_event_loses_nothing(
    spark: SparkSession, tmp_path: Path, rows: Rows
) -> None:
    """Such a date stays until all that it holds came before the window; its stream goes on where it was."""
    day = timedelta(days=1)
    older = rows((1, 8 * day, LONG_AGO), (2, 20 * day, LONG_AGO), (3, 20 * day, MINUTE), (4, 2 * MINUTE, MINUTE))
    DeltaLake(tmp_path / FOLDER).append(lake.transform(older), "app", 0)
    assert len({path.partition("/")[0] for path in data_files(tmp_path / FOLDER)}) == 3
    kept, run = Kept(tmp_path, DAYS), run_to(tmp_path)
    assert kept.add(rows((3, 20 * day, MINUTE), (5, 9 * day, MINUTE)), run, 1)["known"] == 1
    assert on_disk(tmp_path) == [2, 3, 4, 5]
    assert offsets(kept.readings(spark)) == [3, 4, 5]
    restarted = Kept(tmp_path, DAYS)
    assert restarted.add(rows((6, MINUTE, MINUTE)), run, 2)["rows"] == 1
    assert offsets(restarted.readings(spark)) == [3, 4, 5, 6]


def test_joined_files_stay_as_long_as_the_window(spark: SparkSession, tmp_path: Path, rows: Rows) -> None:
    """Many small batches, of events of many days, make one date whose files are joined."""
    kept = Kept(tmp_path, DAYS)
    for number in range(MANY):
        kept.add(rows((number, timedelta(days=2 * number), MINUTE)), run_to(tmp_path), number)
    assert len({path.partition("/")[0] for path in data_files(tmp_path / FOLDER)}) <= 2  # two around midnight
    assert offsets(kept.readings(spark)) == list(range(MANY))


def test_who_reads_the_log_where_it_writes_keeps_old_events_too(spark: SparkSession, tmp_path: Path) -> None:
    """The same of messages in a log, by the way on which the workers read and write at once."""
    ages = [0, 20, 3, 29]

    async def fill() -> None:
        async with SqliteLog(tmp_path / "log", SystemClock()) as log:
            await log.ensure(DOMAIN, CHANNELS)
            edge, now = Edge(SystemClock(), log.partitions), SystemClock().now()
            route = edge.route(device(DOMAIN, "d1"), f"{DOMAIN}/devices/d1/telemetry/level")
            bodies = [json.dumps({"ts": now - age * 86_400_000, "value": age}).encode() for age in ages]
            await log.append([edge.admit(route, body, now) for body in bodies])

    asyncio.run(fill())
    source = {"log": f"sqlite:{tmp_path}"}
    options = quality.JOB.settings({"days": "1", "every_s": "0"})

    def run(application: str, following: bool) -> Run:
        return Run(options, application, following, tmp_path / "out", "")

    done = Runner(spark, Plan(quality.JOB, source, run, tmp_path / "checkpoint"), IotSphereSource)()
    assert (done.messages, done.counts["rows"], done.counts["looks"]) == (4, 4, 1)
    held = Kept(tmp_path / "out", DAYS).readings(spark).toArrow().cast(ARROW_SCHEMA).to_pylist()
    assert {row["value"]: row["quality"] for row in held} == {0.0: [], 3.0: ["late"], 20.0: ["late"], 29.0: ["late"]}
    kinds = {row["kind"]: row["count"] for row in found_in(tmp_path / "out")}
    assert kinds.get("late") == 3
    assert "hole" not in kinds
