"""The rollup in Spark: a batch, a stream and DuckDB come to the same rows, in either store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from pyspark.sql import SparkSession

from iotsphere.drivers.spark.jobs import Run
from iotsphere.drivers.spark.jobs.rollup import COLLECTION, JOB
from iotsphere.drivers.spark.rollups.percentiles import ERROR
from iotsphere.drivers.spark.schema import SPARK_SCHEMA
from iotsphere.entities.errors import RequestInvalid
from tests.support.readings import make

from .stores import Embedded, Mongo

FLEET = make(readings=12_000, devices=10, period_s=120, seed=5)  # 200 messages a device, in seven hours
GIVEN = {
    "lateness_minutes": "240",
    "zones": "meter-00003=Australia/Lord_Howe",
    "counters": "energy",
    "keep_minutes_days": "0",
}
# What the rows must be, by somebody else.
TRUTH: Final = """
WITH once AS (
    SELECT *, list_contains(quality, 'clock_untrusted') AS wild FROM readings WHERE value IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY device_id, message_id, metric, sample ORDER BY "offset") = 1),
grown AS (
    SELECT *, coalesce(greatest(value - lag(value) OVER (
        PARTITION BY device_id, metric ORDER BY event_time, "offset", sample), 0), 0) AS growth FROM once),
buckets AS (
    SELECT *, unnest([
        {'resolution': '1m', 'start': date_trunc('minute', event_time)},
        {'resolution': '1h', 'start': date_trunc('hour', event_time)},
        {'resolution': '1d', 'start': CASE WHEN device_id = 'meter-00003'
            THEN date_trunc('day', event_time AT TIME ZONE 'Australia/Lord_Howe') AT TIME ZONE 'Australia/Lord_Howe'
            ELSE date_trunc('day', event_time) END}]) AS b FROM grown)
SELECT domain || '/' || device_id || '/' || metric || '/' || b.resolution || '/'
        || strftime(b.start, '%Y-%m-%dT%H:%M:%SZ') AS key,
    count(*) AS count, sum(value) AS sum, min(value) AS min, max(value) AS max, avg(value) AS mean,
    coalesce(arg_max(value, (event_time, "offset", sample)) FILTER (NOT wild),
        arg_max(value, (event_time, "offset", sample))) AS last,
    quantile_disc(value, 0.5) AS p50, quantile_disc(value, 0.95) AS p95, quantile_disc(value, 0.99) AS p99,
    CASE WHEN metric = 'energy' THEN sum(growth) END AS increase, sum(wild::INT) AS untrusted
FROM buckets GROUP BY ALL"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    FLEET.write(folder, files=3)
    return folder


@pytest.fixture(scope="module")
def truth() -> dict[str, dict[str, Any]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("readings", FLEET.rows)
        answer = connection.execute(TRUTH.replace("GROUP BY ALL", "GROUP BY domain, device_id, metric, b"))
        names = [column[0] for column in answer.description or ()]
        return {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in answer.fetchall()}


def run_to(database: str, following: bool, **given: str) -> Run:
    return Run(JOB.settings({**GIVEN, **given}), "app", following, Path(), database)


def agree(found: Mapping[str, Mapping[str, Any]], truth: Mapping[str, Mapping[str, Any]]) -> None:
    assert found.keys() == truth.keys()
    for key, expected in truth.items():
        for name, value in expected.items():
            exact = "/1m/" in key or name not in ("p50", "p95", "p99")
            close = pytest.approx(value, rel=1e-9 if exact else ERROR * 1.001, abs=1e-9) if value is not None else None
            assert found[key].get(name) == close, (key, name)


def stream(spark: SparkSession, log: Path, run: Run, checkpoint: Path) -> list[Mapping[str, int]]:
    counts = []
    readings = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(log))
    query = (
        JOB.transform(readings, run)
        .writeStream.outputMode(JOB.mode)
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda frame, number: counts.append(JOB.write(frame, run, number)))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return counts


def test_a_batch_is_what_duckdb_makes_of_it(
    spark: SparkSession, log: Path, truth: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    run = run_to(str(tmp_path), following=False)
    readings = spark.read.schema(SPARK_SCHEMA).parquet(str(log))
    assert JOB.write(JOB.transform(readings, run), run, 0) == {COLLECTION: len(truth)}
    found = Embedded(str(tmp_path)).read(COLLECTION)
    agree(found, truth)
    some = found["iotsphere/meter-00003/energy/1d/2026-02-28T13:00:00Z"]
    assert (some["zone"], some["offsetMinutes"], some["end"]) == ("Australia/Lord_Howe", 660, "2026-03-01T13:00:00Z")
    again = JOB.write(JOB.transform(readings, run), run, 0)
    assert again == {COLLECTION: len(truth)}
    assert Embedded(str(tmp_path)).read(COLLECTION) == found


def test_a_stream_into_mongodb_is_what_duckdb_makes_of_it(
    spark: SparkSession, log: Path, truth: dict[str, dict[str, Any]], mongo_url: str, tmp_path: Path
) -> None:
    run = run_to(mongo_url, following=True)
    counts = stream(spark, log, run, tmp_path / "checkpoint")
    assert len(counts) == 3
    agree(Mongo(mongo_url).read(COLLECTION), truth)


def test_options_that_make_no_sense_say_so(spark: SparkSession, log: Path) -> None:
    readings = spark.read.schema(SPARK_SCHEMA).parquet(str(log))
    for given in ({"zones": "Mars"}, {"counters": "energy:x"}, {"counters": ":5"}, {"lateness_minutes": "-1"}):
        with pytest.raises(RequestInvalid, match=r"is no|below 0"):
            JOB.transform(readings, run_to("", following=False, **given))
