"""Messages that hold several samples, as columns, where all samples of a message are alike and state when they were.

All others are left to adapters/telemetry_rows.py, which reads them one by one and says what the rows are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...adapters.samples import BESIDE, TIME_KEYS, is_one_value
from ...adapters.timestamps import FIRST_MS, MAX_FUTURE_MS, MAX_PAST_MS, read_time
from .packed import Heads, Ints
from .values import Origin, Values, classified, metrics_of

_BESIDE_SAMPLES: Final = BESIDE | {"samples"}
_TIME_KEYS: Final = frozenset(TIME_KEYS)
_LAST_MS: Final = FIRST_MS * 1_000


class _Alike(NamedTuple):
    """Messages whose samples have the same keys: their indexes, how many samples each has, all samples, their times."""

    which: list[int]
    counts: list[int]
    samples: list[dict[str, Any]]
    times: list[int]


def sampled(heads: Heads, payloads: Sequence[tuple[int, Mapping[str, Any]]], metric: Any) -> tuple[list[Values], Ints]:
    """The values of the samples in payloads, each with its message's index, and the indexes of all that were read.

    ``metric``: for each message the metric that its topic names, or null where the payload names its own.
    """
    groups: dict[tuple[bool, tuple[str, ...]], _Alike] = {}
    named = metric.is_valid().to_numpy(zero_copy_only=False).tolist()
    for index, said in payloads:
        samples = said["samples"]
        if type(samples) is not list or not samples or type(samples[0]) is not dict or said.keys() - _BESIDE_SAMPLES:
            continue
        keys = tuple(samples[0])
        beside = BESIDE.intersection(keys)
        if len(beside) != 1 or not beside <= _TIME_KEYS or (len(keys) == 1 and not named[index]):
            continue
        (key,) = beside
        if any([type(sample) is not dict or tuple(sample) != keys for sample in samples]):
            continue
        times = [_time(sample[key]) for sample in samples]
        if None in times:
            continue
        group = groups.setdefault((named[index], keys), _Alike([], [], [], []))
        group.which.append(index)
        group.counts.append(len(samples))
        group.samples.extend(samples)
        group.times.extend(times)  # type: ignore[arg-type]  # None is none of them
    parts: list[Values] = []
    read: list[Ints] = []
    for (by_topic, keys), group in groups.items():
        found = _of_group(heads, group)
        if found is None:
            continue
        origin, samples = found
        read.append(np.array(group.which, np.int64))
        topic = metric.take(pa.array(origin.which)) if by_topic else None
        if by_topic and is_one_value(samples[0]):
            parts.append(classified(origin, topic, [sample.get("value", sample) for sample in samples]))
            continue
        for key, column in metrics_of(keys, samples):
            name = pc.binary_join_element_wise(topic, key, ".") if by_topic else pa.repeat(key, len(column))
            parts.append(classified(origin, name, column))
    return parts, np.concatenate(read) if read else np.empty(0, np.int64)


def _of_group(heads: Heads, group: _Alike) -> tuple[Origin, list[dict[str, Any]]] | None:
    """Whose the samples are; None when a clock among them is not believed."""
    which = np.repeat(np.array(group.which, np.int64), group.counts)
    times = np.array(group.times, np.int64)
    received = heads.received[which]
    if ((times < received - MAX_PAST_MS) | (times > received + MAX_FUTURE_MS)).any():
        return None
    place = np.concatenate([np.arange(count) for count in group.counts])
    return Origin(which, place, times, np.ones(len(which), np.bool_)), group.samples


def _time(value: Any) -> int | None:
    """A time in ms, as read_time reads it; None where that needs a closer look."""
    if type(value) is int and FIRST_MS <= value < _LAST_MS:
        return value
    found = read_time(value)
    return None if found is None or found.assumed else found.time
