"""Telemetry from the log as typed rows for analysts: one for each metric of each sample that a message holds.

Nothing is dropped: a value that is null, a clock that is not believed, a record that arrives long after it was measured
and even a body that cannot be read are rows too, and say so in their ``quality``:

    clock_untrusted  the device's own time is not believed, so the time at which the log took it stands for it
    late             measured more than ten minutes before the log took it
    missing          the value is null, or a coordinate without a fix
    tz_assumed       the device's time named no zone, so it was read as UTC
    unreadable       the body is none that the gateway writes

and whatever word the sender states itself, ``good`` aside.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

from ..entities.message import Entry
from .samples import GOOD, OBSERVED_KEYS, Measured, measured, samples_of, stated_time, values_of
from .timestamps import CLOCK_UNTRUSTED, MAX_FUTURE_MS, MAX_PAST_MS

LATE_MS: Final = 10 * 60 * 1000
# The last moment of the year 9999. No log took a message after it, but a forged record may say so.
LATEST_MS: Final = 253_402_300_799_999
LATE: Final = "late"
MISSING: Final = "missing"
UNREADABLE: Final = "unreadable"
_NO_MARKS: Final[tuple[str, ...]] = ()
_new: Final = tuple.__new__


class Row(NamedTuple):
    """A reading. Times are µs since 1970; ``sample``: the index within the message."""

    domain: str
    device_id: str
    metric: str
    value: float | None
    value_text: str | None
    value_bool: bool | None
    unit: str | None
    event_time: int
    received_time: int
    skew_ms: int | None
    quality: tuple[str, ...]
    message_id: str
    partition: int
    offset: int
    sample: int


class _Origin(NamedTuple):
    """What all rows of a message share; no ``metric`` where the payload names its own."""

    domain: str
    device: str
    metric: str | None
    unit: str | None
    received: int
    message_id: str
    partition: int
    offset: int


def add_rows(entry: Entry, rows: list[Row]) -> None:
    """Add the rows of an entry of a telemetry channel. An empty body, which only clears a retained value, has none."""
    position, received, record = entry
    body = record.body
    if not body:
        return
    if not 0 <= received <= LATEST_MS:
        received = min(max(received, 0), LATEST_MS)
    domain, device, metric = place_of(record.topic)
    try:
        envelope = orjson.loads(body)
        metadata, payload = envelope["metadata"], envelope["payload"]
        quality = metadata.get("quality")
    except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
        metadata, payload, quality = {}, None, UNREADABLE
        metric = metric or ""
    said = payload if type(payload) is dict else {"value": payload}
    event = record.timestamp
    skew = None
    if quality == CLOCK_UNTRUSTED:
        stated = stated_time(said, OBSERVED_KEYS)
        skew = None if stated is None else stated.time - received
    elif "receivedAt" in metadata:
        skew = event - received
    marks = _NO_MARKS if quality in GOOD else (str(quality),)
    if not received - MAX_PAST_MS <= event <= received + MAX_FUTURE_MS:
        event, marks = received, (*marks, CLOCK_UNTRUSTED)
        skew = skew if skew is None or abs(skew) <= LATEST_MS else None
    unit = said.get("unit")
    if metric is not None and not marks and event >= received - LATE_MS and "samples" not in said:
        value = said.get("value")
        if type(value) is float or type(value) is int:  # by far the most, so without detours
            row = (
                domain, device, metric, float(value), None, None, unit if type(unit) is str else None, event * 1000,
                received * 1000, skew, _NO_MARKS, record.message_id, record.partition.number, position.offset, 0,
            )  # fmt: skip
            rows.append(_new(Row, row))
            return
    stamp = Measured(event, skew, marks)
    origin = _new(
        _Origin,
        (
            domain, device, metric, unit if type(unit) is str else None, received, record.message_id,
            record.partition.number, position.offset,
        ),
    )  # fmt: skip
    samples = samples_of(said)
    if samples is None:
        _add(rows, origin, said, stamp, 0)
    else:
        for index, sample in enumerate(samples):
            _add(rows, origin, sample, measured(sample, received, stamp), index)


def _add(rows: list[Row], origin: _Origin, said: Any, stamp: Measured, index: int) -> None:
    """Add the rows of one sample."""
    domain, device, named, unit, received, message_id, partition, offset = origin
    event, skew, marks = stamp
    if event < received - LATE_MS:
        marks = (*marks, LATE)
    if type(said) is dict:
        own = said.get("unit")
        unit = own if type(own) is str else unit
    for metric, value in values_of(named, said):
        kind = type(value)
        number = text = flag = None
        noted = marks
        if kind is float or kind is int:
            number = float(value)
        elif kind is bool:
            flag = value
        elif kind is str:
            text = value
        elif value is None:
            noted = (*marks, MISSING)
        else:
            text = orjson.dumps(value).decode()
        if noted:
            noted = tuple(sorted(set(noted)))
        row = (
            domain, device, metric, number, text, flag, unit, event * 1000, received * 1000, skew, noted, message_id,
            partition, offset, index,
        )  # fmt: skip
        rows.append(_new(Row, row))


@lru_cache(maxsize=65_536)
def place_of(topic: str) -> tuple[str, str, str | None]:
    """Domain, device and metric of a topic; no metric where the payload names its own."""
    levels = topic.split("/")
    return levels[0], levels[2] if len(levels) > 2 else "", levels[4] if len(levels) > 4 else None
