"""Telemetry for the database: each sample is a reading of its own time, and an older one is never the latest."""

from __future__ import annotations

import orjson

from iotsphere.adapters.edge import Edge
from iotsphere.adapters.telemetry_facts import readings_of
from iotsphere.drivers.clock import ManualClock
from iotsphere.entities.message import Entry
from iotsphere.entities.position import Partition, Position
from iotsphere.entities.principal import device
from iotsphere.use_cases.ports.telemetry import Reading

NOW = 1_767_225_600_000
EDGE = Edge(ManualClock(NOW), lambda domain, channel: [Partition(domain, channel, 3)])


def readings(topic: str, payload: object) -> list[Reading]:
    route = EDGE.route(device("iotsphere", "d1"), f"iotsphere/devices/d1/{topic}")
    record = EDGE.admit(route, orjson.dumps(payload), NOW)
    return list(readings_of(Entry(Position(7, 42), NOW, record)))


def latest(found: list[Reading]) -> dict[str, object]:
    """The value of each metric that a store keeps as its latest."""
    return {one.metric: one.value for one in sorted(found, key=lambda one: (one.at, one.order))}


def test_a_payload_is_a_reading_for_each_metric() -> None:
    (value,) = readings("telemetry/t", {"value": 21, "unit": "°C", "ts": NOW - 5})
    assert value[:6] == ("iotsphere", "d1", "t", 21, NOW - 5, NOW)
    assert value[7:] == ("0003-0000000007-0000000000000042", "°C", None, 0)
    several = readings("telemetry", {"a": 1, "b": {"x": [True]}, "c": None, "ts": 5, "quality": "odd"})
    assert [(one.metric, one.value, one.at, one.quality) for one in several] == [
        ("a", 1, NOW, "clock_untrusted"),
        ("b", {"x": [True]}, NOW, "clock_untrusted"),
    ]


def test_a26_the_newest_record_of_an_upload_is_the_latest_whatever_its_place() -> None:
    records = [{"ts": NOW - age, "lat": 1.0 + age, "lon": 2.0, "sat": 11} for age in (100, 300, 200)]
    for payload in (records, records[::-1]):
        found = readings("telemetry/position", payload)
        assert latest(found) == {"position.lat": 101.0, "position.lon": 2.0, "position.sat": 11}
        assert [one.at for one in found[::3]] == [record["ts"] for record in payload]


def test_a26_where_no_time_is_believed_the_devices_own_order_decides_and_no_record_is_taken_for_another() -> None:
    found = readings("telemetry/position", [{"ts": at, "lat": 0.0, "lon": 0.0, "sat": at % 7} for at in (70, 14, 8)])
    assert [(one.metric, one.value, one.at, one.quality) for one in found] == [
        ("position.sat", 0, NOW, "clock_untrusted"),
        ("position.sat", 0, NOW, "clock_untrusted"),
        ("position.lat", 0.0, NOW, "clock_untrusted"),
        ("position.lon", 0.0, NOW, "clock_untrusted"),
        ("position.sat", 1, NOW, "clock_untrusted"),
    ], "coordinates without a fix are none"
    assert latest(found)["position.sat"] == 0
    assert len({(one.message_id, one.metric, one.at, one.sample) for one in found}) == len(found)


def test_samples_have_their_own_unit_and_quality() -> None:
    samples = [{"value": 1, "ts": NOW - 1, "unit": "mV", "quality": "frozen"}, {"value": 2, "ts": NOW}, 3]
    found = readings("telemetry/u", {"samples": samples, "unit": "V"})
    assert [(one.value, one.at, one.unit, one.quality, one.sample) for one in found] == [
        (1, NOW - 1, "mV", "frozen", 0),
        (2, NOW, "V", None, 1),
        (3, NOW, "V", None, 2),
    ]
