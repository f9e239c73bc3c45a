"""What is wrong with telemetry: gaps, duplicates, clocks, values out of range, and metrics that change their kind.

Each function takes readings and returns a frame of its own; `findings` puts all into one. Nothing here looks at more
than the readings that it is given, so a range can be judged again at any time with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .schema import KEY

SERIES: Final = ("domain", "device_id", "metric")
DEVICE: Final = ("domain", "device_id")
HOUR_S: Final = 3_600
# What no sensor can truly say, by unit (UCUM and the usual spellings): lowest and highest value.
PHYSICAL: Final[Mapping[str, tuple[float | None, float | None]]] = {
    "Cel": (-273.15, None), "°C": (-273.15, None), "[degF]": (-459.67, None), "°F": (-459.67, None), "K": (0, None),
    "%": (0, 100), "%RH": (0, 100), "hPa": (0, None), "Pa": (0, None), "bar": (0, None), "lx": (0, None),
    "ppm": (0, None), "m/s": (0, None), "dB": (0, None),
}  # fmt: skip
Ranges = Mapping[str, tuple[float | None, float | None]]
NO_RANGES: Final[Ranges] = MappingProxyType({})


class Limits(NamedTuple):
    """From where on something is a finding.

    ``gap``: times its own usual step for which a metric is silent. ``skew_ms``: the median by which a clock is wrong.
    ``drift_ppm``: how fast it goes wrong. ``settle_s``: how long after a device's first reading a metric is new.
    ``ranges``: by metric; what a unit makes impossible is out of range in any case.
    """

    gap: float = 3.0
    skew_ms: float = 5_000.0
    drift_ppm: float = 100.0
    settle_s: int = 86_400
    ranges: Ranges = NO_RANGES


USUAL: Final = Limits()


def gaps(readings: DataFrame, factor: float = USUAL.gap) -> DataFrame:
    """Spells in which a metric of a device was silent for more than ``factor`` times the median of its own steps.

    Columns: the series, ``cadence_s``, ``start`` and ``end`` (the readings around it), ``missed`` (how many readings
    would have been due). Times of clocks that are not believed say nothing and are left out.
    """
    in_time = Window.partitionBy(*SERIES).orderBy("event_time")
    trusted = readings.where(~F.array_contains("quality", "clock_untrusted")).dropDuplicates([*KEY])
    steps = (
        trusted.select(*SERIES, F.lag("event_time").over(in_time).alias("start"), F.col("event_time").alias("end"))
        .where("start IS NOT NULL AND start < end")
        .withColumn("step_s", (F.unix_micros("end") - F.unix_micros("start")) / 1e6)
    )
    usual = steps.groupBy(*SERIES).agg(F.median("step_s").alias("cadence_s"))
    return (
        steps.join(usual, [*SERIES])
        .where(F.col("step_s") > F.col("cadence_s") * factor)
        .withColumn("missed", (F.round(F.col("step_s") / F.col("cadence_s")) - 1).cast("long"))
        .select(*SERIES, "cadence_s", "start", "end", "missed")
    )


def holes(readings: DataFrame) -> DataFrame:
    """Ranges of offsets from which there is no reading, between others of the same partition of the log.

    Columns: ``domain``, ``partition``, ``first``, ``last``, ``count``. Behind such an offset is a message that was
    lost on the way to here, one that was removed by its age, or one without a value.
    """
    in_log = Window.partitionBy("domain", "partition").orderBy("offset")
    return (
        readings.select("domain", "partition", "offset")
        .distinct()
        .withColumn("before", F.lag("offset").over(in_log))
        .where("offset > before + 1")
        .select(
            "domain",
            "partition",
            (F.col("before") + 1).alias("first"),
            (F.col("offset") - 1).alias("last"),
            (F.col("offset") - F.col("before") - 1).alias("count"),
        )
    )


def duplicates(readings: DataFrame) -> DataFrame:
    """Devices whose messages came more than once: ``messages`` that did, and ``copies`` beyond the first of each."""
    return (
        readings.groupBy(*DEVICE, "message_id")
        .agg(F.count_distinct("partition", "offset").alias("times"), F.min("received_time").alias("at"))
        .where("times > 1")
        .groupBy(*DEVICE)
        .agg(F.count("*").alias("messages"), F.sum(F.col("times") - 1).alias("copies"), F.min("at").alias("at"))
    )


def clocks(readings: DataFrame) -> DataFrame:
    """How right the clock of each device is.

    Columns: ``messages`` (different ones), ``untrusted`` and ``late`` (how many of them), ``skew_ms`` (the median of device time less
    time of reception, so a delay of the network counts as a clock that is slow), ``drift_ppm`` (the slope of the
    hourly medians; null with fewer than three hours). Skew and drift are those of messages that are neither.
    """
    untrusted, late = (F.array_contains("quality", mark) for mark in ("clock_untrusted", "late"))
    # The first of several copies has the greatest skew; the others say only how late they were.
    messages = readings.groupBy(*DEVICE, "message_id").agg(
        F.min("received_time").alias("received_time"), F.max("skew_ms").alias("skew_ms"),
        F.bool_or(untrusted).alias("untrusted"), F.bool_or(late).alias("late"),
    )  # fmt: skip
    counts = messages.groupBy(*DEVICE).agg(
        F.count("*").alias("messages"), F.count_if("untrusted").alias("untrusted"), F.count_if("late").alias("late"),
        F.min("received_time").alias("at"), F.max("received_time").alias("until"),
    )  # fmt: skip
    good = messages.where("NOT untrusted AND NOT late AND skew_ms IS NOT NULL")
    skews = good.groupBy(*DEVICE).agg(F.median("skew_ms").alias("skew_ms"))
    second = F.unix_micros("received_time") / 1e6
    hours = good.groupBy(*DEVICE, F.floor(second / HOUR_S).alias("hour")).agg(F.median("skew_ms").alias("skew"))
    # A millisecond in a second is a thousandth, and so 1,000 ppm.
    slope = F.regr_slope("skew", F.col("hour") * float(HOUR_S)) * 1_000
    drifts = hours.groupBy(*DEVICE).agg(F.when(F.count("*") >= 3, slope).alias("drift_ppm"))
    return counts.join(skews, [*DEVICE], "left").join(drifts, [*DEVICE], "left")


def out_of_range(readings: DataFrame, ranges: Ranges = NO_RANGES) -> DataFrame:
    """Series with values outside their metric's range, or beyond what their unit makes possible.

    Columns: the series, ``count``, ``worst`` (the value farthest out), ``at`` and ``until``.
    """
    tests = [(F.col("metric") == name, ends) for name, ends in ranges.items()]
    tests += [(F.col("unit") == unit, ends) for unit, ends in PHYSICAL.items()]
    outside = reduce(or_, (which & _beyond(*ends) for which, ends in tests))
    return (
        readings.where(F.col("value").isNotNull() & outside)
        .groupBy(*SERIES)
        .agg(
            F.count("*").alias("count"),
            F.max_by("value", F.abs("value")).alias("worst"),
            F.min("event_time").alias("at"),
            F.max("event_time").alias("until"),
        )
    )


def changes(readings: DataFrame) -> DataFrame:
    """Series whose values changed from number to text or the like, or whose unit changed.

    Columns: the series, ``what`` (type or unit), ``count`` (how often), ``at`` (the first time), ``before``, ``after``.
    """
    of_value = {"value": "number", "value_bool": "boolean", "value_text": "text"}
    kind = F.coalesce(*(F.when(F.col(name).isNotNull(), word) for name, word in of_value.items()))
    rows = readings.select(*SERIES, "event_time", "partition", "offset", "sample", "unit", kind.alias("type"))
    changed = [_changed(rows.where(F.col(what).isNotNull()), what) for what in ("type", "unit")]
    return changed[0].unionByName(changed[1])


def _changed(rows: DataFrame, what: str) -> DataFrame:
    in_time = Window.partitionBy(*SERIES).orderBy("event_time", "partition", "offset", "sample")
    return (
        rows.withColumn("before", F.lag(what).over(in_time))
        .where(F.col("before") != F.col(what))
        .groupBy(*SERIES)
        .agg(
            F.lit(what).alias("what"),
            F.count("*").alias("count"),
            F.min("event_time").alias("at"),
            F.min_by("before", "event_time").alias("before"),
            F.min_by(what, "event_time").alias("after"),
        )
    )


def new_metrics(readings: DataFrame, settle_s: int = USUAL.settle_s) -> DataFrame:
    """Metrics that a device sent for the first time more than ``settle_s`` after its own first reading: series, ``at``."""
    first = readings.groupBy(*SERIES).agg(F.min("event_time").alias("at"))
    start = F.min("at").over(Window.partitionBy(*DEVICE))
    late = F.unix_micros("at") - F.unix_micros(start) > settle_s * 1_000_000
    return first.withColumn("is_new", late).where("is_new").drop("is_new")


def findings(readings: DataFrame, limits: Limits = USUAL) -> DataFrame:
    """Everything that is wrong, a row each.

    Columns: ``kind``, ``domain``, ``device_id``, ``metric`` (null where it is about more), ``at``, ``until``, ``count``,
    ``value`` (what the kind is measured in) and ``detail`` in words. The readings are read several times: persist them.
    """
    silent = gaps(readings, limits.gap)
    clock = clocks(readings)
    lost, again, changed = holes(readings), duplicates(readings), changes(readings)
    wild, new = out_of_range(readings, limits.ranges), new_metrics(readings, limits.settle_s)
    span = (F.unix_micros("end") - F.unix_micros("start")) / 1e6
    late, untrusted = F.col("late"), F.col("untrusted")
    parts = (
        _found(silent, "gap", at="start", until="end", count="missed", value=span,
               detail=F.format_string("usually every %.1f s", F.col("cadence_s"))),
        _found(lost, "hole", count="count",
               detail=F.format_string("partition %d, offsets %d to %d", "partition", "first", "last")),
        _found(again, "duplicate", at="at", count="copies", value=F.col("messages"), detail=F.lit("messages sent twice")),
        _found(clock.where(untrusted > 0), "clock_untrusted", at="at", until="until", count="untrusted",
               value=untrusted / F.col("messages"), detail=F.lit("share of its messages whose time is not believed")),
        _found(clock.where(late > 0), "late", at="at", until="until", count="late", value=late / F.col("messages"),
               detail=F.lit("share of its messages that came late")),
        _found(clock.where(F.abs("skew_ms") > limits.skew_ms), "clock_skew", at="at", until="until", count="messages",
               value=F.col("skew_ms"), detail=F.lit("ms that its clock is ahead")),
        _found(clock.where(F.abs("drift_ppm") > limits.drift_ppm), "clock_drift", at="at", until="until",
               count="messages", value=F.col("drift_ppm"), detail=F.lit("ppm that its clock runs fast")),
        _found(wild, "out_of_range", at="at", until="until", count="count", value=F.col("worst"),
               detail=F.lit("the value farthest out")),
        _found(changed, F.concat("what", F.lit("_change")), at="at", count="count",
               detail=F.concat_ws(" to ", "before", "after")),
        _found(new, "new_metric", at="at", detail=F.lit("not sent before")),
    )  # fmt: skip
    return reduce(DataFrame.unionByName, parts)


def _found(
    rows: DataFrame, kind: str | Column, *, detail: Column, at: str = "", until: str = "", count: str = "",
    value: Column | None = None,
) -> DataFrame:  # fmt: skip
    def given(name: str, otherwise: Column) -> Column:
        return F.col(name) if name else otherwise

    no_time = F.lit(None).cast("timestamp")
    named = [F.col(name) if name in rows.columns else F.lit(None).cast("string") for name in SERIES]
    return rows.select(
        (F.lit(kind) if isinstance(kind, str) else kind).alias("kind"),
        *(column.alias(name) for column, name in zip(named, SERIES, strict=True)),
        given(at, no_time).alias("at"),
        given(until, no_time).alias("until"),
        given(count, F.lit(1)).cast("long").alias("count"),
        (F.lit(None) if value is None else value).cast("double").alias("value"),
        detail.alias("detail"),
    )


def _beyond(low: float | None, high: float | None) -> Column:
    tests = ([] if low is None else [F.col("value") < low]) + ([] if high is None else [F.col("value") > high])
    return reduce(or_, tests, F.lit(False))
