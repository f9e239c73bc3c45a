"""One self-contained HTML page about the fleet: what came when, who talks, who is silent, metrics, quality, alerts."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from ..report.facts import gather
from ..report.page import page
from ..window import Windowed
from . import Counts, Job, Option, Run, anomaly, quality
from .lake import believable

FILE: Final = "index.html"
TITLE: Final = Option("title", "Fleet report", "the heading of the page")
OPTIONS: Final = (TITLE, *quality.OPTIONS)


def transform(readings: DataFrame, run: Run | None = None) -> DataFrame:  # noqa: ARG001  there is nothing to choose
    """The readings with times that can be believed."""
    return believable(readings)


def _report(readings: DataFrame, run: Run) -> Counts:
    usual = {option.name: option.default for option in anomaly.OPTIONS}
    held = readings.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        alerts = anomaly.transform(held, replace(run, options=usual, following=False))
        facts = gather(held, alerts, quality.limits_of(run.options))
    finally:
        held.unpersist()
    text = page(facts, datetime.now(UTC), run.options["title"])
    run.output.mkdir(parents=True, exist_ok=True)
    fresh = run.output / f".page-{os.getpid()}"
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(run.output / FILE)
    return {"readings": facts.totals["readings"] if facts else 0, "pages": 1}


WINDOWED: Final = Windowed(transform, _report, "pages")
JOB: Final = Job(
    name="report",
    version=1,
    transform=transform,
    write=WINDOWED.write,
    direct=WINDOWED.write_unread,
    options=OPTIONS,
    rules=quality.limits_of,
    output="report",
    page=FILE,
    tick=WINDOWED.tick,
)
