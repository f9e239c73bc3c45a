"""Runs of jobs: once, over what is new, following, stopped between two batches, and ended by what goes wrong."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.spark.failures import failure_of
from iotsphere.drivers.spark.jobs import Run, health
from iotsphere.drivers.spark.progress import Progress, distance
from iotsphere.drivers.spark.runner import CLOCK_BATCHES, Plan, Runner
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import (
    Conflict,
    DatabaseUnavailable,
    JobFailed,
    MessagesMissed,
    RequestInvalid,
    Unavailable,
)
from iotsphere.entities.position import Partition
from iotsphere.spark import IotSphereSource
from tests.support.jobs import Kept
from tests.support.telemetry import fill_sqlite


def run(spark: SparkSession, plan: Plan) -> Progress:
    return Runner(spark, plan, IotSphereSource)()


def test_once_over_a_range(spark: SparkSession, tmp_path: Path) -> None:
    log, kept = fill_sqlite(tmp_path, 300), Kept()
    done = run(spark, kept.plan(tmp_path, log, checkpoint=None))
    assert kept.values == list(range(300))
    assert (done.messages, done.rows, done.batches, done.lag, done.counts["kept"]) == (300, 300, 1, 0, 300)
    assert done.pace == 300 / done.seconds
    assert sum(offset for _, offset in done.place.values()) == 300


def test_once_tells_how_many_rows_were_read_while_it_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """Those of this pass, and none of what the session did before."""
    log, kept = fill_sqlite(tmp_path, 300), Kept()
    before = run(spark, kept.plan(tmp_path, log, checkpoint=None))
    fill_sqlite(tmp_path, 100, start=300)
    told, seen = threading.Event(), set[int]()

    def watch(progress: Progress) -> None:
        seen.add(progress.rows)
        if progress.rows == 100:
            told.set()

    def meanwhile(_: int) -> None:
        assert told.wait(240), seen

    kept.meanwhile = meanwhile
    rest = kept.plan(tmp_path, log, checkpoint=None, source={"from": json.dumps(before.place)})
    Runner(spark, rest, IotSphereSource)(watch)
    assert max(seen) == 100


def test_once_is_ended_at_once(spark: SparkSession, tmp_path: Path) -> None:
    log, kept = fill_sqlite(tmp_path, 10), Kept()

    def slow(readings: DataFrame, _: object) -> DataFrame:
        return readings.select(F.expr("reflect('java.lang.Thread', 'sleep', 60000L + offset)"))

    runner = Runner(spark, kept.plan(tmp_path, log, kept.job(transform=slow), checkpoint=None), IotSphereSource)
    with pytest.raises(Unavailable, match="stopped before it was done"):
        runner(lambda progress: runner.stop() if progress.tasks[1] else None)
    assert kept.batches == {}


def test_what_is_new_since_the_last_time_in_batches_of_a_limit(spark: SparkSession, tmp_path: Path) -> None:
    log, kept = fill_sqlite(tmp_path, 250), Kept()
    plan = kept.plan(tmp_path, log, source={"maxMessagesPerBatch": "100"})
    done = run(spark, plan)
    assert (done.messages, done.rows, done.batches, done.lag) == (250, 250, 3, 0)
    fill_sqlite(tmp_path, 40, start=250)
    done = run(spark, plan)
    assert (done.messages, done.rows, done.batches) == (40, 40, 1)
    assert kept.values == list(range(290))
    assert len({application for application, _ in kept.batches}) == 1
    assert [number for _, number in kept.batches] == [0, 1, 2, 3]
    with pytest.raises(Conflict, match="domain was 'iotsphere' and is '\\*' now"):
        run(spark, kept.plan(tmp_path, log, source={"domain": "*"}))


def test_messages_of_a_new_checkpoint_count_from_where_it_begins(spark: SparkSession, tmp_path: Path) -> None:
    log, kept = fill_sqlite(tmp_path, 300), Kept()
    begin = run(spark, kept.plan(tmp_path, log, checkpoint=None)).place
    fill_sqlite(tmp_path, 40, start=300)
    done = run(spark, kept.plan(tmp_path, log, source={"from": json.dumps(begin)}))
    assert (done.messages, done.rows) == (40, 40)


def test_the_first_batch_of_a_stream_tells_what_it_reads_and_how_far_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """Where the stream begins, and where it goes on."""
    log, kept = fill_sqlite(tmp_path, 3), Kept()

    def slow(readings: DataFrame, _: object) -> DataFrame:
        return readings.select("value", F.expr("reflect('java.lang.Thread', 'sleep', 2000L + offset)"))

    plan = kept.plan(tmp_path, log, kept.job(transform=slow))
    for new in (3, 2):
        told: list[Progress] = []
        done = Runner(spark, plan, IotSphereSource)(lambda progress, told=told: told.append(replace(progress)))  # type: ignore[misc]
        meanwhile = [one for one in told if one.busy and not one.batches and one.tasks[1]]
        assert {(one.range, one.step) for one in meanwhile} == {(new, 1)}
        assert (done.messages, done.rows) == (new, new)
        fill_sqlite(tmp_path, 2, start=3)


def test_what_is_new_has_an_end_for_a_job_that_wakes_by_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    log = fill_sqlite(tmp_path, 60)

    def run_to(application: str, following: bool) -> Run:
        return Run(health.JOB.settings({}), application, following, tmp_path / "out", str(tmp_path))

    plan = Plan(health.JOB, {"log": log, "from": "earliest"}, run_to, tmp_path / "checkpoint")
    done = run(spark, plan)
    assert (done.messages, done.batches, done.counts["health"]) == (60, 1, 10)
    assert spark.conf.get(CLOCK_BATCHES) == "true", "the session is not the run's alone"


def test_it_stops_between_two_batches_and_goes_on_there(spark: SparkSession, tmp_path: Path) -> None:
    log, kept = fill_sqlite(tmp_path, 400), Kept()
    plan = kept.plan(tmp_path, log, source={"maxMessagesPerBatch": "50"}, follow=True)
    runner = Runner(spark, plan, IotSphereSource)
    kept.meanwhile = lambda number: runner.stop() if number == 2 else None
    done = runner()
    assert runner.stopped
    assert [number for _, number in kept.batches] == [0, 1, 2]
    assert done.messages == len(kept.values)
    kept.meanwhile = lambda _: None
    rest = run(spark, kept.plan(tmp_path, log))
    assert rest.messages == 400 - done.messages
    assert kept.values == list(range(400))
    assert [number for _, number in kept.batches][:4] == [0, 1, 2, 3]


def test_it_follows_what_comes_in_ticks_while_idle_and_stops_while_idle(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iotsphere.drivers.spark.runner.TICK_S", 0.0)
    log, kept = fill_sqlite(tmp_path, 10), Kept()
    ticked = threading.Event()

    def tick(_: object) -> dict[str, int]:
        ticked.set()
        return {"ticks": 1}

    runner = Runner(spark, kept.plan(tmp_path, log, kept.job(tick=tick), follow=True, every=0.1), IotSphereSource)

    def drive() -> None:
        fill_sqlite(tmp_path, 10, start=10)
        while kept.values != list(range(20)):
            assert not failed.wait(0.05)
        assert ticked.wait(240)
        runner.stop()

    failed = threading.Event()
    driver = threading.Thread(target=drive)
    driver.start()
    try:
        done = runner()
    finally:
        failed.set()
        driver.join(240)
    assert done.messages == 20
    assert done.counts["ticks"] >= 1


def test_what_a_sink_raises_comes_out_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    log, kept = fill_sqlite(tmp_path, 10), Kept()

    def fail(_: int) -> None:
        raise DatabaseUnavailable("the database is away")

    kept.meanwhile = fail
    with pytest.raises(DatabaseUnavailable, match="the database is away"):
        run(spark, kept.plan(tmp_path, log))
    kept.meanwhile = lambda _: None
    assert run(spark, kept.plan(tmp_path, log)).messages == 10
    assert list(kept.batches.values()) == [list(range(10))]


def test_what_retention_has_passed_ends_a_stream_with_its_range(spark: SparkSession, tmp_path: Path) -> None:
    log, kept = fill_sqlite(tmp_path, 100), Kept()
    run(spark, kept.plan(tmp_path, log))

    async def trim() -> None:
        async with SqliteLog(tmp_path / "log", SystemClock()) as opened:
            await opened.retain(Partition("iotsphere", "telemetry", 0), Retention(max_age=0, hard_age=0), 1 << 50)

    fill_sqlite(tmp_path, 100, start=100)
    asyncio.run(trim())
    with pytest.raises(MessagesMissed, match=r"messages of iotsphere/telemetry/0 offsets \d+ to \d+ are gone"):
        run(spark, kept.plan(tmp_path, log))
    lenient = {"failOnDataLoss": "false", "lossesFolder": str(tmp_path / "losses")}
    done = run(spark, kept.plan(tmp_path, log, source=lenient))
    assert done.messages == 100
    assert 0 < len(kept.values) - 100 < 100
    assert len(list((tmp_path / "losses").iterdir())) == 1


def test_a_job_over_whole_ranges_does_not_follow(spark: SparkSession, tmp_path: Path) -> None:
    log, kept = fill_sqlite(tmp_path, 1), Kept()
    with pytest.raises(RequestInvalid, match="looks at a whole range"):
        run(spark, kept.plan(tmp_path, log, kept.job(follows=False)))


# Without Spark


def test_an_error_of_a_worker_is_found_under_the_traces() -> None:
    text = (
        "[PYTHON_EXCEPTION] Traceback (most recent call last):\n  File ...\n"
        "iotsphere.entities.errors.LogUnavailable: log_unavailable: Redis at h:1 is not available\n"
        "\tat org.apache.spark.api.python.BasePythonRunner\n"
    )
    found = failure_of(RuntimeError(text))
    assert (found.code, found.message, found.retry) == ("log_unavailable", "Redis at h:1 is not available", True)
    assert "every worker" in failure_of(RuntimeError("ModuleNotFoundError: No module named 'iotsphere'")).message
    gone = failure_of(ConnectionRefusedError(111, "Connection refused"))
    assert (gone.code, gone.retry, "has ended" in gone.message) == ("unavailable", True, True)
    assert "--migrate" in failure_of(RuntimeError("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided")).message
    other = failure_of(RuntimeError("Job aborted\nValueError: no such thing\n"))
    assert isinstance(other, JobFailed)
    assert other.message.startswith("ValueError: no such thing")


def test_the_first_batch_of_a_stream_counts_from_where_it_began() -> None:
    progress = Progress(place={"a": [1, 2_400]})
    source = {"startOffset": None, "endOffset": '{"a":[1,3400]}', "latestOffset": '{"a":[1,3445]}'}
    progress.batch({"sources": [source], "numInputRows": 1_000})
    progress.batch({"sources": [{**source, "startOffset": source["endOffset"], "endOffset": source["latestOffset"]}]})
    assert (progress.messages, progress.lag, progress.place) == (1_045, 0, {"a": [1, 3_445]})


def test_distances_count_messages() -> None:
    assert distance({"a": [1, 5], "b": [1, 7]}, {"a": [2, 9], "b": [1, 7], "c": [1, 3]}) == 7
