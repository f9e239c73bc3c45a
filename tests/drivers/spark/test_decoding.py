"""Columns of many records at once hold the same rows, in the same order, as reading them one by one does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.edge import Edge
from iotsphere.adapters.record import Packed, pack, unpack
from iotsphere.adapters.telemetry_rows import LATE_MS, add_rows
from iotsphere.adapters.timestamps import MAX_FUTURE_MS, MAX_PAST_MS
from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.spark.columns import FORMATS
from iotsphere.drivers.spark.decoding import readings_of
from iotsphere.drivers.spark.schema import batch_of
from iotsphere.entities.errors import MessageRefused
from iotsphere.entities.message import Record
from iotsphere.entities.position import Partition, Position
from iotsphere.entities.principal import device

NOW = 1_767_225_600_000
PARTITION = Partition("iotsphere", "telemetry", 3)
EDGE = Edge(ManualClock(NOW), lambda domain, channel: [Partition(domain, channel, 3)])
SCHEMA = FORMATS["readings"].arrow()
ID = "0197f3c2-0000-7000-8000-000000000001"

TIMES = st.sampled_from(
    [NOW, NOW - 5_000, NOW - LATE_MS, NOW - LATE_MS - 1, NOW - MAX_PAST_MS - 1, NOW + MAX_FUTURE_MS + 1, 5, "2025-12-31T23:59:59"]
)  # fmt: skip
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = (
    NUMBERS | st.booleans() | st.none() | st.sampled_from(["open", '},"payload":', '"quality":"x"', "é\u2028", ""])
)
VALUES = (
    SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.sampled_from(["x", "quality"]), SCALARS, max_size=2)
)
NAMES = st.sampled_from(["value", "unit", "ts", "a", "b", 'q"', "quality", "samples", "observedAt", "metadata"])
PARTS = st.sampled_from([0, 0.0, False, 1.5, None])
PLACES = st.fixed_dictionaries({"lat": PARTS, "lon": PARTS}, optional={"lng": PARTS, "sat": PARTS, "fix": PARTS})
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4) | PLACES
TIMED = st.builds(lambda said, at: {**said, "ts": at}, OBJECTS, TIMES)
SAMPLES = st.lists(TIMED | VALUES, max_size=3)
PAYLOADS = NUMBERS | OBJECTS | TIMED | SAMPLES | st.builds(lambda samples: {"samples": samples, "unit": "V"}, SAMPLES)
TOPICS = st.sampled_from(["telemetry", "telemetry/temperature", "telemetry/status", "telemetry/t-2"])
WORDS = st.sampled_from([None, "good", "sensor_error", "clock_untrusted", "tz_assumed"])


def envelope(payload: object, quality: str | None) -> object:
    return payload if quality is None else {"metadata": {"quality": quality}, "payload": payload}


@st.composite
def admitted(draw: st.DrawFn) -> bytes:
    """What a gateway keeps of what a device publishes."""
    topic = draw(TOPICS)
    name = draw(st.sampled_from(["d1", "d-2"]))
    route = EDGE.route(device("iotsphere", name), f"iotsphere/devices/{name}/{topic}")
    payload = orjson.dumps(envelope(draw(PAYLOADS), draw(WORDS)))
    try:
        record = EDGE.admit(route, payload, NOW, message_id=draw(st.sampled_from([None, ID])))
    except MessageRefused:
        record = EDGE.admit(route, b"1", NOW)
    return pack(record, NOW + draw(st.sampled_from([0, 1_000, LATE_MS, MAX_PAST_MS + 1])))


BODIES = st.sampled_from(
    [
        b"", b"\xff", b"[]", b"{}", b'{"metadata":3,"payload":1}', b'{"metadata":{},"payload":1}',
        b'{"metadata":{"messageId":"%b","timestamp":"2026-01-01T00:00:00.000Z","x":1},"payload":7}' % ID.encode(),
        b'{"metadata":{"messageId":"%b","timestamp":"2026-01-01T00:00:00.000Z","x":1},"payload":{"v":7}} ' % ID.encode(),
        b'{"metadata":{"messageId":"%b","timestamp":"2026-01-01T00:00:00.000Z"},"payload":[1]}' % ID.encode(),
        b'{"metadata":{"messageId":"%b","timestamp":"2026-01-01T00:00:00.000Z"},"payload":nought}' % ID.encode(),
        b'{"metadata":{"messageId":"%b","timestamp":"2026-01-01T00:00:00.000Z","quality":7},"payload":1}' % ID.encode(),
        b'{"metadata":{"messageId":"%b","timestamp":"2026-01-01T00:00:00.000Z","q":{"z":{}},"payload":1}' % ID.encode(),
        b'{"metadata":{"messageId":"%b","timestamp":"2026-01-01T00:00:00.000Z","q":1},"payload":1,"payload":{"c":2}}'
        % ID.encode(),
        b'{"metadata":{"messageId":"%b","timestamp":"2026-01-01T00:00:00\\u002E000","q":1},"payload":{"c":2}}'
        % ID.encode(),
    ]
)  # fmt: skip
FORGED = st.builds(
    lambda body, topic, at: pack(Record(PARTITION, topic, ID, body, at), NOW),
    BODIES,
    st.sampled_from(["iotsphere/devices/d1/telemetry", "iotsphere/devices/d1/telemetry/t", "iotsphere"]),
    st.sampled_from([NOW, NOW - LATE_MS - 1]),
)


def one_by_one(pieces: Sequence[Packed]) -> list[dict[str, Any]]:
    rows: list[Any] = []
    for piece in pieces:
        for entry in piece:
            add_rows(entry, rows)
    found: list[dict[str, Any]] = batch_of(rows, SCHEMA).to_pylist() if rows else []
    return found


@given(st.lists(st.lists(admitted() | FORGED, min_size=1, max_size=8), min_size=1, max_size=3))
def test_all_at_once_is_as_one_by_one(stored: list[list[bytes]]) -> None:
    pieces = [Packed(PARTITION, Position(7 + place, 40 * place), records) for place, records in enumerate(stored)]
    batch = readings_of(pieces, SCHEMA)
    assert batch.schema == SCHEMA
    batch.validate(full=True)
    assert batch.to_pylist() == one_by_one(pieces)


def test_packed_records_are_entries_for_whoever_looks_at_them() -> None:
    route = EDGE.route(device("iotsphere", "d1"), "iotsphere/devices/d1/telemetry/t")
    stored = [pack(EDGE.admit(route, b"%d" % number, NOW), NOW) for number in range(3)]
    packed = Packed(PARTITION, Position(7, 41), stored)
    entries = [unpack(one, PARTITION, Position(7, 42 + place)) for place, one in enumerate(stored)]
    assert (list(packed), packed[-1], packed[1:]) == (entries, entries[2], entries[1:])
    assert (len(packed), packed.size) == (3, sum(map(len, stored)))
    with pytest.raises(IndexError):
        packed[3]
    assert list(Packed(PARTITION, Position(7, 41), [])) == []


def test_a_usual_batch_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def unusual(*_: object) -> None:
        raise AssertionError("read one by one")

    monkeypatch.setattr("iotsphere.drivers.spark.decoding.add_rows", unusual)
    named = EDGE.route(device("iotsphere", "d1"), "iotsphere/devices/d1/telemetry/t")
    free = EDGE.route(device("iotsphere", "d1"), "iotsphere/devices/d1/telemetry")
    records = [
        EDGE.admit(named, b"1", NOW),
        EDGE.admit(free, orjson.dumps({"a": 1.5, "b": "on", "unit": "V", "ts": NOW - LATE_MS - 1}), NOW),
        EDGE.admit(named, orjson.dumps({"value": None, "ts": "2025-12-31T23:59:59"}), NOW),
    ]
    batch = readings_of([Packed(PARTITION, Position(7, 0), [pack(record, NOW) for record in records])], SCHEMA)
    shown = [(row["metric"], row["value"], row["quality"], row["skew_ms"]) for row in batch.to_pylist()]
    assert shown == [
        ("t", 1.0, [], None),
        ("a", 1.5, ["late"], -LATE_MS - 1),
        ("b", None, ["late"], -LATE_MS - 1),
        ("t", None, ["missing", "tz_assumed"], -1_000),
    ]
    assert isinstance(batch, pa.RecordBatch)
