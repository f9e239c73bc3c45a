"""Anomalies: alerts that a metric leaves its usual range, jumps, or stands still, raised once and cleared once.

Each metric of each device is measured by its own past. What a device sends long after it was measured, or by a clock
that is not believed, raises nothing: an alert is about now.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ....entities.analytics.detector import Detector, DetectorRule, Verdict
from ....entities.errors import RequestInvalid
from ..alerts import COLLECTION, MET, TOPIC, left_open, tell
from ..folds import BUCKET, Moment, bucket, folded, timed
from ..memories import Memories
from ..schema import schemas, table_of
from . import Counts, Job, Option, Options, Run

SECOND_US: Final = 1_000_000
_TEXTS: Final = ("domain", "device_id", "metric", "change", "kind")
_LONGS: Final = ("raised_at", "at", "since", "offset")
_DOUBLES: Final = ("value", "score", "median", "spread")
RAW, ARROW = schemas(_TEXTS, _LONGS, _DOUBLES)
_RULE: Final = DetectorRule()
OPTIONS: Final = (
    Option("window", _RULE.window, "readings that the usual of a metric is taken from"),
    Option("warm_up", _RULE.warm_up, "readings of a metric before anything is judged"),
    Option("high", _RULE.high, "robust standard deviations beyond which a reading is far out"),
    Option("low", _RULE.low, "robust standard deviations within which it is near again"),
    Option("confirm", _RULE.confirm, "so many of the last readings must be far out"),
    Option("within", _RULE.within, "how many last readings those are, 32 at most"),
    Option("sure", _RULE.sure, "times high beyond which a single reading is enough; 0 = never"),
    Option("margin", _RULE.margin, "times as far as a metric goes in its wilder hours that is far out"),
    Option("calm", _RULE.calm, "readings in a row that must be near again"),
    Option("hold_s", _RULE.hold_s, "seconds for which they must be so"),
    Option("stuck", 20, "equal readings in a row that are an alert where a metric changed before; 0 = never"),
    Option("old_s", 600, "seconds after which a reading is too old to raise anything"),
)
RULES: Final = tuple(option.name for option in OPTIONS if option.name != "old_s")


def rule_of(given: Options) -> DetectorRule:
    """What the options say. Raises RequestInvalid."""
    rule = DetectorRule(**{name: given[name] for name in RULES})
    if not 8 <= rule.warm_up <= rule.window <= 10_000:
        raise RequestInvalid("window and warm_up make no sense: 8 <= warm_up <= window <= 10000")
    if not 0 < rule.low < rule.high or rule.confirm < 1 or rule.calm < 1 or rule.hold_s < 0 or rule.stuck < 0:
        raise RequestInvalid("the borders make no sense: 0 < low < high, confirm and calm at least 1, none below 0")
    if not rule.confirm <= rule.within <= 32 or rule.sure < 0 or rule.margin < 0:
        raise RequestInvalid("the borders make no sense: confirm <= within <= 32, sure and margin at least 0")
    return rule


def transform(readings: DataFrame, run: Run) -> DataFrame:
    """A row for each alert that is raised or cleared, with times as timestamps."""
    return judgements(readings, run).where(F.col("change") != MET)


def judgements(readings: DataFrame, run: Run) -> DataFrame:
    """The same, and in stream a row with the change ``met`` for each series that was not known before."""
    rule, old_us = rule_of(run.options), int(run.options["old_s"]) * SECOND_US

    def fold(before: bytes | None, table: pa.Table, moment: Moment) -> tuple[bytes, pa.Table]:
        memories = Memories.load(before)
        found = judged(memories, table, rule, old_us, met=not moment.whole)
        return b"" if moment.whole else memories.dump(), found

    times = {name: F.timestamp_micros(name) for name in ("raised_at", "at", "since")}
    return folded(_points(readings), fold, RAW).withColumns(times)


def _points(readings: DataFrame) -> DataFrame:
    finite = F.col("value").isNotNull() & ~F.isnan("value") & (F.abs("value") < float("inf"))
    # A time that is not the device's own says nothing of the order of its readings.
    trusted = ~F.col("untrusted") & ~F.array_contains("quality", "duplicate")
    return (
        timed(readings)
        .where(finite)
        .where(trusted)
        .select(
            bucket("domain", "device_id", "metric").alias(BUCKET),
            F.concat_ws("/", "domain", "device_id", "metric").alias("series"),
            F.col("at"),
            F.col("received"),
            F.col("offset"),
            F.col("sample").cast("long").alias("sample"),
            F.col("value"),
        )
    )


def judged(memories: Memories, table: pa.Table, rule: DetectorRule, old_us: int, *, met: bool = False) -> pa.Table:
    """The alerts that change with the readings of a table, and with ``met`` the series that had no memory before.

    The memories are taken further.
    """
    series = table["series"].combine_chunks().dictionary_encode()
    names, index = series.dictionary.to_pylist(), series.indices.to_numpy(zero_copy_only=False)
    columns = [table[name].to_numpy() for name in ("at", "offset", "sample", "value", "received")]
    order = np.lexsort((columns[2], columns[1], columns[0], index))
    rows = list(zip(*(column[order].tolist() for column in (index, *columns)), strict=True))
    changes: list[tuple[Any, ...]] = []
    nothing, start = (None,) * (len(ARROW) - len(_TEXTS) - 2), 0
    while start < len(rows):
        name, end = names[rows[start][0]], start
        heard, memory = memories.get(name, (0, b""))
        is_new = met and name not in memories
        detector = Detector.unpack(memory, rule) if memory else Detector(rule)
        while end < len(rows) and rows[end][0] == rows[start][0]:
            _, at, offset, _, value, received = rows[end]
            end, heard = end + 1, max(heard, received)
            # One of the same time is a copy, or a second sample of a moment: it adds nothing.
            if at > detector.newest and (verdict := detector.take(value, at, received - at <= old_us)):
                changes.append(_row(name, offset, verdict))
        memories[name] = heard, detector.pack()
        if is_new:
            raised_at = detector.raised_at if detector.raised else None
            changes.append((*name.split("/", 2), MET, None, raised_at, detector.newest, *nothing))
        start = end
    memories.forget(max((heard for heard, _ in memories.values()), default=0))
    return table_of(ARROW, changes)


def _row(name: str, offset: int, verdict: Verdict) -> tuple[Any, ...]:
    return (
        *name.split("/", 2),
        *(verdict.change, verdict.kind, verdict.raised_at, verdict.at, verdict.since, offset),
        *(verdict.value, verdict.score, *verdict.expected),
    )


def write(result: DataFrame, run: Run, batch: int) -> Counts:  # noqa: ARG001  an alert is known by what it is about
    """Keep the alerts in the database, and tell them."""
    result = result.persist()
    try:
        was_met = F.col("change") == MET
        changes = [row.asDict() for row in result.where(~was_met).collect()]
        # A single pass knows less of what is usual than whoever follows, so it clears nobody else's.
        if run.following:
            changes += left_open(run, lambda: [row.asDict() for row in result.where(was_met).collect()])
        return tell(run, changes)
    finally:
        result.unpersist()


JOB: Final = Job(
    name="anomaly",
    version=2,
    transform=judgements,
    write=write,
    stateful=True,
    mode="update",
    options=OPTIONS,
    rules=rule_of,
    documents=COLLECTION,
    alarms=True,
    topic=TOPIC,
    state_options=("window",),
)
