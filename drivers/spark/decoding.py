"""From stored records to readings in Arrow: columns at a time, with the same rows as one by one.

What reads a record at a time (adapters/telemetry_rows.py) says what the rows are, and reads whatever is not usual:
samples, clocks that are not believed, bodies that no gateway wrote. All else goes the short way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from ...adapters.record import Packed
from ...adapters.telemetry_rows import BESIDE, LATE, LATE_MS, MISSING, Row, add_rows, place_of
from ...adapters.timestamps import MAX_FUTURE_MS, MAX_PAST_MS
from .packed import Bools, Heads, Ints, Plain, plain_of
from .schema import batch_of

_NUMBERS: Final = frozenset((float, int))


class Values(NamedTuple):
    """Values of messages, by index; in which column each belongs, and which are null altogether."""

    which: Ints
    metric: Any
    number: Any
    text: Any
    flag: Any
    missing: Bools


def readings_of(pieces: Sequence[Packed], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of records that lie one behind the other in one partition, in their order."""
    heads = Heads(pieces)
    places = [place_of(topic.decode()) for topic in heads.topic.dictionary.to_pylist()]
    place = heads.topic.indices.to_numpy()
    plain = _on_time(heads, plain_of(heads))
    parts, usual = _values(plain, place, places)
    rest = np.ones(len(heads.stored), np.bool_)
    rest[usual] = False
    rows: list[Row] = []
    counts = []
    others = np.flatnonzero(rest)
    for index in others.tolist():
        before = len(rows)
        add_rows(heads.entry(index), rows)
        counts.append(len(rows) - before)
    found = []
    order = []
    if parts:
        values = Values(*(_joined(column) for column in zip(*parts, strict=True)))
        found.append(_batch(heads, plain, (place, places), values, schema))
        order.append(values.which)
    if rows:
        found.append(batch_of(rows, schema))
        order.append(np.repeat(others, counts))
    if not found:
        return pa.RecordBatch.from_pylist([], schema=schema)
    table = pa.Table.from_batches(found)
    which = np.concatenate(order)
    if (which[1:] < which[:-1]).any():
        table = table.take(pa.array(np.argsort(which, kind="stable")))
    return table.combine_chunks().to_batches()[0]


def _on_time(heads: Heads, plain: Plain) -> Plain:
    """Those alone whose time can be believed."""
    event, received = heads.event[plain.which], heads.received[plain.which]
    sound = (event >= received - MAX_PAST_MS) & (event <= received + MAX_FUTURE_MS)
    if sound.all():
        return plain
    payload = [value for value, kept in zip(plain.payload, sound.tolist(), strict=True) if kept]
    return plain._replace(which=plain.which[sound], payload=payload, number=plain.number[sound])


def _values(plain: Plain, place: Ints, places: Sequence[tuple[str, str, str | None]]) -> tuple[list[Values], Ints]:
    """The values of payloads that are objects and hold no samples, and the indexes of all those."""
    named = np.array([metric is not None for _, _, metric in places], np.bool_)[place[plain.which]].tolist()
    groups: dict[tuple[str, ...] | None, list[int]] = {}
    add = groups.setdefault
    for number, (said, by_topic) in enumerate(zip(plain.payload, named, strict=True)):
        if type(said) is dict and "samples" not in said:
            add(None if by_topic else tuple(said), []).append(number)
    metrics = pa.array([metric for _, _, metric in places], pa.string())
    parts = []
    for keys, numbers in groups.items():
        index = plain.which[numbers]
        payloads = (
            plain.payload if len(numbers) == len(plain.payload) else [plain.payload[number] for number in numbers]
        )
        if keys is None:
            values = [said.get("value", said) for said in payloads]
            parts.append(_classified(index, metrics.take(pa.array(place[index])), values))
            continue
        for key, column in zip(keys, zip(*map(dict.values, payloads), strict=True), strict=True):
            if key not in BESIDE:
                parts.append(_classified(index, pa.repeat(key, len(index)), column))
    usual = np.concatenate([plain.which[numbers] for numbers in groups.values()]) if groups else plain.which[:0]
    return parts, usual


def _classified(index: Ints, metric: Any, values: Sequence[Any]) -> Values:
    count = len(values)
    kinds = set(map(type, values))
    none = np.zeros(count, np.bool_)
    no_text, no_flag = pa.nulls(count, pa.string()), pa.nulls(count, pa.bool_())
    if kinds <= _NUMBERS:  # by far the most
        return Values(index, metric, pa.array(np.fromiter(values, np.float64, count)), no_text, no_flag, none)
    number = pa.array([float(value) if type(value) in _NUMBERS else None for value in values], pa.float64())
    flag = (
        pa.array([value if type(value) is bool else None for value in values], pa.bool_()) if bool in kinds else no_flag
    )
    if kinds - _NUMBERS - {bool, type(None)}:
        no_text = pa.array([_text(value) for value in values], pa.string())
    if type(None) in kinds:
        none = np.fromiter((value is None for value in values), np.bool_, count)
    return Values(index, metric, number, no_text, flag, none)


def _text(value: Any) -> str | None:
    if type(value) is str:
        return value
    return orjson.dumps(value).decode() if type(value) in (dict, list) else None


def _joined(columns: Sequence[Any]) -> Any:
    if len(columns) == 1:
        return columns[0]
    return np.concatenate(columns) if isinstance(columns[0], np.ndarray) else pa.concat_arrays(columns)


def _batch(heads: Heads, plain: Plain, topics: tuple[Ints, Sequence[Any]], values: Values, schema: pa.Schema) -> Any:
    """The rows of values, with what their messages say."""
    index = values.which
    place, places = topics
    of_topic = pa.array(place[index])
    event, received = heads.event[index], heads.received[index]
    number = np.zeros(len(heads.stored), np.int64)
    number[plain.which] = plain.number
    number = number[index]
    stamped = np.array([shared.stamped for shared in plain.shared], np.bool_)[number]
    words = sorted({shared.quality for shared in plain.shared if shared.quality is not None})
    word = np.array([0 if each.quality is None else words.index(each.quality) + 1 for each in plain.shared])[number]
    columns = {
        "domain": pa.array([domain for domain, _, _ in places], pa.string()).take(of_topic),
        "device_id": pa.array([device for _, device, _ in places], pa.string()).take(of_topic),
        "metric": values.metric,
        "value": values.number,
        "value_text": values.text,
        "value_bool": values.flag,
        "unit": _units(heads, plain, index),
        "event_time": pa.array(event * 1_000).view(pa.timestamp("us", "UTC")),
        "received_time": pa.array(received * 1_000).view(pa.timestamp("us", "UTC")),
        "skew_ms": pa.array(event - received, mask=~stamped),
        "quality": _qualities(words, word, event < received - LATE_MS, values.missing, schema.field("quality").type),
        "message_id": heads.message_id.take(pa.array(index)),
        "partition": pa.repeat(pa.scalar(heads.partition.number, pa.int32()), len(index)),
        "offset": pa.array(heads.offset[index]),
        "sample": pa.repeat(pa.scalar(0, pa.int32()), len(index)),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _units(heads: Heads, plain: Plain, index: Ints) -> Any:
    """The unit that each row's message states."""
    said = [value.get("unit") if type(value) is dict else None for value in plain.payload]
    if not any(said):
        return pa.nulls(len(index), pa.string())
    units = pa.array([unit if type(unit) is str else None for unit in said], pa.string())
    back = np.zeros(len(heads.stored), np.int64)
    back[plain.which] = np.arange(len(plain.which))
    return units.take(pa.array(back[index]))


def _qualities(words: Sequence[str], word: Ints, late: Bools, missing: Bools, kind: pa.DataType) -> Any:
    """What is to be known of each row; nearly always nothing."""
    code = word * 4 + late * 2 + missing
    used, place = np.unique(code, return_inverse=True)
    lists = []
    for each in used.tolist():
        marks = {words[each // 4 - 1]} if each >= 4 else set()
        marks |= ({LATE} if each & 2 else set()) | ({MISSING} if each & 1 else set())
        lists.append(sorted(marks))
    return pa.array(lists, kind).take(pa.array(place))
