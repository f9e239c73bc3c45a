"""What is wrong with telemetry: gaps, duplicates, clocks, values out of range, and metrics that change their kind.

Each function takes readings and returns a frame of its own; `findings` puts all into one. Nothing here looks at more
than the readings that it is given, so a range can be judged again at any time with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

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

    ``gap``: times its own usual step for which a metric is silent, and ``gap_s``: seconds that this lasts at least.
    ``skew_ms``: how wrong a clock is, or how long messages wait in a device.
    ``drift_ppm``: how fast it goes wrong. ``settle_s``: how long after a device's first reading a metric is new.
    ``ranges``: by metric; what a unit makes impossible is out of range in any case.
    """

    gap: float = 3.0
    skew_ms: float = 5_000.0
    drift_ppm: float = 100.0
    settle_s: int = 86_400
    ranges: Ranges = NO_RANGES
    gap_s: float = 1.0


USUAL: Final = Limits()


def gaps(readings: DataFrame, factor: float = USUAL.gap, least_s: float = USUAL.gap_s) -> DataFrame:
    """Spells in which a metric of a device was silent for more than ``factor`` times the median of its own steps.

    Shorter ones than ``least_s`` seconds are none: who sends as fast as it can has no step of its own.

    Columns: the series, ``cadence_s``, ``start`` and ``end`` (the readings around it), ``missed`` (how many readings
    would have been due). Times of clocks that are not believed say nothing and are left out.
    """
    of_series = Window.partitionBy(*SERIES)
    # Brought together once, by series; grouped by all that tells samples apart they are hashed, where dropDuplicates would
    # sort them by the names of messages.
    once = (
        readings.where(~F.array_contains("quality", "clock_untrusted"))
        .repartition(*SERIES)
        .groupBy(*SERIES, "message_id", "sample")
        .agg(F.min("event_time").alias("end"))
    )
    return (
        once.select(*SERIES, F.lag("end").over(of_series.orderBy("end")).alias("start"), "end")
        .where("start IS NOT NULL AND start < end")
        .withColumn("step_s", (F.unix_micros("end") - F.unix_micros("start")) / 1e6)
        .withColumn("cadence_s", F.median("step_s").over(of_series))
        .where((F.col("step_s") > F.col("cadence_s") * factor) & (F.col("step_s") >= least_s))
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


def senders(readings: DataFrame) -> DataFrame:
    """What each device sent more than once, how right its clock is, and how late it sends.

    Columns: ``messages`` (different ones), ``untrusted``, ``late`` and ``repeated`` (how many of them), ``copies`` (beyond
    the first of each), ``at``, ``until`` and ``repeated_at``, ``skew_ms`` (device time less time of
    reception of the message of an hour that was the fastest on its way; the median of the hours), ``delay_ms`` (by how
    much the median of all messages is later than that), ``drift_ppm`` (the slope of the hours, without
    late messages; null with fewer than three). These three are of messages whose time is believed.
    """
    untrusted, late = (F.array_contains("quality", mark) for mark in ("clock_untrusted", "late"))
    copies = readings.groupBy(*DEVICE, "message_id", "partition", "offset").agg(
        F.min("received_time").alias("received_time"), F.max("skew_ms").alias("skew_ms"),
        F.bool_or(untrusted).alias("untrusted"), F.bool_or(late).alias("late"),
    )  # fmt: skip
    # The first of several copies has the greatest skew; the others say only how late they were.
    messages = copies.groupBy(*DEVICE, "message_id").agg(
        F.min("received_time").alias("received_time"), F.max("skew_ms").alias("skew_ms"),
        F.bool_or("untrusted").alias("untrusted"), F.bool_or("late").alias("late"), F.count("*").alias("times"),
    )  # fmt: skip
    again, good = F.col("times") > 1, ~F.col("untrusted")
    hour = F.floor(F.unix_micros("received_time") / (HOUR_S * 1e6))
    # Of each device as a whole, where there is no hour, and of each of its hours.
    spans = messages.withColumn("hour", hour).groupingSets([[*DEVICE], [*DEVICE, "hour"]], *DEVICE, "hour").agg(
        F.count("*").alias("messages"), F.count_if("untrusted").alias("untrusted"), F.count_if("late").alias("late"),
        F.count_if(again).alias("repeated"), F.sum(F.col("times") - 1).alias("copies"),
        F.min("received_time").alias("at"), F.max("received_time").alias("until"),
        F.min(F.when(again, F.col("received_time"))).alias("repeated_at"),
        F.median(F.when(good, F.col("skew_ms"))).alias("middle"),
        F.max(F.when(good, F.col("skew_ms"))).alias("fastest"),
        F.max(F.when(good & ~F.col("late"), F.col("skew_ms"))).alias("prompt"),
    )  # fmt: skip
    is_hour, second = F.col("hour").isNotNull(), F.col("hour") * float(HOUR_S)
    # An hour in which nothing but backlog came would bend the slope. A millisecond in a second is 1,000 ppm.
    drift = F.when(F.count(second + F.col("prompt")) >= 3, F.regr_slope("prompt", second) * 1_000)
    whole = (F.max(F.when(~is_hour, F.col(name))).alias(name) for name in spans.columns[3:-2])
    skew = F.median(F.when(is_hour, F.col("fastest"))).alias("skew_ms")
    devices = spans.groupBy(*DEVICE).agg(*whole, skew, drift.alias("drift_ppm"))
    return devices.withColumn("delay_ms", F.col("skew_ms") - F.col("middle")).drop("middle")


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
    # Few series change at all, and only they need to be brought into their order. Numbers can be hashed by Spark, texts are
    # sorted: so the hashes of the words are compared.
    word = F.xxhash64(what)
    changing = rows.groupBy(*SERIES).agg(F.min(word).alias("least"), F.max(word).alias("most")).where("least <> most")
    in_time = Window.partitionBy(*SERIES).orderBy("event_time", "partition", "offset", "sample")
    return (
        rows.join(F.broadcast(changing), [*SERIES], "left_semi")
        .withColumn("before", F.lag(what).over(in_time))
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
    span = (F.unix_micros("end") - F.unix_micros("start")) / 1e6
    cadence = F.col("cadence_s")
    fine, coarse = (F.format_string(f"usually every %.{digits}f s", cadence) for digits in (3, 1))
    parts = (
        _found(gaps(readings, limits.gap, limits.gap_s), "gap", at="start", until="end", count="missed", value=span,
               detail=F.when(cadence < 1, fine).otherwise(coarse)),
        _found(holes(readings), "hole", count="count",
               detail=F.format_string("partition %d, offsets %d to %d", "partition", "first", "last")),
        _found_of_senders(senders(readings), limits),
        _found(out_of_range(readings, limits.ranges), "out_of_range", at="at", until="until", count="count",
               value=F.col("worst"), detail=F.lit("the value farthest out")),
        _found(changes(readings), F.concat("what", F.lit("_change")), at="at", count="count",
               detail=F.concat_ws(" to ", "before", "after")),
        _found(new_metrics(readings, limits.settle_s), "new_metric", at="at", detail=F.lit("not sent before")),
    )  # fmt: skip
    return reduce(DataFrame.unionByName, parts)


def _found_of_senders(rows: DataFrame, limits: Limits) -> DataFrame:
    """Several findings may be made of one row, so that rows which are dear to make are made once."""
    messages, late, untrusted = F.col("messages"), F.col("late"), F.col("untrusted")
    skew, delay, drift = F.col("skew_ms"), F.col("delay_ms"), F.col("drift_ppm")
    span = {"at": "at", "until": "until"}
    tests = (
        (F.col("repeated") > 0, _row(rows, "duplicate", at="repeated_at", count="copies", value=F.col("repeated"),
                                     detail=F.lit("messages sent twice"))),
        (untrusted > 0, _row(rows, "clock_untrusted", **span, count="untrusted", value=untrusted / messages,
                             detail=F.lit("share of its messages whose time is not believed"))),
        (late > 0, _row(rows, "late", **span, count="late", value=late / messages,
                        detail=F.lit("share of its messages that came late"))),
        (F.abs(skew) > limits.skew_ms, _row(rows, "clock_skew", **span, count="messages", value=skew,
                                            detail=F.concat(F.lit("ms that its clock is "),
                                                            F.when(skew > 0, "ahead").otherwise("behind")))),
        (delay > limits.skew_ms, _row(rows, "delayed", **span, count="messages", value=delay,
                                      detail=F.lit("ms that its messages wait before they are sent"))),
        (F.abs(drift) > limits.drift_ppm, _row(rows, "clock_drift", **span, count="messages", value=drift,
                                               detail=F.lit("ppm that its clock runs fast"))),
    )  # fmt: skip
    found = (F.when(test, F.struct(*row)) for test, row in tests)
    return rows.select(F.inline(F.array_compact(F.array(*found))))


def _found(rows: DataFrame, kind: str | Column, **given: Any) -> DataFrame:
    return rows.select(*_row(rows, kind, **given))


def _row(
    rows: DataFrame, kind: str | Column, *, detail: Column, at: str = "", until: str = "", count: str = "",
    value: Column | None = None,
) -> list[Column]:  # fmt: skip
    def given(name: str, otherwise: Column) -> Column:
        return F.col(name) if name else otherwise

    no_time = F.lit(None).cast("timestamp")
    named = [F.col(name) if name in rows.columns else F.lit(None).cast("string") for name in SERIES]
    return [
        (F.lit(kind) if isinstance(kind, str) else kind).alias("kind"),
        *(column.alias(name) for column, name in zip(named, SERIES, strict=True)),
        given(at, no_time).alias("at"),
        given(until, no_time).alias("until"),
        given(count, F.lit(1)).cast("long").alias("count"),
        (F.lit(None) if value is None else value).cast("double").alias("value"),
        detail.alias("detail"),
    ]


def _beyond(low: float | None, high: float | None) -> Column:
    tests = ([] if low is None else [F.col("value") < low]) + ([] if high is None else [F.col("value") > high])
    return reduce(or_, tests, F.lit(False))
