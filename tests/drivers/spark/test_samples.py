"""Messages of several samples: as columns they are the same rows, in the same order, as one by one."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.record import Packed, pack
from iotsphere.adapters.telemetry_rows import LATE_MS
from iotsphere.adapters.timestamps import MAX_FUTURE_MS, MAX_PAST_MS
from iotsphere.drivers.spark.decoding import readings_of
from iotsphere.entities.errors import MessageRefused
from iotsphere.entities.position import Position
from iotsphere.entities.principal import device

from .test_decoding import EDGE, NOW, PARTITION, SCALARS, SCHEMA, envelope, one_by_one

NAMED = EDGE.route(device("iotsphere", "d1"), "iotsphere/devices/d1/telemetry/t")
FREE = EDGE.route(device("iotsphere", "d1"), "iotsphere/devices/d1/telemetry")
TIMES = st.sampled_from(
    [NOW, NOW - 1_000, float(NOW), NOW // 1_000, NOW * 1_000, "2025-12-31T23:59:58.5Z", "2026-01-01T00:59:58+01:00",
     NOW - LATE_MS - 1]
)  # fmt: skip
ODD = st.sampled_from(
    [NOW - MAX_PAST_MS - 1, NOW + MAX_FUTURE_MS + 1, "2025-12-31T23:59:59", "soon", None, True, -5, 1e300]
)
KEYS = st.lists(st.sampled_from(["value", "a", "b", "é"]), min_size=1, max_size=3, unique=True) | st.permutations(
    ["lat", "lon", "sat"]
)
PARTS = st.sampled_from([0, 0.0, False, 1.5])


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message whose samples are alike, or nearly so."""
    keys, clock = draw(KEYS), draw(st.sampled_from(["ts", "timestamp", "Time"]))
    place = draw(st.integers(0, len(keys)))
    samples: list[Any] = []
    for _ in range(draw(st.integers(1, 4))):
        items: list[tuple[str, Any]] = [(key, draw(PARTS if "lat" in keys else SCALARS)) for key in keys]
        items.insert(place, (clock, draw(TIMES)))
        samples.append(dict(items))
    if draw(st.integers(0, 3)) == 0:
        which = draw(st.integers(0, len(samples) - 1))
        odd = draw(st.sampled_from(["time", "key", "unit", "quality", "two", "order", "none", "bare"]))
        samples[which] = {
            "time": samples[which] | {clock: draw(ODD)}, "key": samples[which] | {"z": 1}, "unit": samples[which] | {"unit": "V"},
            "quality": samples[which] | {"quality": "sensor_error"}, "two": samples[which] | {"time": NOW},
            "order": dict(reversed(samples[which].items())), "none": {clock: NOW}, "bare": draw(SCALARS),
        }[odd]  # fmt: skip
    payload = {"samples": samples} | draw(st.sampled_from([{}, {"unit": "V"}, {"unit": 3}, {"x": 1}, {"ts": NOW - 9}]))
    word = draw(st.sampled_from([None, "good", "sensor_error", "clock_untrusted"]))
    route = draw(st.sampled_from([NAMED, FREE]))
    try:
        record = EDGE.admit(route, orjson.dumps(envelope(payload, word)), NOW)
    except MessageRefused:
        record = EDGE.admit(route, b"1", NOW)
    return pack(record, NOW + draw(st.sampled_from([0, 50, LATE_MS])))


@given(st.lists(messages(), min_size=1, max_size=5))
def test_samples_as_columns_are_as_one_by_one(stored: list[bytes]) -> None:
    pieces = [Packed(PARTITION, Position(7, 40), stored)]
    batch = readings_of(pieces, SCHEMA)
    batch.validate(full=True)
    assert batch.to_pylist() == one_by_one(pieces)


def test_samples_that_are_alike_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def unusual(*_: object) -> None:
        raise AssertionError("read one by one")

    monkeypatch.setattr("iotsphere.drivers.spark.decoding.add_rows", unusual)
    named = [{"ts": NOW - 1_000 * place, "value": place + 0.5} for place in range(3)]
    free = [{"a": 1, "b": None, "timestamp": "2025-12-31T23:40:00Z"}, {"a": 2, "b": "on", "timestamp": NOW}]
    records = [
        EDGE.admit(NAMED, orjson.dumps(named), NOW),
        EDGE.admit(NAMED, b"7", NOW),
        EDGE.admit(FREE, orjson.dumps({"samples": free, "unit": "V"}), NOW),
        EDGE.admit(NAMED, orjson.dumps([{"lat": 0, "lon": place, "sat": place, "ts": NOW} for place in (1, 0)]), NOW),
        EDGE.admit(NAMED, orjson.dumps({"lat": 0, "lon": 0, "fix": False}), NOW),
    ]
    batch = readings_of([Packed(PARTITION, Position(7, 0), [pack(record, NOW) for record in records])], SCHEMA)
    shown = [
        (row["offset"], row["sample"], row["metric"], row["value"], row["value_text"], row["quality"], row["skew_ms"], row["unit"])
        for row in batch.to_pylist()
    ]  # fmt: skip
    assert shown == [
        (1, 0, "t", 0.5, None, [], 0, None),
        (1, 1, "t", 1.5, None, [], -1_000, None),
        (1, 2, "t", 2.5, None, [], -2_000, None),
        (2, 0, "t", 7.0, None, [], None, None),
        (3, 0, "a", 1.0, None, ["late"], -1_200_000, "V"),
        (3, 0, "b", None, None, ["late", "missing"], -1_200_000, "V"),
        (3, 1, "a", 2.0, None, [], 0, "V"),
        (3, 1, "b", None, "on", [], 0, "V"),
        (4, 0, "t.lat", 0.0, None, [], 0, None),
        (4, 0, "t.lon", 1.0, None, [], 0, None),
        (4, 0, "t.sat", 1.0, None, [], 0, None),
        (4, 1, "t.lat", None, None, ["missing"], 0, None),
        (4, 1, "t.lon", None, None, ["missing"], 0, None),
        (4, 1, "t.sat", 0.0, None, [], 0, None),
        (5, 0, "t.lat", None, None, ["missing"], None, None),
        (5, 0, "t.lon", None, None, ["missing"], None, None),
        (5, 0, "t.fix", None, None, [], None, None),
    ]
