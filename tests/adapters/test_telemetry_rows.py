"""Rows of telemetry: every value is one, and what is wrong with it is said and not hidden."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.edge import Edge
from iotsphere.adapters.telemetry_rows import LATE_MS, Row, add_rows
from iotsphere.adapters.timestamps import MAX_FUTURE_MS, MAX_PAST_MS, iso
from iotsphere.drivers.clock import ManualClock
from iotsphere.entities.message import Entry, Record
from iotsphere.entities.position import Partition, Position
from iotsphere.entities.principal import device

NOW = 1_767_225_600_000
PARTITION = Partition("iotsphere", "telemetry", 3)
EDGE = Edge(ManualClock(NOW), lambda domain, channel: [Partition(domain, channel, 3)])
ID = "0197f3c2-0000-7000-8000-000000000001"


def rows_of(topic: str, payload: object, *, message_id: str | None = ID, received: int = NOW) -> list[Row]:
    """The rows of what a device publishes; ``topic`` is what follows its own levels."""
    raw = payload if isinstance(payload, bytes) else orjson.dumps(payload)
    route = EDGE.route(device("iotsphere", "d1"), f"iotsphere/devices/d1/{topic}")
    record = EDGE.admit(route, raw, NOW, message_id=message_id)
    rows: list[Row] = []
    add_rows(Entry(Position(7, 42), received, record), rows)
    return rows


def test_a_plain_number_is_one_row() -> None:
    assert rows_of("telemetry/temperature", b"21.5") == [
        Row(
            "iotsphere", "d1", "temperature", 21.5, None, None, None, NOW * 1000, NOW * 1000, None, (), ID, 3, 42, 0,
        )
    ]  # fmt: skip


def test_each_kind_of_value_has_its_column() -> None:
    payload = {"a": 1, "b": 2.5, "c": True, "d": "open", "e": {"x": [1]}, "f": None, "unit": "V", "ts": NOW - 5_000}
    rows = {row.metric: row for row in rows_of("telemetry", payload)}
    assert {name: (row.value, row.value_text, row.value_bool) for name, row in rows.items()} == {
        "a": (1.0, None, None),
        "b": (2.5, None, None),
        "c": (None, None, True),
        "d": (None, "open", None),
        "e": (None, '{"x":[1]}', None),
        "f": (None, None, None),
    }
    assert {row.unit for row in rows.values()} == {"V"}
    assert {row.event_time for row in rows.values()} == {(NOW - 5_000) * 1000}
    assert {row.skew_ms for row in rows.values()} == {-5_000}
    assert [name for name, row in rows.items() if row.quality] == ["f"]
    assert rows["f"].quality == ("missing",)


def test_samples_have_a_time_each_and_a_place() -> None:
    rows = rows_of("telemetry/energy", [{"ts": NOW - 2_000, "value": 1}, {"ts": NOW - 1_000, "value": 2}, 3])
    assert [(row.value, row.event_time // 1000 - NOW, row.skew_ms, row.sample) for row in rows] == [
        (1.0, -2_000, -2_000, 0),
        (2.0, -1_000, -1_000, 1),
        (3.0, 0, None, 2),
    ]


def test_members_of_a_record_are_metrics_below_that_of_its_topic() -> None:
    record = {"ts": NOW - 1_000, "lat": 1.0, "sat": 11, "unit": "V", "note": {"x": 1}}
    for payload, count in ((record, 1), ([record, record], 2)):
        rows = rows_of("telemetry/position", payload)
        assert [(row.metric, row.value, row.value_text, row.unit, row.event_time // 1000) for row in rows] == [
            ("position.lat", 1.0, None, "V", NOW - 1_000),
            ("position.sat", 11.0, None, "V", NOW - 1_000),
            ("position.note", None, '{"x":1}', "V", NOW - 1_000),
        ] * count
    for whole, text in (({"value": {"lat": 1}, "sat": 2}, '{"lat":1}'), ({"unit": "V"}, '{"unit":"V"}'), ({}, "{}")):
        (row,) = rows_of("telemetry/position", whole)
        assert (row.metric, row.value_text) == ("position", text)


@pytest.mark.parametrize(
    ("record", "missing"),
    [
        ({"lat": 0.0, "lon": 0.0, "sat": 0}, {"lat", "lon"}),
        ({"latitude": 0, "longitude": -0.0, "satellites": 0}, {"latitude", "longitude"}),
        ({"lat": 0, "lng": 0, "fix": False, "alt": 0, "speed": 0}, {"lat", "lng"}),
        ({"lat": 0, "lon": 0, "sats": 4, "fix": 0}, {"lat", "lon"}),
        ({"lat": 0, "lon": 0, "sat_count": 0, "lng": 0}, {"lat", "lon"}),
        ({"lat": 0, "lon": 0, "sat": 4}, set()),
        ({"lat": 0, "lon": 0}, set()),
        ({"lat": 0, "lon": 0, "sat": None, "fix": "none"}, set()),
        ({"lat": 0, "lon": 1e-7, "sat": 0}, set()),
        ({"lat": 51.5, "lon": 0, "sat": 0}, set()),
        ({"lat": 0, "sat": 0}, set()),
        ({"lat": False, "lon": False, "sat": 0}, set()),
        ({"lat": "0", "lon": "0", "sat": 0}, set()),
    ],
)
def test_a26_coordinates_without_a_fix_are_missing_and_all_else_is_kept(
    record: dict[str, object], missing: set[str]
) -> None:
    for topic, stem in (("telemetry", ""), ("telemetry/gps", "gps.")):
        rows = {row.metric.removeprefix(stem): row for row in rows_of(topic, record)}
        assert rows.keys() == record.keys()
        assert {name for name, row in rows.items() if row.quality} == missing | {
            k for k, v in record.items() if v is None
        }
        for name, row in rows.items():
            found = next((v for v in (row.value, row.value_text, row.value_bool) if v is not None), None)
            assert found == (None if name in missing else record[name])


@pytest.mark.parametrize(
    "payload",
    [
        {"Time": "1970-01-01T00:00:03", "Power": 7},
        {"ts": 64_698_438_051_149, "Power": 7},
        {"ts": "3236-01-12T23:59:48Z", "Power": 7},
        {"ts": -1, "Power": 7},
    ],
)
def test_a08_a_clock_that_is_not_believed_moves_no_time(payload: dict[str, object]) -> None:
    (row,) = [row for row in rows_of("telemetry", payload) if row.metric == "Power"]
    assert (row.value, row.event_time) == (7.0, NOW * 1000)
    assert "clock_untrusted" in row.quality
    assert row.skew_ms is not None
    assert abs(row.skew_ms) > MAX_FUTURE_MS


def test_what_is_measured_long_before_is_late() -> None:
    (on_time,) = rows_of("telemetry/t", {"value": 1, "ts": NOW - LATE_MS})
    (late,) = rows_of("telemetry/t", {"value": 1, "ts": NOW - LATE_MS - 1})
    assert (on_time.quality, late.quality) == ((), ("late",))
    (zoneless,) = rows_of("telemetry/t", {"value": 1, "ts": iso(NOW - LATE_MS - 5)[:-1]})
    assert zoneless.quality == ("late", "tz_assumed")


def test_a_senders_own_word_is_kept_unless_it_is_good() -> None:
    for word, expected in (("sensor_error", ("sensor_error",)), ("good", ())):
        (row,) = rows_of("telemetry/t", {"metadata": {"quality": word}, "payload": {"value": 1}}, message_id=None)
        assert row.quality == expected


def test_a_body_that_nobody_can_read_is_a_row_that_says_so() -> None:
    for body in (b"\xff", b"[]", b'{"metadata":3,"payload":1}', b"{}"):
        rows: list[Row] = []
        add_rows(Entry(Position(1, 2), NOW, Record(PARTITION, "iotsphere/devices/d1/telemetry", ID, body, NOW)), rows)
        (row,) = rows
        assert (row.quality, row.metric, row.value, row.value_text) == (("missing", "unreadable"), "", None, None)
    add_rows(Entry(Position(1, 2), NOW, Record(PARTITION, "iotsphere/devices/d1/telemetry", ID, b"", NOW)), rows := [])
    assert rows == []


@given(st.integers(min_value=-(1 << 45), max_value=1 << 45), st.integers(min_value=0, max_value=60_000))
def test_no_time_leaves_the_window_whatever_a_record_says(stated: int, waited: int) -> None:
    body = b'{"metadata":{"receivedAt":"x"},"payload":{"value":1}}'
    rows: list[Row] = []
    record = Record(PARTITION, "iotsphere/devices/d1/telemetry/t", ID, body, stated)
    add_rows(Entry(Position(1, 2), NOW + waited, record), rows)
    (row,) = rows
    event, received = row.event_time // 1000, row.received_time // 1000
    assert received - MAX_PAST_MS <= event <= received + MAX_FUTURE_MS
    assert ("clock_untrusted" in row.quality) == (event != stated)
