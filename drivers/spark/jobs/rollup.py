"""Rollups: readings of each metric by minute, hour and day, with percentiles and the growth of counters.

Minutes and hours are absolute instants; days are the calendar days of the device's site (``zones``). Rows in the store
are set, not added to: what is written twice is the same, and a row is never replaced by one that knows less.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ....entities.analytics.calendar import MINUTE_US, days, parse_zones
from ....entities.analytics.counter import CounterRule
from ....entities.errors import RequestInvalid
from ..folds import BUCKET, NEWEST_US, Moment, bucket, folded, timed
from ..rollups.fold import LATE, MINUTE, NAMES, Rules, step
from ..rollups.points import DUPLICATE, UNTRUSTED, Points
from ..rollups.rows import ARROW, RAW, named, table_of
from ..rollups.state import State
from ..schema import listed
from ..sinks.documents import keep
from ..sinks.kept import Kept, whole_ms
from . import Counts, Job, Option, Options, Run

COLLECTION: Final = "rollups"
# Columns of the frame, and what they are called in a document.
FIELDS: Final = {
    **{name: name for name in ("domain", "metric", "resolution", "start", "end", "zone", "count", "sum", "min", "max")},
    **{name: name for name in ("mean", "last", "p50", "p95", "p99", "increase", "resets", "implausible")},
    **{name: name for name in ("duplicates", "untrusted")},
    "device_id": "device",
    "offset_minutes": "offsetMinutes",
    "last_time": "lastAt",
}
OPTIONS: Final = (
    Option("lateness_minutes", 30, "minutes by which a reading may be older than the newest of its metric and device"),
    Option("zones", "", "zones of sites for days: DEVICE=Europe/Berlin,… with * and ? in DEVICE; else UTC"),
    Option("counters", "", "metrics that are counters: NAME[:MODULUS[:MOST PER HOUR]],…"),
    Option("keep_minutes_days", 90, "days after which rows of minutes are removed; 0 keeps them"),
)


def rules_of(given: Options, since: int | None = None) -> Rules:
    """What the options say. ``since``: ms, the time that the run begins with. Raises RequestInvalid."""
    counters = dict(_counter(part.strip()) for part in str(given["counters"]).split(",") if part.strip())
    begin = None if since is None else since * 1_000
    return Rules(int(given["lateness_minutes"]) * MINUTE_US, counters, parse_zones(str(given["zones"])), begin)


def whole_from(given: Options, since: int) -> int:
    """Where to begin reading (ms), so that the rows of the days that lie around a time are whole, in every zone.

    Clocks that are ahead, as far as they are believed, put readings into a day that come before it begins.
    """
    zones = {"UTC", *(zone for _, zone in rules_of(given).zones.patterns)}
    return (min(days(since * 1_000, since * 1_000, zone)[0] for zone in zones) - NEWEST_US) // 1_000


def _counter(text: str) -> tuple[str, CounterRule]:
    name, _, rest = text.partition(":")
    modulus, _, maximum = rest.partition(":")
    try:
        rule = CounterRule(*(float(number) if number else None for number in (modulus, maximum)))
    except ValueError as error:
        raise RequestInvalid(
            f"{text!a} is no counter: write NAME, NAME:MODULUS or NAME:MODULUS:MOST_PER_HOUR"
        ) from error
    if not name or not all(bound is None or 0 < bound < float("inf") for bound in (rule.modulus, rule.maximum)):
        raise RequestInvalid(f"{text!a} is no counter: it needs a name, and numbers above 0")
    return name, rule


def transform(readings: DataFrame, run: Run) -> DataFrame:
    """The rows of all buckets that the readings change. In a batch run, those are all there are."""
    rules = rules_of(run.options, run.since)

    def fold(before: bytes | None, table: pa.Table, moment: Moment) -> tuple[bytes, pa.Table]:
        state = State.load(before)
        rows = changed_rows(state, rules, table, moment.whole)
        return b"" if moment.whole else state.dump(), rows

    return named(folded(_points(readings), fold, RAW))


def _points(readings: DataFrame) -> DataFrame:
    """What the fold needs of numbers; the rest stays out of the shuffle."""
    flags = F.when(F.col("untrusted"), UNTRUSTED).otherwise(0) + F.when(
        F.array_contains("quality", "duplicate"), DUPLICATE
    ).otherwise(0)
    finite = F.col("value").isNotNull() & ~F.isnan("value") & (F.abs("value") < float("inf"))
    return (
        timed(readings)
        .where(finite)
        .select(
            bucket("domain", "device_id", "metric").alias(BUCKET),
            F.concat_ws("/", "domain", "device_id", "metric").alias("series"),
            F.col("at"),
            F.col("received"),
            F.col("offset"),
            F.col("sample"),
            F.col("value"),
            F.xxhash64("message_id").alias("identity"),
            flags.alias("flags"),
        )
    )


def changed_rows(state: State, rules: Rules, table: pa.Table, whole: bool) -> pa.Table:
    """What the points of a table change; the state is taken further, unless these are all (``whole``)."""
    if not table.num_rows:
        return ARROW.empty_table()
    series = table["series"].combine_chunks().dictionary_encode()
    columns = {name: table[name].to_numpy() for name in table.column_names if name != "series"}
    indexes = state.indexes(series.dictionary.to_pylist())[series.indices.to_numpy()]
    fresh = Points(
        series=indexes,
        at=columns["at"],
        offset=columns["offset"],
        sample=columns["sample"].astype(np.int64),
        value=columns["value"],
        identity=columns["identity"],
        flags=columns["flags"].astype(np.int64),
        fresh=np.ones(len(indexes), np.bool_),
    )
    names = state.names  # the step may forget some and number the others anew
    return table_of(names, rules, step(rules, state, fresh, columns["received"], whole=whole))


def write(result: DataFrame, run: Run, batch: int) -> Counts:  # noqa: ARG001  what is set is the same in each batch
    """Set the rows in the database. Rows of minutes go after their time, unless somebody asked for them by a batch run.

    What a single pass reads of days before its first one is in rows that it does not know as a whole: it is counted. So
    are patterns of ``zones`` that fit no device.
    """
    if run.following:
        kept = timedelta(days=int(run.options["keep_minutes_days"]))
        return keep(result, run.database, COLLECTION, partial(_documents, kept))
    result = result.persist()
    try:
        counts = keep(
            result.where(F.col("resolution") != NAMES[LATE]), run.database, COLLECTION, partial(_documents, None)
        )
        before = result.where(F.col("resolution") == NAMES[LATE]).agg(F.sum("count")).first()
        zones = rules_of(run.options).zones
        devices = [row[0] for row in result.select("device_id").distinct().collect()] if zones.patterns else []
    finally:
        result.unpersist()
    told = {"of_days_before": before and before[0], "zones_unused": len(zones.unused(devices))}
    return {**counts, **{name: count for name, count in told.items() if count}}


def _documents(minutes_kept: timedelta | None, rows: pa.RecordBatch) -> list[Kept]:
    """The documents of rows. Fields that a row does not have are left out."""
    made = []
    columns = {name: listed(rows.column(name)) for name in rows.schema.names}
    fields = [(name, columns[column]) for column, name in FIELDS.items()]
    columns["last_time"] = [at and whole_ms(at) for at in columns["last_time"]]
    texts = [f"{start:%Y-%m-%dT%H:%M:%SZ}" for start in columns["start"]]
    for index, start in enumerate(texts):
        body = {name: values[index] for name, values in fields if values[index] is not None}
        key = f"{body['domain']}/{body['device']}/{body['metric']}/{body['resolution']}/{start}"
        brief = body["resolution"] == NAMES[MINUTE]
        expires = body["end"] + minutes_kept if minutes_kept and brief else None
        made.append(Kept(key, body, columns["first_offset"][index], columns["last_offset"][index], expires, brief))
    return made


JOB: Final = Job(
    name="rollup",
    version=1,
    transform=transform,
    write=write,
    stateful=True,
    mode="update",
    options=OPTIONS,
    documents=COLLECTION,
    rules=rules_of,
    state_options=("lateness_minutes", "zones", "counters"),
    whole_from=whole_from,
)
