"""Filters over a fleet: what they take, what they refuse, and whom they mean."""

from __future__ import annotations

from typing import Any

import pytest

from iotsphere.entities.errors import MessageRefused
from iotsphere.entities.fleet import FleetFilter, parse_fleet_filter
from iotsphere.entities.shadow import ShadowKey

LABELS = {"site": "north", "model": "p1"}
REPORTED = {"battery": 15, "name": "alpha", "on": True, "net": {"rssi": -70.5}}

MEANT: list[tuple[dict[str, Any], bool]] = [
    ({"glob": "*"}, True),
    ({"glob": "pump-?"}, True),
    ({"glob": "pump-*1"}, True),
    ({"glob": "pump"}, False),
    ({"glob": "PUMP-1"}, False),
    ({"prefix": "pump-"}, True),
    ({"prefix": "tank-"}, False),
    ({"ids": ["pump-1", "tank-1"]}, True),
    ({"ids": ["tank-1"]}, False),
    ({"ids": ["pump-1"], "glob": "tank-*"}, False),
    ({"labels": {"site": "north"}}, True),
    ({"labels": {"site": "north", "model": "p2"}}, False),
    ({"labels": {"floor": "1"}}, False),
    ({"where": [{"reported": "/battery", "is": "<", "value": 20}]}, True),
    ({"where": [{"reported": "/battery", "is": "<", "value": 15}]}, False),
    ({"where": [{"reported": "/battery", "is": "<=", "value": 15.0}]}, True),
    ({"where": [{"reported": "/battery", "is": ">", "value": 14}]}, True),
    ({"where": [{"reported": "/battery", "is": ">=", "value": 16}]}, False),
    ({"where": [{"reported": "/battery", "is": "=", "value": 15.0}]}, True),
    ({"where": [{"reported": "/battery", "is": "=", "value": "15"}]}, False),
    ({"where": [{"reported": "/battery", "is": "<", "value": "2"}]}, False),
    ({"where": [{"reported": "/on", "is": "=", "value": True}]}, True),
    ({"where": [{"reported": "/on", "is": "=", "value": 1}]}, False),
    ({"where": [{"reported": "/on", "is": ">=", "value": 1}]}, False),
    ({"where": [{"reported": "/name", "is": ">", "value": "aaa"}]}, True),
    ({"where": [{"reported": "/net/rssi", "is": "<", "value": -70}]}, True),
    ({"where": [{"reported": "/net", "is": "<", "value": -70}]}, False),
    ({"where": [{"reported": "/missing", "is": "<", "value": 1}]}, False),
    ({"where": [{"reported": "/missing", "is": "!=", "value": 1}]}, True),
    ({"where": [{"reported": "/missing", "is": "exists", "value": False}]}, True),
    ({"where": [{"reported": "/net", "is": "exists", "value": True}]}, True),
    (
        {"where": [{"reported": "/battery", "is": "<", "value": 20}, {"reported": "/on", "is": "=", "value": False}]},
        False,
    ),
]


@pytest.mark.parametrize(("said", "meant"), MEANT)
def test_who_is_meant(said: dict[str, Any], meant: bool) -> None:
    wanted = parse_fleet_filter(said)
    assert wanted.matches("pump-1", LABELS, REPORTED) is meant
    assert parse_fleet_filter(wanted.as_json()) == wanted


REFUSED: list[Any] = [
    None,
    [],
    "pump-1",
    {},
    {"shadow": "radio"},
    {"ids": []},
    {"ids": "pump-1"},
    {"ids": [1]},
    {"ids": ["batch"]},
    {"ids": ["a/b"]},
    {"ids": {"$ne": None}},
    {"ids": [{"$ne": None}]},
    {"deviceId": {"$ne": None}},
    {"glob": {"$gt": ""}},
    {"glob": ""},
    {"glob": "[a-z]*"},
    {"glob": "a/b"},
    {"glob": "a*", "prefix": "a"},
    {"prefix": "a*"},
    {"prefix": 1},
    {"labels": {"site": {"$ne": None}}},
    {"labels": {"site": 1}},
    {"labels": []},
    {"where": {}},
    {"where": [{"reported": "/a", "is": "=", "value": {"$gt": 1}}]},
    {"where": [{"reported": "/a", "is": "=", "value": None}]},
    {"where": [{"reported": "a", "is": "=", "value": 1}]},
    {"where": [{"reported": {"$ne": 1}, "is": "=", "value": 1}]},
    {"where": [{"reported": "/a", "is": "$where", "value": 1}]},
    {"where": [{"reported": "/a", "is": ["="], "value": 1}]},
    {"where": [{"reported": "/a", "is": "exists", "value": 1}]},
    {"where": [{"reported": "/a", "is": "<", "value": True}]},
    {"where": [{"reported": "/a", "value": 1}]},
    {"where": [{"reported": "/a", "is": "=", "value": 1}] * 11},
    {"glob": "*", "shadow": "reported"},
    {"glob": "*", "shadow": 1},
]


@pytest.mark.parametrize("said", REFUSED)
def test_c05_a_filter_is_typed_and_nothing_in_it_is_an_operator(said: Any) -> None:
    with pytest.raises(MessageRefused) as refused:
        parse_fleet_filter(said)
    assert refused.value.code == "schema_violation"


def test_a_filter_knows_where_to_look() -> None:
    assert parse_fleet_filter({"glob": "pump-*1?"}).prefix == "pump-"
    assert parse_fleet_filter({"glob": "pump-1"}).prefix == "pump-1"
    assert parse_fleet_filter({"labels": {"a": "b"}}).prefix == ""
    assert not parse_fleet_filter({"glob": "*"}).looks_at_shadows
    radio = parse_fleet_filter({"where": [{"reported": "/a", "is": "=", "value": 1}], "shadow": "radio"})
    assert radio.looks_at_shadows
    assert radio.shadow_of("iotsphere", "d1") == ShadowKey("iotsphere", "d1", "radio")
    assert FleetFilter().as_json() == {"glob": "*"}


def test_a_glob_of_many_stars_is_decided_at_once() -> None:
    wanted = parse_fleet_filter({"glob": "*a" * 31 + "*b"})
    assert not wanted.matches("a" * 64, {}, {})
