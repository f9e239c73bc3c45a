"""Field case B28: a job that changes its state finds its checkpoint refused, and goes on without skipping anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from iotsphere.drivers.spark.checkpoints import generation
from iotsphere.drivers.spark.jobs import Counts, Job, Run
from iotsphere.drivers.spark.progress import Progress
from iotsphere.drivers.spark.runner import Plan, Runner
from iotsphere.entities.errors import Conflict, JobFailed
from iotsphere.spark import IotSphereSource, telemetry
from tests.support.telemetry import fill_sqlite

# B28: run with groupBy(window, device), stop; change to groupBy(window), start on the same checkpoint.
Store = dict[tuple[Any, ...], int]


def counting(store: Store, version: int, *keys: str, name: str = "total") -> Job:
    """Sums of values by hour and ``keys``, each set in ``store`` as a whole; ``name``: of the output column."""

    def transform(readings: DataFrame, _: Run) -> DataFrame:
        hours = F.window("event_time", "1 hour").alias("hour")
        return readings.withWatermark("event_time", "2 hours").groupBy(hours, *keys).agg(F.sum("value").alias(name))

    def write(result: DataFrame, _: Run, __: int) -> Counts:
        rows = result.collect()
        store.update({(row["hour"]["start"], *(row[key] for key in keys)): int(row[name]) for row in rows})
        return {"rows": len(rows)}

    return Job(
        name="counting", version=version, transform=transform, write=write, stateful=True, mode="update",
        rewind_s=3 * 3_600,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_b28_an_incompatible_change_is_refused_and_migrated(spark: SparkSession, tmp_path: Path) -> None:
    log = fill_sqlite(tmp_path, 200)

    def run(job: Job, *, migrate: bool = False) -> Progress:
        def make_run(application: str, following: bool) -> Run:
            return Run({}, application, following, tmp_path, "")

        return Runner(spark, Plan(job, {"log": log}, make_run, tmp_path / "c", migrate=migrate), IotSphereSource)()

    def expected() -> Mapping[tuple[Any, ...], int]:
        hours = telemetry(spark, log=log).groupBy(F.window("event_time", "1 hour").alias("hour"))
        return {
            (row["hour"]["start"],): int(row["total"]) for row in hours.agg(F.sum("value").alias("total")).collect()
        }

    by_device: Store = {}
    assert run(counting(by_device, 1, "device_id")).messages == 200
    assert sum(by_device.values()) == sum(range(200))
    # Renaming an output column needs nothing.
    fill_sqlite(tmp_path, 50, start=200)
    assert run(counting(by_device, 1, "device_id", name="renamed")).messages == 50
    assert sum(by_device.values()) == sum(range(250))
    fill_sqlite(tmp_path, 50, start=250)

    # A change that nobody declared: the engine notices, and the message says what to do.
    by_hour: Store = {}
    with pytest.raises(JobFailed, match="raise the job's version, then run it with --migrate"):
        run(counting(by_hour, 1))
    # A change that was declared fails before anything is read, skips nothing, and leaves the old one usable.
    with pytest.raises(Conflict, match=r"made by version 1 of counting, and this is version 2.*--migrate"):
        run(counting(by_hour, 2))
    assert by_hour == {}

    done = run(counting(by_hour, 2), migrate=True)
    assert done.messages == 300  # the state of the hour that was open is made anew
    assert by_hour == expected()
    found = generation(tmp_path / "c")
    assert found is not None
    assert (found[0].name, found[1].version) == ("2-v2", 2)
    # From here on it is like any other.
    fill_sqlite(tmp_path, 25, start=300)
    assert run(counting(by_hour, 2)).messages == 25
    assert by_hour == expected()
