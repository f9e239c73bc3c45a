"""One self-contained HTML page about the fleet: what came when, who talks, who is silent, metrics, quality, alerts."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from ..report.facts import gather
from ..report.page import page
from ..unread import Unread
from ..window import Kept
from . import Counts, Job, Option, Run, anomaly, quality
from .lake import believable

FILE: Final = "index.html"
TITLE: Final = Option("title", "Fleet report", "the heading of the page")
OPTIONS: Final = (TITLE, *quality.OPTIONS)


def transform(readings: DataFrame, run: Run | None = None) -> DataFrame:  # noqa: ARG001  there is nothing to choose
    """The readings with times that can be believed."""
    return believable(readings)


def write(result: DataFrame, run: Run, batch: int) -> Counts:
    """Write the page about a range; in a stream keep the readings, and write the page about the last days."""
    if run.following:
        return {**kept_in(run.output, run.options["days"]).add(result, run, batch), **tick(run)}
    return _report(result, run)


def write_unread(unread: Unread, run: Run, batch: int) -> Counts:
    """The same of readings that are still to be read: in a stream, whoever reads some keeps them, in one go."""
    if run.following:
        return {**kept_in(run.output, run.options["days"]).add(unread.readings, run, batch, unread), **tick(run)}
    return _report(transform(unread.readings), run)


def tick(run: Run) -> Counts:
    """Write the page again when it is time to."""
    kept = kept_in(run.output, run.options["days"])
    spark = SparkSession.getActiveSession()
    if spark is None or not kept.is_due(run.options["every_s"]):
        return {}
    _report(kept.readings(spark), run)
    return {"pages": 1}


@cache
def kept_in(folder: Path, days: float) -> Kept:
    """The readings that a stream keeps beside its page."""
    return Kept(folder, days)


def _report(readings: DataFrame, run: Run) -> Counts:
    usual = {option.name: option.default for option in anomaly.OPTIONS}
    held = readings.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        alerts = anomaly.transform(held, replace(run, options=usual, following=False))
        facts = gather(held, alerts, quality.limits_of(run))
    finally:
        held.unpersist()
    text = page(facts, datetime.now(UTC), run.options["title"])
    run.output.mkdir(parents=True, exist_ok=True)
    fresh = run.output / f".page-{os.getpid()}"
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(run.output / FILE)
    return {"readings": facts.totals["readings"] if facts else 0, "pages": 1}


JOB: Final = Job(
    name="report",
    version=1,
    transform=transform,
    write=write,
    direct=write_unread,
    options=OPTIONS,
    output="report",
    tick=tick,
)
