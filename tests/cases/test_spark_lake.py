"""Field case A08 as the lake sees it: no clock of a device makes a date of its own, and no value is lost for it."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from iotsphere.adapters.edge import Edge
from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.spark.jobs.lake import transform, write
from iotsphere.drivers.spark.schema import SPARK_SCHEMA
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.principal import device
from iotsphere.spark import telemetry
from tests.drivers.spark.lakes import query, run_to
from tests.support.telemetry import CHANNELS, DOMAIN

pytestmark = pytest.mark.timeout(600)  # the first of them starts Spark
RECORDED = {
    "1970": "eyJUaW1lIjoiMTk3MC0wMS0wMVQwMDowMDowMyIsIkVORVJHWSI6eyJUb3RhbCI6MjUsIlllc3RlcmRheSI6MywiVG9kYXkiOjIsIlBvd2VyIjo3fX0=",
    "year 4020": "eyJ0cyI6NjQ2OTg0MzgwNTExNDksInZhbHVlIjo0MjM0fQ==",
    "year 3236": "eyJ0cyI6IjMyMzYtMDEtMTJUMjM6NTk6NDhaIiwidmFsdWUiOjF9",
    "negative": "eyJ0cyI6LTEsInZhbHVlIjoxfQ==",
}


def append(data: Path, payloads: list[bytes]) -> str:
    async def work() -> None:
        async with SqliteLog(data / "log", SystemClock()) as log:
            await log.ensure(DOMAIN, CHANNELS)
            edge = Edge(SystemClock(), log.partitions)
            route = edge.route(device(DOMAIN, "pow-01"), f"{DOMAIN}/devices/pow-01/telemetry/energy")
            await log.append([edge.admit(route, payload, SystemClock().now()) for payload in payloads])

    asyncio.run(work())
    return f"sqlite:{data}"


def test_a08_recorded_clocks_make_no_date_in_the_lake(spark: SparkSession, tmp_path: Path) -> None:
    sane = json.dumps({"ts": SystemClock().now() - 300_000, "value": 5}).encode()
    log = append(tmp_path / "data", [*(base64.b64decode(text) for text in RECORDED.values()), sane])
    write(transform(telemetry(spark, log=log)), run_to(tmp_path / "lake"), 0)
    today = datetime.now(UTC).date()
    dates = {day for (day,) in query(tmp_path / "lake", "SELECT DISTINCT date FROM lake")}
    assert dates <= {today, today - timedelta(days=1)}
    values = query(
        tmp_path / "lake",
        """SELECT value, list_contains(quality, 'clock_untrusted'),
               event_time BETWEEN received_time - INTERVAL 1 MINUTE AND received_time
           FROM lake WHERE value IS NOT NULL ORDER BY value""",
    )
    assert values[0] == values[1] == (1.0, True, True)
    assert (4234.0, True, True) in values
    assert [row for row in values if row[0] == 5.0] == [(5.0, False, False)]
    (skews,) = query(tmp_path / "lake", "SELECT min(skew_ms), max(skew_ms) FROM lake WHERE len(quality) > 0")
    assert skews[0] < -1_700_000_000_000
    assert skews[1] > 30_000_000_000_000


def test_a08_rows_of_another_origin_are_held_to_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """A frame that a notebook made, whose clocks nobody looked at."""
    received = datetime(2026, 3, 1, 12, tzinfo=UTC)
    shifts = {
        "right": timedelta(), "edge": -timedelta(days=30), "ahead": timedelta(minutes=5),
        "old": -timedelta(days=30, microseconds=1), "wild": timedelta(days=365 * 73), "soon": timedelta(minutes=6),
    }  # fmt: skip
    rows: list[tuple[Any, ...]] = [
        ("d", name, "t", 1.0, None, None, None, received + shift, received, None, ["late"], name, 0, offset, 0)
        for offset, (name, shift) in enumerate(shifts.items())
    ]
    write(transform(spark.createDataFrame(rows, SPARK_SCHEMA)), run_to(tmp_path / "lake"), 0)
    held = query(tmp_path / "lake", "SELECT device_id, date::VARCHAR, quality, skew_ms FROM lake ORDER BY 1")
    day, trusted = "2026-03-01", ["late"]
    assert held == [
        ("ahead", day, trusted, None),
        ("edge", "2026-01-30", trusted, None),
        ("old", day, ["clock_untrusted", "late"], -30 * 86_400_000 - 1),
        ("right", day, trusted, None),
        ("soon", day, ["clock_untrusted", "late"], 360_000),
        ("wild", day, ["clock_untrusted", "late"], 365 * 73 * 86_400_000),
    ]


def test_a08_a_wild_clock_changes_no_row_of_another_device(spark: SparkSession, tmp_path: Path) -> None:
    received = datetime(2026, 3, 1, 12, tzinfo=UTC)
    rows: list[tuple[Any, ...]] = [
        (
            "d",
            f"dev-{number % 5}",
            "t",
            float(number),
            None,
            None,
            None,
            received,
            received,
            0,
            [],
            f"m{number}",
            0,
            number,
            0,
        )
        for number in range(50)
    ]
    frame = spark.createDataFrame(rows, SPARK_SCHEMA)
    wild = F.when(F.col("device_id") == "dev-0", F.lit(datetime(2099, 1, 1, tzinfo=UTC))).otherwise(F.col("event_time"))
    write(transform(frame), run_to(tmp_path / "calm"), 0)
    write(transform(frame.withColumn("event_time", wild)), run_to(tmp_path / "wild"), 0)
    others = "SELECT * FROM lake WHERE device_id <> 'dev-0' ORDER BY \"offset\""
    assert query(tmp_path / "calm", others) == query(tmp_path / "wild", others)
    assert query(tmp_path / "wild", "SELECT DISTINCT date::VARCHAR FROM lake") == [("2026-03-01",)]
