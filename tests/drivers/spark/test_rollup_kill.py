"""kill -9 of the driver in the middle of a micro-batch: MongoDB counts each message once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.spark_rollup_kills import kill, sums_in
from iotsphere.drivers.spark.jobs import Run
from iotsphere.drivers.spark.jobs.rollup import JOB
from iotsphere.drivers.spark.runner import Plan, Runner
from iotsphere.spark import IotSphereSource
from tests.support.telemetry import fill_sqlite

MESSAGES = 4_000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_message_is_counted_once_after_a_kill(spark: SparkSession, tmp_path: Path, mongo_url: str) -> None:
    """After rows of a batch were set and before Spark knew of it, so the batch is done again.

    `python -m bench.spark_rollup_kills` kills ten times, over many more messages.
    """
    log = fill_sqlite(tmp_path / "data", MESSAGES)
    kill(tmp_path / "data", mongo_url, tmp_path / "checkpoint", ("writing",), per_batch=400)
    before = sums_in(mongo_url)
    assert 0 < before.readings < MESSAGES

    def make_run(application: str, following: bool) -> Run:
        return Run(JOB.settings({}), application, following, tmp_path / "out", mongo_url)

    source = {"log": log, "from": "earliest", "domain": "iotsphere"}
    done = Runner(spark, Plan(JOB, source, make_run, tmp_path / "checkpoint"), IotSphereSource)()
    assert done.messages >= MESSAGES - before.readings
    sums = sums_in(mongo_url)
    assert (sums.readings, sums.total, sums.alike) == (MESSAGES, MESSAGES * (MESSAGES - 1) / 2, True)
