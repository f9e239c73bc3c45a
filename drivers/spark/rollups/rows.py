"""Rows of a rollup as Spark and Arrow carry them, with the names and zones of their series."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from ....entities.analytics.calendar import RESOLUTIONS, days, offset_minutes
from .aggregates import Aggregates
from .fold import CALENDAR_DAY, LATE, NAMES, Rows, Rules
from .percentiles import QUANTILES
from .points import Ints

_WHOLE: Final = ("readings", "duplicates", "untrusted", "first_offset", "last_offset")
_REAL: Final = ("total", "least", "most", "last")
_GROWTH: Final = ("increase", "resets", "implausible")
PERCENTILES: Final = tuple(f"p{round(quantile * 100)}" for quantile in QUANTILES)
_TEXT: Final = ("domain", "device_id", "metric", "resolution", "zone")
_LONGS: Final = ("start", "end", "offset_minutes", "last_at", *_WHOLE, "resets", "implausible")
_DOUBLES: Final = (*_REAL, *PERCENTILES, "increase")
RAW: Final = StructType(
    [
        *(StructField(name, StringType()) for name in _TEXT),
        *(StructField(name, LongType()) for name in _LONGS),
        *(StructField(name, DoubleType()) for name in _DOUBLES),
    ]
)
ARROW: Final = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in _TEXT),
        *(pa.field(name, pa.int64()) for name in _LONGS),
        *(pa.field(name, pa.float64()) for name in _DOUBLES),
    ]
)


def table_of(names: list[str], rules: Rules, rows: Rows) -> pa.Table:
    """Rows as a table of the schema ``RAW``, with times as µs since 1970."""
    groups = rows.groups
    used, place = np.unique(groups.series, return_inverse=True)
    parts = [names[index].split("/", 2) for index in used]
    taken: dict[str, Any] = {
        name: pa.array([part[number] for part in parts], pa.string()).take(pa.array(place))
        for number, name in enumerate(("domain", "device_id", "metric"))
    }
    taken["resolution"] = pa.array(NAMES).take(pa.array(groups.resolution))
    zones = [rules.zones.of(part[1]) for part in parts]
    taken["zone"] = pa.array(zones, pa.string()).take(pa.array(place))
    taken["start"] = groups.start
    taken["end"], taken["offset_minutes"] = _ends(groups, zones, place)
    counter = np.array([part[2] in rules.counters for part in parts], np.bool_)[place] & (groups.resolution != LATE)
    for name in ("increase", "resets", "implausible"):
        taken[name] = pa.array(getattr(groups, name), mask=~counter)
    for name in (*_REAL, "last_at"):
        taken[name] = pa.array(getattr(groups, name), mask=groups.readings == 0)
    for name in _WHOLE:
        taken[name] = getattr(groups, name)
    for name, values in zip(PERCENTILES, rows.percentiles, strict=True):
        within = np.clip(values, groups.least, groups.most)  # a bin may reach beyond them
        taken[name] = pa.array(within, from_pandas=True)
    return pa.table([taken[name] for name in ARROW.names], schema=ARROW)


def _ends(groups: Aggregates, zones: list[str], place: Ints) -> tuple[Ints, Ints]:
    """The end of each bucket, and how far local time was ahead of UTC when it began, in minutes."""
    ends = (
        groups.start
        + np.array([*RESOLUTIONS.values(), 24 * RESOLUTIONS["1h"], 24 * RESOLUTIONS["1h"]])[groups.resolution]
    )
    ahead = np.zeros(len(ends), np.int64)
    by_day = groups.resolution >= CALENDAR_DAY
    for zone in set(zones) - {"UTC"}:
        here = (np.array(zones) == zone)[place]
        starts, which = np.unique(groups.start[here], return_inverse=True)
        ahead[here] = np.array([offset_minutes(int(start), zone) for start in starts], np.int64)[which]
        starts, which = np.unique(groups.start[here & by_day], return_inverse=True)
        ends[here & by_day] = np.array([days(int(start), int(start), zone)[1] for start in starts], np.int64)[which]
    return ends, ahead


def named(raw: DataFrame) -> DataFrame:
    """The same rows under their public names, with times as timestamps."""

    def moment(name: str) -> Column:
        return F.timestamp_micros(name)

    return raw.select(
        *(F.col(name) for name in ("domain", "device_id", "metric", "resolution")),
        moment("start").alias("start"),
        moment("end").alias("end"),
        F.col("zone"),
        F.col("offset_minutes").cast("int").alias("offset_minutes"),
        F.col("readings").alias("count"),
        F.col("total").alias("sum"),
        F.col("least").alias("min"),
        F.col("most").alias("max"),
        F.when(F.col("readings") > 0, F.col("total") / F.col("readings")).alias("mean"),
        F.col("last"),
        moment("last_at").alias("last_time"),
        *(F.col(name) for name in PERCENTILES),
        *(F.col(name) for name in ("increase", "resets", "implausible", "duplicates", "untrusted")),
        *(F.col(name) for name in ("first_offset", "last_offset")),
    )
