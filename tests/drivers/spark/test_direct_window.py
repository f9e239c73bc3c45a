"""Jobs that keep a window of readings read the log where they write it, and keep what they would the long way."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from iotsphere.drivers.spark.jobs import Job, Run, quality, report
from iotsphere.drivers.spark.runner import Plan, Runner
from iotsphere.drivers.spark.window import kept_in
from iotsphere.spark import IotSphereSource, telemetry
from tests.support.telemetry import fill_sqlite

pytestmark = pytest.mark.timeout(600)  # the first of them starts Spark


@pytest.mark.parametrize("job", [quality.JOB, report.JOB], ids=lambda job: job.name)
def test_a_stream_keeps_each_reading_of_the_log_once(spark: SparkSession, tmp_path: Path, job: Job) -> None:
    log, options = fill_sqlite(tmp_path, 1_000), job.settings({"days": "0", "every_s": "1e9"})

    def run_to(application: str, following: bool) -> Run:
        return Run(options, application, following, tmp_path / "out", "")

    plan = Plan(job, {"log": log, "maxMessagesPerBatch": "600"}, run_to, tmp_path / "checkpoint")
    done = Runner(spark, plan, IotSphereSource)()
    assert (done.messages, done.rows, done.batches, done.counts["rows"]) == (1_000, 1_000, 2, 1_000)
    kept = kept_in(tmp_path / "out", 0.0).readings(spark)
    assert kept.exceptAll(telemetry(spark, log=log)).count() == 0
    assert kept.count() == 1_000
