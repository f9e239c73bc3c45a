"""Health: a document for each device with last seen, gaps, uptime and battery, and an alert while it is silent.

Whether a device is silent is decided by the gateway's clock and the device's own habit, also when nothing at all
arrives any more. In a batch run it is decided for the moment of the newest reading.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ....entities.analytics.health import Health, HealthRule
from ....entities.errors import RequestInvalid
from ..alerts import CLEARED, MET, RAISED, TOPIC, left_open, tell
from ..folds import BUCKET, Moment, bucket, folded, timed, with_frontier
from ..memories import Memories
from ..schema import schemas, table_of
from ..sinks.documents import keep
from ..sinks.kept import Kept, whole_ms
from . import Counts, Job, Option, Options, Run

COLLECTION: Final = "health"
SILENCE: Final = "silence"
US: Final = 1_000_000
_TEXTS: Final = ("domain", "device_id", "state", "change")
_TIMES: Final = ("first_event", "last_event", "last_seen", "silent_since", "changed_at")
_LONGS: Final = (*_TIMES, "messages", "untrusted", "gaps", "first_offset", "last_offset")
_DOUBLES: Final = ("cadence_s", "gap_s", "uptime", "battery", "battery_per_day")
RAW, ARROW = schemas(_TEXTS, _LONGS, _DOUBLES)
_RULE: Final = HealthRule()
OPTIONS: Final = (
    Option("gap", _RULE.gap, "times the usual distance of a device's messages that make a gap"),
    Option("silent", _RULE.silent, "times the usual distance after which a device is silent"),
    Option("least_s", _RULE.least_s, "seconds before which no device is silent"),
    Option("unknown_s", _RULE.unknown_s, "seconds after which one is silent that sent too little to have a habit"),
    Option("wake_s", 10.0, "seconds between two looks at who is silent"),
    Option("battery", "battery", "the metric that shows the battery, in percent or volts"),
)


def rule_of(given: Options) -> HealthRule:
    """What the options say. Raises RequestInvalid."""
    rule = HealthRule(*(float(given[name]) for name in ("gap", "silent", "least_s", "unknown_s")))
    if min(rule.gap, rule.silent) <= 1 or min(rule.least_s, rule.unknown_s, given["wake_s"]) <= 0:
        raise RequestInvalid("the options make no sense: gap and silent are above 1, and seconds above 0")
    return rule


def transform(readings: DataFrame, run: Run) -> DataFrame:
    """The devices that were heard of, or that fell silent, as they are now."""
    rule = rule_of(run.options)

    def fold(before: bytes | None, table: pa.Table, moment: Moment) -> tuple[bytes, pa.Table]:
        memories = Memories.load(before)
        heard = table.filter(pc.not_equal(table["device"], ""))
        rows = examined(memories, heard, rule, time_of(table, moment))
        if before is not None and not rows.num_rows:
            return before, rows
        return b"" if moment.whole else memories.dump(), rows

    points = _points(readings, str(run.options["battery"]))
    if readings.isStreaming:
        points = with_frontier(points)
    else:
        points = points.crossJoin(F.broadcast(points.agg(F.max("received").alias("now"))))
    raw = folded(points, fold, RAW, wake_s=float(run.options["wake_s"]))
    return raw.withColumns({name: F.timestamp_micros(name) for name in _TIMES})


def time_of(table: pa.Table, moment: Moment) -> int:
    """What the time is: how far the part of the log got that is the farthest behind, so that who reads the past sees no
    silence in it. Where nothing came for a while, from no device at all, it is the clock's.
    """
    if not table.num_rows:
        return moment.now
    if moment.whole:
        return int(table["now"][0].as_py())
    return int(pc.min(table.filter(pc.equal(table["device"], ""))["received"]).as_py())


def _points(readings: DataFrame, battery: str) -> DataFrame:
    """A row a message and battery reading; the metrics of a message come together, and count once."""
    charge = (F.col("metric") == battery) & ~F.isnan("value")
    return timed(readings).select(
        bucket("domain", "device_id").alias(BUCKET),
        F.concat_ws("/", "domain", "device_id").alias("device"),
        F.col("at"),
        F.col("received"),
        F.col("offset"),
        F.col("untrusted"),
        F.when(charge, F.col("value")).alias("charge"),
    )


def examined(memories: Memories, table: pa.Table, rule: HealthRule, now: int) -> pa.Table:
    """Fold messages in, and look who is silent; the memories are taken further."""
    touched: dict[str, Health] = {}
    rows: list[tuple[Any, ...]] = []
    cleared: dict[str, tuple[int, int]] = {}
    columns = [table[name].to_pylist() for name in ("device", "offset", "at", "received", "untrusted", "charge")]
    ordered = sorted(zip(*columns, strict=True), key=lambda row: (row[0], row[1], row[2]))
    for (device, offset), rows_of in groupby(ordered, key=lambda row: (row[0], row[1])):
        message = list(rows_of)  # a row a metric and sample; the newest sample says when it was sent
        _, _, at, received, untrusted, _ = message[-1]
        if (health := touched.get(device)) is None:
            health = touched[device] = _remembered(memories, device, at, received, offset)
        silent_since, before = health.silent_since, health.newest if health.messages else message[0][2]
        if health.take(at, received, offset, not untrusted, rule):
            cleared[device] = silent_since, received
        for _, _, earlier, _, wild, charge in message:
            if earlier < at and not wild:
                health.fill(earlier, rule)
            if charge is not None and not wild and earlier >= before:
                health.charge(earlier, charge)
    for device, health in touched.items():
        change = CLEARED if device in cleared else None if device in memories else MET
        rows.append(_row(device, health, change, *cleared.get(device, (health.silent_since or None, None))))
        memories[device] = health.heard, b""
    for device, (heard, stored) in memories.items():
        if device in touched or now - heard > rule.least_s * US:
            health = touched.get(device) or Health.unpack(stored)
            if health.fall_silent(now, rule):
                rows.append(_row(device, health, RAISED, health.silent_since, heard + health.patience(rule)))
                touched[device] = health
    for device, health in touched.items():
        memories[device] = health.heard, health.pack()
    memories.forget(now)
    return table_of(ARROW, rows)


def _remembered(memories: Memories, device: str, at: int, received: int, offset: int) -> Health:
    if device in memories:
        return Health.unpack(memories[device][1])
    return Health(at, at, received, first_offset=offset, last_offset=offset)


def _row(device: str, health: Health, change: str | None, since: int | None, changed_at: int | None) -> tuple[Any, ...]:
    cadence = health.cadence
    return (
        *device.split("/", 1),
        *("silent" if health.silent_since else "online", change),
        *(health.first_at, health.newest, health.heard, since, changed_at),
        *(health.messages, health.untrusted, health.older_gaps + len(health.gaps)),
        *(health.first_offset, health.last_offset, None if cadence is None else cadence / US, health.gap_us / US),
        *(health.uptime, health.level, health.slope),
    )


def write(result: DataFrame, run: Run, batch: int) -> Counts:  # noqa: ARG001  a document is set as a whole
    """Keep a document for each device, and keep and tell what began or ended of silence."""
    result = result.persist()
    try:
        counts = keep(result, run.database, COLLECTION, _documents)
        of_change = F.col("change") == MET
        changes = [_alert(row.asDict()) for row in result.where(~of_change).collect()]

        def met() -> list[dict[str, Any]]:
            now = result.where(of_change).select("domain", "device_id", "last_seen", "silent_since").collect()
            names = ("domain", "device_id", "at", "raised_at")
            return [dict(zip(names, row, strict=True)) for row in now]

        changes += left_open(run, met)
    finally:
        result.unpersist()
    return {**counts, **tell(run, changes)}


FIELDS: Final = {
    "domain": "domain", "device_id": "device", "state": "state", "first_event": "firstEvent", "last_event": "lastEvent",
    "last_seen": "lastSeen", "silent_since": "silentSince", "messages": "messages", "untrusted": "untrusted",
    "gaps": "gaps", "cadence_s": "cadenceSeconds", "gap_s": "gapSeconds", "uptime": "uptime", "battery": "battery",
    "battery_per_day": "batteryPerDay",
}  # fmt: skip


def _documents(rows: pa.RecordBatch) -> list[Kept]:
    made: dict[str, Kept] = {}  # the later row of a device is the newer one
    for row in rows.to_pylist():
        if row["state"] == "online":
            row["silent_since"] = None
        body = {name: _whole(row[column]) for column, name in FIELDS.items() if row[column] is not None}
        key = f"{row['domain']}/{row['device_id']}"
        # Whoever heard of the device last knows how it is, from wherever in the log they began, or in a log made anew.
        made[key] = Kept(key, body, 0, int(row["last_seen"].timestamp() * 1_000))
    return list(made.values())


def _whole(value: Any) -> Any:
    return whole_ms(value) if isinstance(value, datetime) else value


def _alert(change: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: change[name] for name in ("domain", "device_id", "change")},
        "kind": SILENCE,
        "raised_at": change["silent_since"],
        "at": change["changed_at"],
        "last_seen": change["last_seen"].astimezone(UTC),
        "cadence_s": change["cadence_s"],
        "offset": change["last_offset"],
    }


JOB: Final = Job(
    name="health",
    version=1,
    transform=transform,
    write=write,
    stateful=True,
    mode="update",
    options=OPTIONS,
    state_options=("battery",),
    rewind_s=30 * 86_400,
    documents=COLLECTION,
    alarms=True,
    topic=TOPIC,
    rules=rule_of,
)
