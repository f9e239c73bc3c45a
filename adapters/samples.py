"""What a telemetry payload holds: its samples, the metrics of each, and when each was measured.

A payload is one sample, or an array of them under ``samples``. A sample may state its own time, unit and quality; all its
other members are metrics. On a topic that names a metric, that one is the sample's ``value``; where it has none, its
members are metrics below the topic's: ``lat`` on ``telemetry/position`` is ``position.lat``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from .coordinates import LATITUDES, placed
from .timestamps import CLOCK_UNTRUSTED, FIRST_MS, MAX_FUTURE_MS, MAX_PAST_MS, Reading, Stamp, judge, read_time

TIME_KEYS: Final = ("timestamp", "ts", "time", "Time")
OBSERVED_KEYS: Final = ("observedAt", "deviceTime")
# Payloads with none of these say nothing of time.
TIMED: Final = frozenset((*TIME_KEYS, "samples"))
# What a sample says beside its metrics.
BESIDE: Final = frozenset((*TIME_KEYS, *OBSERVED_KEYS, "unit", "quality"))
_BESIDE_SAMPLES: Final = BESIDE | {"samples"}
_TIME_KEYS: Final = frozenset(TIME_KEYS)
_NO_MARKS: Final[tuple[str, ...]] = ()
_LONG_AGO: Final = -(1 << 62)
GOOD: Final = (None, "good")


class Measured(NamedTuple):
    """When a sample was measured (ms), what the device's clock said beside the log's, and what is to be noted."""

    event: int
    skew: int | None
    marks: tuple[str, ...]


def samples_of(said: Mapping[str, Any]) -> list[Any] | None:
    """The samples of a payload; None where it is one itself."""
    samples = said.get("samples")
    return samples if type(samples) is list and said.keys() <= _BESIDE_SAMPLES else None


def values_of(named: str | None, said: Any) -> Iterable[tuple[str, Any]]:
    """The metrics of a sample and their values. ``named``: the metric that its topic names."""
    if type(said) is not dict:
        return ((named or "value", said),)
    if named is not None and is_one_value(said):
        return ((named, said.get("value", said)),)
    record = said if LATITUDES.isdisjoint(said) else placed(said)
    if named is None:
        return [(name, value) for name, value in record.items() if name not in BESIDE]
    return [(f"{named}.{name}", value) for name, value in record.items() if name not in BESIDE]


def is_one_value(said: Mapping[str, Any]) -> bool:
    """Whether a sample is one value, on a topic that names its metric; a sample without any metric is one as a whole."""
    return "value" in said or said.keys() <= BESIDE


def measured(sample: Any, received: int, otherwise: Measured) -> Measured:
    """When one of several samples was measured: at the time that it states itself, else as its message says."""
    if type(sample) is not dict:
        return otherwise
    word = sample.get("quality")
    own = (word,) if type(word) is str and word not in GOOD else _NO_MARKS
    if _TIME_KEYS.isdisjoint(sample):
        return otherwise._replace(marks=otherwise.marks + own)
    stated = stated_time(sample, TIME_KEYS)
    if stated is None:
        return Measured(received, None, (*own, CLOCK_UNTRUSTED))
    believed = judge(stated, received)
    marks = own if believed.quality is None else (*own, believed.quality)
    return Measured(believed.timestamp, stated.time - received, marks)


def stated_time(said: Mapping[str, Any], keys: Iterable[str]) -> Reading | None:
    """The first time under these keys that can be read."""
    return next((found for key in keys if (found := read_time(said.get(key))) is not None), None)


def stamp_of(said: dict[str, Any], received_at: int) -> Stamp:
    """The time of a plain payload: what it states itself, else the newest of its samples, else that of its arrival."""
    if not _TIME_KEYS.isdisjoint(said):
        return _stamp_of_one(said, received_at)
    samples = samples_of(said)
    return _newest(samples, received_at) if samples else Stamp(received_at)


def _newest(samples: Sequence[Any], received_at: int) -> Stamp:
    """The newest time that is believed, so that a backlog is as old as it is; a sample without a time is of now."""
    oldest, latest = max(received_at - MAX_PAST_MS, FIRST_MS), received_at + MAX_FUTURE_MS
    best, rank = Stamp(received_at), (False, _LONG_AGO, _LONG_AGO)
    newest = 0
    for sample in samples:
        if type(sample) is not dict or _TIME_KEYS.isdisjoint(sample):
            return Stamp(received_at)
        found = sample.get("ts")
        if type(found) is int and oldest <= found <= latest and "timestamp" not in sample:  # the usual case
            newest = max(newest, found)
            continue
        stamp = _stamp_of_one(sample, received_at)
        observed = stamp.observed
        own = (stamp.quality != CLOCK_UNTRUSTED, stamp.timestamp, _LONG_AGO if observed is None else observed)
        if own > rank:
            best, rank = stamp, own
    return Stamp(newest) if newest and (True, newest, _LONG_AGO) >= rank else best


def _stamp_of_one(said: dict[str, Any], received_at: int) -> Stamp:
    """The first time that can be read under a time key counts."""
    stated = False
    for key in TIME_KEYS:
        found = said.get(key)
        if found is None:
            continue
        if type(found) is int and FIRST_MS <= received_at - MAX_PAST_MS <= found <= received_at + MAX_FUTURE_MS:
            return Stamp(found)  # milliseconds that are believed: the usual case, without detours
        reading = read_time(found)
        if reading is not None:
            return judge(reading, received_at)
        stated = stated or (isinstance(found, str | int | float) and not isinstance(found, bool))
    # A time that cannot be read stays where it is, as data.
    return Stamp(received_at, CLOCK_UNTRUSTED) if stated else Stamp(received_at)
