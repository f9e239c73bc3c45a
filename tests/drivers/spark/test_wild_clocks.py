"""A device whose clock runs wild spoils nothing that is said of any other: no finding, and no document of its health."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from iotsphere.drivers.spark.jobs import Run, health, quality
from iotsphere.drivers.spark.runner import CLOCK_BATCHES
from iotsphere.drivers.spark.schema import SPARK_SCHEMA
from tests.support.readings import SCHEMA, TIME, Fleet, Plan, make

from .lakes import frame
from .stores import Embedded

pytestmark = pytest.mark.timeout(600)  # the first of them starts Spark
WILD = "meter-00002"
# More devices than there are buckets, so that others share the memory of the wild one.
PLAN = Plan(readings=9_600, devices=40, metrics=("temperature", "battery"), seed=5, silent=0.03, duplicate=0.02)
YEARS = tuple(int(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1e6) for year in (2099, 1970))
KINDS = ("marked by the source", "of another origin")


def wild(rows: pa.Table, kind: str) -> pa.Table:
    """The same rows; the clock of one device says 2099 and 1970 by turns."""
    here = pc.equal(rows["device_id"], WILD)
    received = rows["received_time"].cast(pa.int64())
    clock = pa.array(np.resize(YEARS, len(rows)))
    skew = pc.divide(pc.subtract(clock, received), 1_000)
    if kind == "of another origin":
        changed = {"event_time": clock.cast(TIME), "skew_ms": pa.nulls(len(rows), pa.int64())}
    else:
        marks = pa.array([["clock_untrusted"]] * len(rows), SCHEMA.field("quality").type)
        changed = {"event_time": rows["received_time"], "skew_ms": skew, "quality": marks}
    for name, column in changed.items():
        at = rows.column_names.index(name)
        rows = rows.set_column(at, SCHEMA.field(name), _chosen(here, column, rows[name]))
    return rows


def _chosen(here: pa.ChunkedArray, yes: Any, no: pa.ChunkedArray) -> pa.Array:
    both = pa.concat_arrays(
        [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in (yes, no)]
    )
    numbers = np.arange(len(no))
    return both.take(pa.array(np.where(here.to_numpy(), numbers, numbers + len(no))))


@pytest.fixture(scope="module")
def sane() -> pa.Table:
    """A fleet that began to send some hours ago, so that a window of a day holds all of it."""
    rows = make(PLAN, start=datetime.now(UTC) - timedelta(hours=4)).rows
    assert pc.sum(pc.equal(rows["device_id"], WILD)).as_py() > 200
    return rows


def test_the_rows_are_as_wild_as_they_should_be(sane: pa.Table) -> None:
    for kind in KINDS:
        rows = wild(sane, kind)
        here = pc.equal(rows["device_id"], WILD)
        assert rows.filter(pc.invert(here)).equals(sane.filter(pc.invert(here)))
        of_one = rows.filter(here)
        if kind == "of another origin":
            assert set(of_one["event_time"].cast(pa.int64()).to_pylist()) == set(YEARS)
        else:
            assert of_one["event_time"].equals(of_one["received_time"])
            assert of_one["quality"].to_pylist() == [["clock_untrusted"]] * len(of_one)


def told(rows: DataFrame, folder: Path, *, following: bool) -> list[dict[str, Any]]:
    """The findings about these readings, in an order of their own; numbers are sums, whose parts come in any order."""
    options = quality.JOB.settings({"days": "1", "every_s": "0"})
    run = Run(options, "app", following, folder, database="")
    quality.JOB.write(quality.JOB.transform(rows, run), run, 0)
    found = pq.read_table(folder / "findings.parquet").to_pylist()
    for finding in found:
        finding["value"] = None if finding["value"] is None else round(finding["value"], 3)
    return sorted(found, key=repr)


@pytest.mark.parametrize("following", [False, True], ids=["batch", "stream"])
def test_no_finding_of_another_device_changes(
    spark: SparkSession, sane: pa.Table, tmp_path: Path, following: bool
) -> None:
    def findings_of(name: str, rows: pa.Table) -> list[dict[str, Any]]:
        return told(frame(spark, rows, tmp_path / f"{name} log"), tmp_path / name, following=following)

    before = findings_of("sane", sane)
    others = [finding for finding in before if finding["device_id"] != WILD]
    assert {"gap", "hole", "late", "duplicate"} <= {finding["kind"] for finding in others}
    messages = len(pc.unique(sane.filter(pc.equal(sane["device_id"], WILD))["message_id"]))
    for kind in KINDS:
        after = findings_of(kind, wild(sane, kind))
        assert [finding for finding in after if finding["device_id"] != WILD] == others
        (of_clock,) = (f for f in after if f["device_id"] == WILD and f["kind"] == "clock_untrusted")
        assert (of_clock["count"], of_clock["value"]) == (messages, 1.0)


@contextmanager
def without_clock_batches(spark: SparkSession) -> Iterator[None]:
    """A stream that wakes by the clock ends when all is read, as that of the runner does."""
    before = str(spark.conf.get(CLOCK_BATCHES))
    spark.conf.set(CLOCK_BATCHES, "false")
    try:
        yield
    finally:
        spark.conf.set(CLOCK_BATCHES, before)


def documents(spark: SparkSession, rows: pa.Table, folder: Path, *, following: bool) -> dict[str, dict[str, Any]]:
    """The documents of health after these readings; in a stream, in two batches."""
    Fleet(rows, rows).write(folder / "log", files=2)
    run = Run(health.JOB.settings({"wake_s": "1e6"}), "app", following, Path(), str(folder / "database"))
    if not following:
        read = spark.read.schema(SPARK_SCHEMA).parquet(str(folder / "log"))
        health.JOB.write(health.JOB.transform(read, run), run, 0)
        return Embedded(run.database).read("health")
    source = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(folder / "log"))

    def keep(part: DataFrame, number: int) -> None:
        health.JOB.write(part, run, number)

    writer = health.JOB.transform(source, run).writeStream.outputMode(health.JOB.mode).foreachBatch(keep)
    with without_clock_batches(spark):
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(240)
        finally:
            query.stop()
    return Embedded(run.database).read("health")


@pytest.mark.parametrize("following", [False, True], ids=["batch", "stream"])
def test_no_health_of_another_device_changes(
    spark: SparkSession, sane: pa.Table, tmp_path: Path, following: bool
) -> None:
    before = documents(spark, sane, tmp_path / "sane", following=following)
    assert len(before) == PLAN.devices
    name = f"{PLAN.domain}/{WILD}"
    del before[name]
    for kind in KINDS:
        after = documents(spark, wild(sane, kind), tmp_path / kind, following=following)
        of_wild = after.pop(name)
        assert after == before
        assert of_wild["untrusted"] == of_wild["messages"] > 100
        assert of_wild["lastEvent"] == of_wild["lastSeen"]
