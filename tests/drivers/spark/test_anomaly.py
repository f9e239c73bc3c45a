"""Anomalies over many series: what is remembered in between, what is too old, and the alerts that are kept and told."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from iotsphere.drivers.spark.jobs import Announcement, Run
from iotsphere.drivers.spark.jobs.anomaly import JOB, judged
from iotsphere.drivers.spark.memories import FORGOTTEN_US, Memories
from iotsphere.drivers.spark.schema import SPARK_SCHEMA
from iotsphere.entities.analytics.detector import DetectorRule
from iotsphere.entities.errors import RequestInvalid
from tests.support.readings import OUT_OF_RANGE, make

from .stores import Embedded

SECOND = 1_000_000
RULE = DetectorRule(window=48, warm_up=16)
OLD = 600 * SECOND
FLEET = make(readings=6_000, devices=5, period_s=60, metrics=("temperature",), seed=3, out_of_range=0.01, late=0)


def table(rows: Iterable[tuple[str, int, float, int]]) -> pa.Table:
    """Rows of series, second measured, value and second received; their order is that of the log."""
    every = list(rows)
    return pa.table(
        {
            "series": pa.array([row[0] for row in every], pa.string()),
            "at": pa.array([row[1] * SECOND for row in every], pa.int64()),
            "received": pa.array([row[3] * SECOND for row in every], pa.int64()),
            "offset": pa.array(range(len(every)), pa.int64()),
            "sample": pa.array([0] * len(every), pa.int64()),
            "value": pa.array([row[2] for row in every], pa.float64()),
        }
    )


def calm(series: str, start: int, length: int) -> list[tuple[str, int, float, int]]:
    return [(series, second, 20 + (second * 7 % 10) / 10, second) for second in range(start, start + length)]


def test_each_series_is_measured_by_itself_wherever_a_batch_ends() -> None:
    rows = [*calm("d/a/t", 0, 50), ("d/a/t", 50, 90.0, 50), *calm("d/a/t", 51, 20), *calm("d/b/t", 0, 60)]
    rows.sort(key=lambda row: row[1])
    expected = judged(Memories(), table(rows), RULE, OLD).to_pylist()
    assert [(row["device_id"], row["change"], row["at"] // SECOND) for row in expected] == [
        ("a", "raised", 50),
        ("a", "cleared", 55),
    ]
    memories, found = Memories(), []
    for start in range(0, len(rows), 7):
        found += judged(memories, table(rows[start : start + 7]), RULE, OLD).to_pylist()
        memories = Memories.load(memories.dump())
    assert [{**row, "offset": 0} for row in found] == [{**row, "offset": 0} for row in expected]


def test_a_backlog_raises_nothing_and_clears_nothing() -> None:
    memories = Memories()
    judged(memories, table(calm("d/a/t", 0, 50)), RULE, OLD)
    backlog = [("d/a/t", 50 + second, 90.0, 5_000) for second in range(10)]
    assert judged(memories, table(backlog), RULE, OLD).num_rows == 0
    older = [("d/a/t", 5 + second, -500.0, 5_001) for second in range(10)]
    assert judged(memories, table(older), RULE, OLD).num_rows == 0


def test_memory_is_bounded_and_what_is_gone_for_good_is_forgotten() -> None:
    memories = Memories()
    sizes = set()
    for start in range(0, 400, 50):
        judged(memories, table(calm("d/a/t", start, 50)), RULE, OLD)
        sizes.add(len(memories["d/a/t"][1]))
    assert max(sizes) == len(memories["d/a/t"][1]) < 48 * 16 + 400
    later = FORGOTTEN_US // SECOND + 400
    judged(memories, table(calm("d/b/t", later, 5)), RULE, OLD)
    assert set(memories) == {"d/b/t"}


@pytest.mark.parametrize(
    "given", [{"high": "2", "low": "3"}, {"window": "4"}, {"warm_up": "500"}, {"calm": "0"}, {"confirm": "4"}]
)
def test_options_that_make_no_sense_say_so(given: dict[str, str]) -> None:
    with pytest.raises(RequestInvalid, match="no sense"):
        JOB.settings(given)


def test_alerts_are_kept_and_told_once_each(spark: SparkSession, tmp_path: Path) -> None:
    """Each reading out of range is one alert; a batch over the past keeps the same ones, and tells nobody."""
    FLEET.write(tmp_path / "log", files=3)
    told: list[Announcement] = []

    def announce(some: Iterable[Announcement]) -> int:
        new = list(some)
        told.extend(new)
        return len(new)

    run = Run(JOB.settings({}), "app", True, Path(), str(tmp_path / "live"), announce)
    readings = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "log"))

    def keep(frame: DataFrame, number: int) -> None:
        JOB.write(frame, run, number)

    query = (
        JOB.transform(readings, run)
        .writeStream.outputMode(JOB.mode)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(keep)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    kept = Embedded(run.database).read("alerts")
    planted = {row["device_id"] + str(row["event_time"]) for row in FLEET.faulty("out_of_range").to_pylist()}
    wild = [alert for alert in kept.values() if alert["value"] == OUT_OF_RANGE or alert["state"] == "cleared"]
    assert len(planted) - 12 <= len(wild) <= len(planted)  # those of the warm-up, and two in a row, are none
    assert len({one.key for one in told}) == len(told)
    assert sum(one.payload["state"] == "raised" for one in told) == len(kept)
    assert {one.topic for one in told} == {"alerts"}
    some = told[0].payload
    assert (some["state"], some["metric"], some["value"], some["kind"]) == (
        "raised",
        "temperature",
        OUT_OF_RANGE,
        some["kind"],
    )
    past = Run(JOB.settings({}), "app", False, Path(), str(tmp_path / "past"))
    counts = JOB.write(JOB.transform(spark.read.schema(SPARK_SCHEMA).parquet(str(tmp_path / "log")), past), past, 0)
    assert Embedded(past.database).read("alerts") == kept
    assert (counts["raised"], counts["told"]) == (len(kept), 0)
