"""Health over many devices: documents, silence by the clock, and streams in which nothing arrives any more."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from iotsphere.drivers.spark.alerts import MET
from iotsphere.drivers.spark.folds import Moment
from iotsphere.drivers.spark.jobs import Announcement, Run
from iotsphere.drivers.spark.jobs.health import JOB, examined, time_of
from iotsphere.drivers.spark.memories import Memories
from iotsphere.drivers.spark.schema import SPARK_SCHEMA
from iotsphere.entities.analytics.health import HealthRule
from iotsphere.entities.errors import RequestInvalid
from tests.support.readings import make

from .stores import Embedded

SECOND = 1_000_000
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RULE = HealthRule()
FLEET = make(
    readings=4_000, devices=4, period_s=60, metrics=("temperature", "battery"), seed=3, late=0, duplicate=0, silent=0.05
)


def table(rows: Iterable[tuple[str, int, float | None]]) -> pa.Table:
    """Rows of device, second and battery; their order is that of the log."""
    every = list(rows)
    seconds = pa.array([row[1] * SECOND for row in every], pa.int64())
    return pa.table(
        {
            "device": pa.array([row[0] for row in every], pa.string()),
            "at": seconds,
            "received": seconds,
            "offset": pa.array(range(len(every)), pa.int64()),
            "untrusted": pa.array([False] * len(every)),
            "charge": pa.array([row[2] for row in every], pa.float64()),
        }
    )


def test_metrics_of_one_message_count_as_one() -> None:
    rows = table([("d/a", second, charge) for second in range(0, 100, 10) for charge in (None, 80.0)])
    offsets = pa.array([number // 2 for number in range(20)], pa.int64())
    rows = rows.set_column(rows.column_names.index("offset"), "offset", offsets)
    (found,) = examined(Memories(), rows, RULE, 100 * SECOND).to_pylist()
    assert (found["messages"], found["cadence_s"], found["battery"], found["state"]) == (10, 10.0, 80.0, "online")
    assert (found["first_offset"], found["last_offset"], found["change"]) == (0, 9, MET)


def test_samples_of_one_message_are_one_sign_of_life_and_fill_what_was_left_out() -> None:
    """A device that measures every ten seconds and sends what it has once in ten minutes, and one bundle late."""
    rows = [("d/a", 600 * bundle + second, 90.0 - bundle) for bundle in range(8) for second in range(0, 600, 10)]
    late = rows[240:300]
    given = rows[:240] + rows[300:] + late
    messages = table(given)
    offsets = [number // 60 for number in range(len(given))]
    received = [(given[60 * offset + 59][1] if offset < 7 else 4_800) * SECOND for offset in offsets]
    for name, column in (("offset", offsets), ("received", received)):
        messages = messages.set_column(messages.column_names.index(name), name, pa.array(column, pa.int64()))
    memories = Memories()
    (found,) = examined(memories, messages, RULE, 4_800 * SECOND).to_pylist()
    assert (found["messages"], found["cadence_s"], found["state"]) == (8, 600.0, "online")
    assert (found["first_event"], found["last_event"]) == (0, 4_790 * SECOND)
    assert (found["gaps"], found["uptime"], found["battery"]) == (0, 1.0, 83.0)
    nothing = table([])
    assert examined(memories, nothing, RULE, (4_800 + 2_999) * SECOND).num_rows == 0
    assert examined(memories, nothing, RULE, (4_800 + 3_001) * SECOND).to_pylist()[0]["change"] == "raised"


def test_silence_begins_by_the_clock_and_ends_with_a_message() -> None:
    memories = Memories()
    examined(memories, table([("d/a", second, None) for second in range(0, 300, 10)]), RULE, 300 * SECOND)
    nothing = table([])
    assert examined(memories, nothing, RULE, 349 * SECOND).num_rows == 0
    (begun,) = examined(memories, nothing, RULE, 351 * SECOND).to_pylist()
    assert (begun["state"], begun["change"], begun["silent_since"]) == ("silent", "raised", 290 * SECOND)
    assert begun["changed_at"] == 350 * SECOND  # the same whenever it is noticed
    assert examined(memories, nothing, RULE, 400 * SECOND).num_rows == 0
    memories = Memories.load(memories.dump())
    (ended,) = examined(memories, table([("d/a", 500, None)]), RULE, 501 * SECOND).to_pylist()
    assert (ended["state"], ended["change"], ended["silent_since"]) == ("online", "cleared", 290 * SECOND)
    assert ended["gap_s"] == 210.0


def test_who_reads_the_past_sees_no_silence_in_it() -> None:
    """A stream that has fallen behind: the time is that of its messages, until none come any more."""
    messages = table([*[("d/a", second, None) for second in range(0, 300, 10)], ("", 350, None), ("", 290, None)])
    assert time_of(messages, Moment(10**15, whole=False)) == 290 * SECOND  # of the part that is the farthest behind
    assert time_of(table([]), Moment(10**15, whole=False)) == 10**15


def readings(spark: SparkSession, of: Mapping[str, Iterable[int]], folder: Path | None = None) -> DataFrame:
    """Readings of devices at these minutes after noon; as a file where a folder is named."""
    minutes = sorted((minute, device) for device, some in of.items() for minute in some)
    rows: list[tuple[Any, ...]] = [
        ("d", device, "t", 1.0, None, None, None, at, at, 0, [], f"{device}/{minute}", 0, minute, 0)
        for minute, device in minutes
        for at in (NOON + timedelta(minutes=minute),)
    ]
    frame = spark.createDataFrame(rows, SPARK_SCHEMA)
    if folder is not None:
        frame.coalesce(1).write.mode("append").parquet(str(folder))
    return frame


def past(folder: Path) -> Run:
    return Run(JOB.settings({}), "app", False, Path(), str(folder))


def test_a_stream_that_catches_up_judges_nobody_by_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    """Days ago: a device that speaks once an hour is in one batch of three, and its bucket is woken in the others."""
    for start in range(0, 80, 20):
        often = {f"often-{number}": range(start, start + 20) for number in range(2)}
        seldom = {f"seldom-{number}": [start] for number in range(6) if start % 60 == 0}
        readings(spark, {**often, **seldom}, tmp_path / "log")
    told: list[Announcement] = []

    def announce(some: Iterable[Announcement]) -> int:
        told.extend(some)
        return len(told)

    run = Run(JOB.settings({"wake_s": "0.01"}), "app", True, Path(), str(tmp_path / "live"), announce)
    stream = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "log"))
    changes: list[tuple[str, str]] = []

    def keep(frame: DataFrame, number: int) -> None:
        changes.extend((row.device_id, row.change) for row in frame.where("change <> 'met'").collect())
        JOB.write(frame, run, number)

    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    try:
        query = (
            JOB.transform(stream, run)
            .writeStream.outputMode(JOB.mode)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(keep)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    assert (changes, told) == ([], [])
    assert len(Embedded(run.database).read("health")) == 8


def test_a_later_pass_that_knows_less_of_the_past_is_what_counts(spark: SparkSession, tmp_path: Path) -> None:
    run = past(tmp_path)

    def passed(of: Mapping[str, Iterable[int]]) -> dict[str, Any]:
        JOB.write(JOB.transform(readings(spark, of), run), run, 0)
        return Embedded(run.database).read("health")["d/a"]

    assert passed({"a": range(30)})["lastSeen"] == "2026-03-01T12:29:00Z"
    assert passed({"a": range(40, 60)})["lastSeen"] == "2026-03-01T12:59:00Z"
    assert passed({"a": range(30)})["lastSeen"] == "2026-03-01T12:59:00Z"
    whole = passed({"a": range(60)})
    assert (whole["lastSeen"], whole["messages"]) == ("2026-03-01T12:59:00Z", 60)


def test_a_silence_that_one_pass_found_is_over_for_the_next(spark: SparkSession, tmp_path: Path) -> None:
    run = past(tmp_path)
    begun = readings(spark, {"a": range(30), "b": range(120)})
    counts = [JOB.write(JOB.transform(begun, run), run, 0) for _ in range(2)]
    assert [(each["raised"], each["cleared"]) for each in counts] == [(1, 0), (1, 0)]
    ended = readings(spark, {"a": range(130, 150), "b": range(130, 150)})
    counts = [JOB.write(JOB.transform(ended, run), run, 0) for _ in range(2)]
    assert [(each["raised"], each["cleared"]) for each in counts] == [(0, 1), (0, 0)]
    ((key, alert),) = Embedded(run.database).read("alerts").items()
    assert (key, alert["state"]) == ("d/a/silence/2026-03-01T12:29:00.000000Z", "cleared")
    assert alert["at"] == "2026-03-01T14:29:00Z"


@pytest.mark.parametrize("given", [{"gap": "1"}, {"silent": "0.5"}, {"least_s": "0"}, {"wake_s": "0"}])
def test_options_that_make_no_sense_say_so(given: dict[str, str]) -> None:
    with pytest.raises(RequestInvalid, match="no sense"):
        JOB.settings(given)


def test_a_batch_says_how_each_device_was(spark: SparkSession, tmp_path: Path) -> None:
    FLEET.write(tmp_path / "log", files=2)
    run = Run(JOB.settings({}), "app", False, Path(), str(tmp_path / "past"))
    counts = JOB.write(JOB.transform(spark.read.schema(SPARK_SCHEMA).parquet(str(tmp_path / "log")), run), run, 0)
    assert counts == {"health": 4, "raised": 0, "cleared": 0, "told": 0, "untold": 0}
    found = Embedded(run.database).read("health")
    assert set(found) == {f"iotsphere/meter-0000{number}" for number in range(4)}
    silent = FLEET.faulty("silent").group_by("device_id").aggregate([("message_id", "count")]).to_pylist()
    for row in silent:
        health = found[f"iotsphere/{row['device_id']}"]
        assert health["cadenceSeconds"] == 60.0
        assert 1 <= health["gaps"] <= row["message_id_count"]
        assert health["gapSeconds"] >= 60 * row["message_id_count"] * 0.8
        assert 0.8 < health["uptime"] < 1.0
    expected = {f"iotsphere/meter-0000{n}": -0.02 * 24 * (1 + n % 3) for n in range(4)}
    assert {key: one["batteryPerDay"] for key, one in found.items()} == pytest.approx(expected, rel=0.2)


def test_a_fleet_that_falls_silent_is_noticed_though_nothing_arrives(spark: SparkSession, tmp_path: Path) -> None:
    """The readings are of the past, so all devices are silent for long; only the clock can tell."""
    FLEET.write(tmp_path / "log", files=1)
    told: list[Announcement] = []

    def announce(some: Iterable[Announcement]) -> int:
        told.extend(some)
        return len(told)

    run = Run(JOB.settings({"wake_s": "0.5"}), "app", True, Path(), str(tmp_path / "live"), announce)
    readings = spark.readStream.schema(SPARK_SCHEMA).parquet(str(tmp_path / "log"))

    def keep(frame: DataFrame, number: int) -> None:
        JOB.write(frame, run, number)

    query = (
        JOB.transform(readings, run)
        .writeStream.outputMode(JOB.mode)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(keep)
        .start()
    )
    try:
        deadline = time.monotonic() + 300
        while len(told) < 4:
            assert time.monotonic() < deadline, query.exception()
            time.sleep(0.05)
    finally:
        query.stop()
    assert {one.payload["device"] for one in told} == {f"meter-0000{number}" for number in range(4)}
    assert {(one.payload["state"], one.payload["kind"]) for one in told} == {("raised", "silence")}
    kept = Embedded(run.database)
    assert {one["state"] for one in kept.read("health").values()} == {"silent"}
    assert len(kept.read("alerts")) == 4
