"""What the fleet report says, gathered from readings: a few small tables, however many readings and devices there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..findings import DEVICE, Limits, findings

BUCKETS: Final = 96
STEPS_S: Final = (1, 5, 15, 60, 300, 900, 3_600, 3 * 3_600, 6 * 3_600, 86_400, 7 * 86_400)
TOP: Final = 8
METRICS: Final = 12
LISTED: Final = 15
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a fleet between ``since`` and ``until`` (times of reception).

    ``totals``: readings, messages, devices, metrics, flagged (readings with a remark), domains. ``flow``: per bucket of
    ``step_s`` seconds the readings, flagged ones and devices. ``noisy`` and ``silent``: devices with readings, last,
    quiet_s and flow (readings per bucket). ``metrics``: per metric its unit, readings, devices and a band (bucket ->
    5th, 50th and 95th percentile). ``found``: kinds of findings with count and devices, ``examples`` the heaviest of
    each. ``alerts``: the newest, those first that are not over; ``open_alerts``: how many of all are not.
    """

    since: datetime
    until: datetime
    step_s: int
    totals: Mapping[str, int]
    flow: Rows
    noisy: Rows
    silent: Rows
    metrics: Rows
    found: Rows
    examples: Rows
    alerts: Rows
    open_alerts: int


def gather(readings: DataFrame, alerts: DataFrame, limits: Limits) -> Facts | None:
    """The facts about readings, which are read many times: persist them. None when there is no reading."""
    marked = F.size("quality") > 0
    # Far fewer rows than readings: most of the page is made of them.
    series = readings.groupBy(*DEVICE, "metric", "unit").agg(
        F.count("*").alias("readings"), F.count_if(_is_number()).alias("numbers"), F.count_if(marked).alias("flagged"),
        F.min("received_time").alias("first"), F.max("received_time").alias("last"),
    ).persist()  # fmt: skip
    try:
        row = series.agg(
            F.min("first").alias("since"), F.max("last").alias("until"), F.sum("readings").alias("readings"),
            F.count_distinct("metric").alias("metrics"), F.count_distinct(*DEVICE).alias("devices"),
            F.sum("flagged").alias("flagged"), F.count_distinct("domain").alias("domains"),
            (F.unix_micros(F.max("last")) - F.unix_micros(F.min("first"))).alias("span_us"),
        ).first()  # fmt: skip
        if row is None or not row["readings"]:
            return None
        step = step_of(row["span_us"] / 1e6)
        bucketed = readings.withColumn("bucket", F.floor(F.unix_seconds("received_time") / step) * step)
        flow = bucketed.groupBy("bucket").agg(
            F.count("*").alias("readings"),
            F.count_if(marked).alias("flagged"),
            F.count_distinct(*DEVICE).alias("devices"),
        )
        found, examples = _found(findings(readings, limits))
        noisy, silent = _devices(series, bucketed, _utc(row["until"]))
        newest, open_alerts = alerts_of(alerts)
        totals = {name: row[name] for name in ("readings", "devices", "metrics", "flagged", "domains")}
        return Facts(
            since=_utc(row["since"]),
            until=_utc(row["until"]),
            step_s=step,
            totals={**totals, "messages": readings.select("domain", "partition", "offset").distinct().count()},
            flow=_rows(flow.orderBy("bucket")),
            noisy=noisy,
            silent=silent,
            metrics=_metrics(series, bucketed),
            found=found,
            examples=examples,
            alerts=newest,
            open_alerts=open_alerts,
        )
    finally:
        series.unpersist()


def step_of(seconds: float) -> int:
    """The shortest usual step that cuts a time into at most 96 buckets."""
    return next((step for step in STEPS_S if seconds / step <= BUCKETS), -(-int(seconds) // BUCKETS))


def _devices(series: DataFrame, bucketed: DataFrame, until: datetime) -> tuple[Rows, Rows]:
    devices = series.groupBy(*DEVICE).agg(
        F.sum("readings").alias("readings"), F.max("last").alias("last"), F.count_distinct("metric").alias("metrics")
    )
    noisy = _rows(devices.orderBy(F.desc("readings"), *DEVICE).limit(TOP))
    silent = _rows(devices.orderBy("last", *DEVICE).limit(TOP))
    names = sorted({(row["domain"], row["device_id"]) for row in (*noisy, *silent)})
    spark = bucketed.sparkSession
    chosen = spark.createDataFrame(names, "domain string, device_id string")
    counts = bucketed.join(F.broadcast(chosen), [*DEVICE]).groupBy(*DEVICE, "bucket").count().collect()
    flows: dict[tuple[str, str], dict[int, int]] = {name: {} for name in names}
    for count in counts:
        flows[count["domain"], count["device_id"]][count["bucket"]] = count["count"]
    for row in (*noisy, *silent):
        row["last"] = _utc(row["last"])
        row["quiet_s"] = (until - row["last"]) / timedelta(seconds=1)
        row["flow"] = flows[row["domain"], row["device_id"]]
    return noisy, silent


def _is_number() -> Column:
    return F.col("value").isNotNull() & ~F.isnan("value")


def _metrics(series: DataFrame, bucketed: DataFrame) -> Rows:
    metrics = series.where("numbers > 0").groupBy("metric").agg(
        F.sum("numbers").alias("readings"), F.count_distinct(*DEVICE).alias("devices"), F.max("unit").alias("unit")
    )  # fmt: skip
    chosen = _rows(metrics.orderBy(F.desc("devices"), F.desc("readings"), "metric").limit(METRICS))
    names = [row["metric"] for row in chosen]
    bands = (
        bucketed.where(_is_number() & F.col("metric").isin(names))
        .groupBy("metric", "bucket")
        .agg(F.percentile_approx("value", [0.05, 0.5, 0.95]).alias("band"))
        .collect()
    )
    for row in chosen:
        row["band"] = {each["bucket"]: tuple(each["band"]) for each in bands if each["metric"] == row["metric"]}
    return sorted(chosen, key=lambda row: str(row["metric"]))


def _found(found: DataFrame) -> tuple[Rows, Rows]:
    found = found.persist()
    try:
        kinds = found.groupBy("kind").agg(
            F.count("*").alias("findings"), F.sum("count").alias("count"), F.count_distinct(*DEVICE).alias("devices")
        )
        ranked = found.selectExpr("*", "row_number() OVER (PARTITION BY kind ORDER BY count DESC, device_id) AS rank")
        examples = ranked.where("rank <= 3").orderBy("kind", "rank").limit(3 * LISTED)
        return _rows(kinds.orderBy(F.desc("findings"), "kind")), _rows(examples)
    finally:
        found.unpersist()


def alerts_of(alerts: DataFrame) -> tuple[Rows, int]:
    """The newest alerts, those first that are not over, and how many of all are not."""
    key = (*DEVICE, "metric", "kind", "raised_at")
    told = alerts.groupBy(*key).agg(
        F.max_by("value", F.col("change") == "raised").alias("value"),
        F.max("median").alias("median"),
        F.bool_or(F.col("change") != "raised").alias("over"),
    )
    counted = told.withColumn("open", F.expr("count_if(NOT over) OVER ()"))
    rows = _rows(counted.orderBy("over", F.desc("raised_at"), *DEVICE, "metric").limit(LISTED))
    return rows, rows[0]["open"] if rows else 0


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    rows = [row.asDict() for row in frame.collect()]
    return [
        {name: _utc(value) if isinstance(value, datetime) else value for name, value in row.items()} for row in rows
    ]


def _utc(time: datetime) -> datetime:
    """Spark hands out local times without a zone."""
    return time.astimezone(UTC)
