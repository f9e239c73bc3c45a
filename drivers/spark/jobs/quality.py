"""What is wrong with the telemetry of a range or of the last days, as a table of findings: gaps, clocks, values, kinds."""

from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from ....entities.errors import RequestInvalid
from ..findings import USUAL, Limits, Ranges, findings
from ..window import Windowed
from . import Counts, Job, Option, Options, Run
from .lake import believable

MAX_ROWS: Final = 100_000
# A spreadsheet takes a cell that begins with one of these for a formula.
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
OPTIONS: Final = (
    Option("gap", USUAL.gap, "a metric is silent when nothing comes for so many times its usual step"),
    Option("gap_s", USUAL.gap_s, "a silence of fewer seconds is none, however fast a metric usually comes"),
    Option("skew_ms", USUAL.skew_ms, "a clock that is wrong by more than so many ms is a finding"),
    Option("drift_ppm", USUAL.drift_ppm, "a clock that goes wrong by more than so many ppm is a finding"),
    Option("settle_s", USUAL.settle_s, "a metric first sent so many seconds after its device's first is new"),
    Option("ranges", "", "METRIC=LOW..HIGH with commas between, such as temperature=-40..85,battery=5.."),
    Option("days", 7.0, "following: the readings of so many days are looked at; 0 is all"),
    Option("every_s", 300.0, "following: seconds between two looks"),
)


def transform(readings: DataFrame, run: Run | None = None) -> DataFrame:  # noqa: ARG001  there is nothing to choose
    """The readings with times that can be believed. What is wrong with them is for ``findings`` to say."""
    return believable(readings)


def limits_of(given: Options) -> Limits:
    """The limits that the options say. Raises RequestInvalid for ranges that are none."""
    ranges = ranges_of(given["ranges"])
    return Limits(given["gap"], given["skew_ms"], given["drift_ppm"], given["settle_s"], ranges, given["gap_s"])


def ranges_of(text: str) -> Ranges:
    """Read ``METRIC=LOW..HIGH,…``; either end may be left out, and LOW is not above HIGH. Raises RequestInvalid."""
    found: dict[str, tuple[float | None, float | None]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        metric, is_there, ends = part.partition("=")
        low, dots, high = ends.partition("..")
        try:
            if not (metric and is_there and dots):
                raise ValueError(part)
            lowest, highest = (float(low) if low else None, float(high) if high else None)
            if lowest is not None and highest is not None and not lowest <= highest:
                raise ValueError(part)
            found[metric] = (lowest, highest)
        except ValueError as error:
            raise RequestInvalid(
                f"{part!a} is no range: write METRIC=LOW..HIGH, such as temperature=-40..85"
            ) from error
    return found


def judged(readings: DataFrame, limits: Limits, most: int = MAX_ROWS) -> tuple[pa.Table, Counts]:
    """The findings, the heaviest of each kind, at most ``most`` in all; and how many there are of each kind.

    What is not in the table is counted as ``left_out`` beside the kinds; no kind is left out for the many of another.
    """
    held = readings.persist(StorageLevel.MEMORY_AND_DISK)
    all_found = findings(held, limits).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        order = (F.desc("count"), "domain", "device_id", "metric", "at")
        place = F.row_number().over(Window.partitionBy("kind").orderBy(*order))
        heaviest = all_found.withColumn("place", place).orderBy("place", "kind").limit(most)
        table = heaviest.orderBy("kind", "place").drop("place").toArrow()
        counts = Counter(table["kind"].to_pylist())
        if table.num_rows == most:
            kept = counts.total()
            counts = Counter({row["kind"]: row["count"] for row in all_found.groupBy("kind").count().collect()})
            counts["left_out"] = counts.total() - kept
    finally:
        all_found.unpersist()
        held.unpersist()
    return table, {kind: count for kind, count in counts.items() if count}


def _judge(readings: DataFrame, run: Run) -> Counts:
    found, counts = judged(readings, limits_of(run.options))
    save(found, run.output)
    return {"findings": sum(counts.values()) - counts.get("left_out", 0), **counts}


def save(found: pa.Table, folder: Path) -> None:
    """Replace ``findings.parquet`` and ``findings.csv`` in a folder; a reader sees the old ones or the new ones."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".findings-{os.getpid()}"
    pq.write_table(found, fresh)
    fresh.replace(folder / "findings.parquet")
    with fresh.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(found.column_names)
        rows.writerows([cell(value) for value in row.values()] for row in found.to_pylist())
    fresh.replace(folder / "findings.csv")


def cell(value: object) -> object:
    """A value as a cell of a CSV file that no spreadsheet runs: a text that looks like a formula gets an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


WINDOWED: Final = Windowed(transform, _judge, "looks")
JOB: Final = Job(
    name="quality",
    version=1,
    transform=transform,
    write=WINDOWED.write,
    direct=WINDOWED.write_unread,
    options=OPTIONS,
    rules=limits_of,
    output="quality",
    tick=WINDOWED.tick,
)
