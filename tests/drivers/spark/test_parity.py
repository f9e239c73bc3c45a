"""Each job over measured telemetry comes to what others make of it, in batch and in stream.

Findings and reports are looked for in a batch alone here, since a stream of them looks at the same readings in the same
way after each of its steps, which takes minutes; `python -m bench.spark_parity` does all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.spark_parity import CHECKS, Case, Parity, check
from iotsphere.drivers.spark.jobs import JOBS
from tests.support import measured

pytestmark = pytest.mark.timeout(600)  # the first of them starts Spark
# Rows that each comes to, of 1,500 readings of four devices.
ROWS = {"lake": 6_000, "rollup": 10_044, "anomaly": 16, "health": 4, "status": 2, "quality": 5, "report": 133}
STREAMED = ("lake", "rollup", "anomaly", "health", "status")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    measured.fleet(1_500).write(folder, files=3)
    return folder


def test_every_job_is_compared() -> None:
    assert CHECKS.keys() == JOBS.keys() == ROWS.keys()


@pytest.mark.parametrize("job", JOBS)
def test_a_batch_comes_to_what_others_make_of_it(spark: SparkSession, log: Path, tmp_path: Path, job: str) -> None:
    assert check(Case(spark, job, log, False, tmp_path)) == Parity(ROWS[job], 0)


@pytest.mark.parametrize("job", STREAMED)
def test_a_stream_comes_to_what_others_make_of_it(spark: SparkSession, log: Path, tmp_path: Path, job: str) -> None:
    assert check(Case(spark, job, log, True, tmp_path)) == Parity(ROWS[job], 0)
