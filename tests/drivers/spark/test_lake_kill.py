"""kill -9 of the driver in the middle of a micro-batch: the lake holds each message once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.spark_kills import Held, held_in, kill
from iotsphere.drivers.spark.jobs import Run
from iotsphere.drivers.spark.jobs.lake import JOB
from iotsphere.drivers.spark.runner import Plan, Runner
from iotsphere.spark import IotSphereSource
from tests.support.telemetry import fill_sqlite

MESSAGES = 4_000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_message_is_in_the_lake_once_after_kills(spark: SparkSession, tmp_path: Path) -> None:
    """Once after a file was written and not committed, once after the commit and before Spark knew of it.

    `python -m bench.spark_kills` kills ten times, over many more messages.
    """
    log = fill_sqlite(tmp_path / "data", MESSAGES)
    kill(log, tmp_path, ("written", "committed"), per_batch=400)

    def make_run(application: str, following: bool) -> Run:
        return Run(JOB.settings({"compact_s": "0"}), application, following, tmp_path / "lake", database="")

    Runner(spark, Plan(JOB, {"log": log}, make_run, tmp_path / "checkpoint"), IotSphereSource)()
    held = held_in(tmp_path / "lake")
    assert held == Held(rows=MESSAGES, samples=MESSAGES, places=MESSAGES, strays=held.strays)
    assert held.strays >= 1, "the driver was not killed between a worker's file and the commit"
