"""The source in Spark itself: batches, streams that go on from their checkpoint, and errors that can be read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.spark.failures import is_busy
from iotsphere.drivers.spark.runner import STARTS
from iotsphere.drivers.spark.schema import SPARK_SCHEMA
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.channel import Retention
from iotsphere.entities.position import Partition
from iotsphere.spark import telemetry, telemetry_stream
from tests.support.servers import Server
from tests.support.telemetry import fill_redis, fill_sqlite, values

pytestmark = pytest.mark.timeout(600)


def test_telemetry_is_a_frame_that_stays_the_same(spark: SparkSession, tmp_path: Path) -> None:
    log = fill_sqlite(tmp_path, 500)
    frame = telemetry(spark, log=log)
    assert frame.schema == SPARK_SCHEMA
    fill_sqlite(tmp_path, 10, start=500)
    assert values(frame.select("value").collect()) == list(range(500))
    (row,) = frame.where("device_id = 'd3' and value = 33").collect()
    assert (row["metric"], row["message_id"], list(row["quality"]), row["sample"]) == (
        "temperature", "00000000-0000-8000-8000-000000000021", [], 0,
    )  # fmt: skip
    assert row["event_time"] == row["received_time"] or row["event_time"] < row["received_time"]
    assert telemetry(spark, log=log, channel="batch").count() == 0


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, redis_server: Server, tmp_path: Path) -> None:
    log = fill_redis(redis_server.port, 700)
    batches: list[list[int]] = []

    def take(frame: DataFrame, number: int) -> None:
        assert number == len(batches)
        batches.append(values(frame.select("value").collect()))

    def run() -> None:
        stream = telemetry_stream(spark, log=log, maxMessagesPerBatch=300).writeStream.foreachBatch(take)
        for patience in reversed(range(STARTS)):  # as the runner has it: Spark gives Python ten seconds to start
            query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
            try:
                assert query.awaitTermination(300)
            except PySparkException as error:
                if not patience or not is_busy(error):
                    raise
            else:
                return

    run()
    assert sorted(value for batch in batches for value in batch) == list(range(700))
    assert len(batches) >= 3
    fill_redis(redis_server.port, 50, start=700)
    run()
    assert batches[-1] == list(range(700, 750))


def test_what_is_gone_is_said_in_words(spark: SparkSession, tmp_path: Path) -> None:
    log = fill_sqlite(tmp_path, 200)
    frame = telemetry(spark, log=log)

    async def trim() -> None:
        async with SqliteLog(tmp_path / "log", SystemClock()) as opened:
            await opened.retain(Partition("iotsphere", "telemetry", 0), Retention(max_age=0, hard_age=0), 1 << 50)

    asyncio.run(trim())
    with pytest.raises(PySparkException, match=r"messages_missed: \d+ messages of iotsphere/telemetry/0 offsets 1 to"):
        frame.count()
