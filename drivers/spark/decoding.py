"""From stored records to readings in Arrow: columns at a time, with the same rows as one by one.

What reads a record at a time (adapters/telemetry_rows.py) says what the rows are, and reads whatever is not usual:
clocks that are not believed, samples that are not alike, bodies that no gateway wrote. All else goes the short way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...adapters.record import Packed
from ...adapters.samples import is_one_value
from ...adapters.telemetry_rows import LATE, LATE_MS, MISSING, Row, add_rows, place_of
from ...adapters.timestamps import MAX_FUTURE_MS, MAX_PAST_MS
from .packed import Bools, Heads, Ints, Plain, plain_of
from .samples import sampled
from .schema import batch_of
from .values import Origin, Values, classified, joined, metrics_of


def readings_of(pieces: Sequence[Packed], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of records that lie one behind the other in one partition, in their order."""
    heads = Heads(pieces)
    places = [place_of(topic.decode()) for topic in heads.topic.dictionary.to_pylist()]
    place = heads.topic.indices.to_numpy()
    plain = _on_time(heads, plain_of(heads))
    parts, usual = _values(heads, plain, (place, places))
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
        values = Values(*(joined(column) for column in zip(*parts, strict=True)))
        found.append(_batch(heads, plain, (place, places), values, schema))
        order.append((values.which, values.sample))
    if rows:
        found.append(batch_of(rows, schema))
        order.append((np.repeat(others, counts), np.fromiter((row.sample for row in rows), np.int64, len(rows))))
    if not found:
        return pa.RecordBatch.from_pylist([], schema=schema)
    table = pa.Table.from_batches(found)
    which, sample = (np.concatenate(each) for each in zip(*order, strict=True))
    if ((which[1:] < which[:-1]) | ((which[1:] == which[:-1]) & (sample[1:] < sample[:-1]))).any():
        table = table.take(pa.array(np.lexsort((sample, which))))
    return table.combine_chunks().to_batches()[0]


def _on_time(heads: Heads, plain: Plain) -> Plain:
    """Those alone whose time can be believed."""
    event, received = heads.event[plain.which], heads.received[plain.which]
    sound = (event >= received - MAX_PAST_MS) & (event <= received + MAX_FUTURE_MS)
    if sound.all():
        return plain
    payload = [value for value, kept in zip(plain.payload, sound.tolist(), strict=True) if kept]
    return plain._replace(which=plain.which[sound], payload=payload, number=plain.number[sound])


def _values(heads: Heads, plain: Plain, topics: tuple[Ints, Sequence[Any]]) -> tuple[list[Values], Ints]:
    """The values of payloads that are objects, and the indexes of all those."""
    place, places = topics
    metric = pa.array([metric for _, _, metric in places], pa.string()).take(pa.array(place))
    named = metric.is_valid().to_numpy(zero_copy_only=False)[plain.which].tolist()
    # By their keys, each under the topic that names no metric or the one that does; None: one value, on the latter.
    free: dict[tuple[str, ...] | None, list[int]] = {}
    below: dict[tuple[str, ...] | None, list[int]] = {}
    several: list[tuple[int, Any]] = []
    add, add_below = free.setdefault, below.setdefault
    for number, (said, by_topic) in enumerate(zip(plain.payload, named, strict=True)):
        if type(said) is dict:
            if "samples" in said:
                several.append((int(plain.which[number]), said))
            elif by_topic:
                add_below(None if "value" in said or is_one_value(said) else tuple(said), []).append(number)
            else:
                add(tuple(said), []).append(number)
    parts, read = sampled(heads, several, metric) if several else ([], plain.which[:0])
    for by_topic, (keys, numbers) in [(each is below, group) for each in (free, below) for group in each.items()]:
        index = plain.which[numbers]
        payloads = (
            plain.payload if len(numbers) == len(plain.payload) else [plain.payload[number] for number in numbers]
        )
        none = np.zeros(len(index), np.int64)
        origin = Origin(index, none, heads.event[index], none.astype(np.bool_))
        topic = metric.take(pa.array(index)) if by_topic else None
        if keys is None:
            parts.append(classified(origin, topic, [said.get("value", said) for said in payloads]))
            continue
        for key, column in metrics_of(keys, payloads):
            name = pc.binary_join_element_wise(topic, key, ".") if by_topic else pa.repeat(key, len(index))
            parts.append(classified(origin, name, column))
    usual = np.concatenate([read, *(plain.which[numbers] for each in (free, below) for numbers in each.values())])
    return parts, usual


def _batch(heads: Heads, plain: Plain, topics: tuple[Ints, Sequence[Any]], values: Values, schema: pa.Schema) -> Any:
    """The rows of values, with what their messages say."""
    index = values.which
    place, places = topics
    of_topic = pa.array(place[index])
    event, received = values.event, heads.received[index]
    number = np.zeros(len(heads.stored), np.int64)
    number[plain.which] = plain.number
    number = number[index]
    stamped = values.own | np.array([shared.stamped for shared in plain.shared], np.bool_)[number]
    words = sorted({shared.quality for shared in plain.shared if shared.quality is not None})
    word = np.array([0 if each.quality is None else words.index(each.quality) + 1 for each in plain.shared])[number]
    word = np.where(values.own, 0, word)
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
        "sample": pa.array(values.sample, pa.int32()),
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
