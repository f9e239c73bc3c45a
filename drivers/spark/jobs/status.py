"""The fleet's summary, told on devices/batch/status: which devices spoke, how much, and how good it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from . import Announcement, Counts, Job, Option, Run

OPTIONS: Final = (Option("metrics", 20, "metrics that a summary names, those with the most readings first"),)
ALL: Final = 1
TOPIC: Final = "status"


def transform(readings: DataFrame, run: Run) -> DataFrame:  # noqa: ARG001  the options only choose what is told
    """A row per domain and metric, and one per domain with ``metric`` null over all of them."""
    noted = [
        F.count_if(F.array_contains("quality", word)).alias(word)
        for word in ("late", "duplicate", "clock_untrusted", "missing")
    ]
    return readings.groupingSets([[F.col("domain"), F.col("metric")], [F.col("domain")]], "domain", "metric").agg(
        F.grouping("metric").alias("over_all"),
        F.count(F.lit(1)).alias("readings"),
        F.countDistinct("device_id").alias("devices"),
        F.unix_millis(F.min("received_time")).alias("first"),
        F.unix_millis(F.max("received_time")).alias("last"),
        F.unix_millis(F.max("event_time")).alias("newest"),
        F.min("value").alias("min"),
        F.max("value").alias("max"),
        F.avg("value").alias("mean"),
        *noted,
    )


def write(result: DataFrame, run: Run, batch: int) -> Counts:
    """Publish a summary per domain. The same range, or the same batch of a checkpoint, is the same message."""
    rows = result.orderBy("domain", F.desc("readings")).collect()
    told = list(_summaries(rows, run, batch))
    return {"summaries": run.announce(told)} if told else {}


def _summaries(rows: list[Row], run: Run, batch: int) -> Iterator[Announcement]:
    for whole in (row for row in rows if row["over_all"] == ALL):
        domain = whole["domain"]
        metrics = [row for row in rows if row["domain"] == domain and row["over_all"] != ALL]
        payload: dict[str, Any] = {
            "kind": "fleet_summary",
            "batch": batch,
            "devices": whole["devices"],
            "readings": whole["readings"],
            "from": whole["first"],
            "to": whole["last"],
            "newestEvent": whole["newest"],
            "quality": {
                word: whole[word] for word in ("late", "duplicate", "clock_untrusted", "missing") if whole[word]
            },
            "metrics": [
                {
                    name: row[name]
                    for name in ("metric", "devices", "readings", "min", "max", "mean")
                    if row[name] is not None
                }
                for row in metrics[: int(run.options["metrics"])]
            ],
        }
        yield Announcement(run.part(domain, batch), TOPIC, domain, payload)


JOB: Final = Job(
    name="status",
    version=1,
    transform=transform,
    write=write,
    publishes=True,
    topic=TOPIC,
    options=OPTIONS,
)
