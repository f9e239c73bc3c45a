"""Topic mapping: what a rule takes, where it leads, and what is refused before anything is opened."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from iotsphere.adapters.bridge.mapping import (
    TopicMap,
    check_disjoint,
    covers,
    grants_of,
    inward_rule,
    outward_rule,
    overlaps,
    parse_pattern,
)
from iotsphere.entities.errors import RequestInvalid

D = "iotsphere"


@pytest.mark.parametrize(
    ("pattern", "to", "topic", "led"),
    [
        ("tele/{device_id}/SENSOR", "iotsphere/devices/{device_id}/telemetry", "tele/d1/SENSOR", "iotsphere/devices/d1/telemetry"),
        ("tele/{device_id}/SENSOR", "iotsphere/devices/{device_id}/telemetry", "tele/d1/STATE", None),
        ("tele/{device_id}/SENSOR", "iotsphere/devices/{device_id}/telemetry", "tele/d1/x/SENSOR", None),
        ("shellies/{id}/relay/{n}", "iotsphere/devices/shelly-{id}/telemetry/relay-{n}", "shellies/a/relay/0", "iotsphere/devices/shelly-a/telemetry/relay-0"),
        ("app/+/device/{eui}/event/up", "iotsphere/devices/{eui}/telemetry", "app/7/device/0a/event/up", "iotsphere/devices/0a/telemetry"),
        ("ask/{id}/{what}", "iotsphere/devices/{id}/shadow/{what}", "ask/d/desired", "iotsphere/devices/d/shadow/desired"),
        ("/home/{id}", "iotsphere/devices/{id}/telemetry", "/home/lamp", "iotsphere/devices/lamp/telemetry"),
        ("a.c/{id}", "iotsphere/devices/{id}/telemetry", "abc/x", None),
        ("iotsphere/devices/+/telemetry/#", None, "iotsphere/devices/d/telemetry", "iotsphere/devices/d/telemetry"),
        ("iotsphere/devices/+/telemetry/#", None, "iotsphere/devices/d/telemetry/t", "iotsphere/devices/d/telemetry/t"),
        ("iotsphere/devices/+/telemetry/#", None, "iotsphere/devices/d/shadow/reported", None),
        ("tele/{id}/SENSOR", "iotsphere/devices/{id}/telemetry", "tele/{id}/SENSOR", "iotsphere/devices/{id}/telemetry"),
    ],
)  # fmt: skip
def test_a_rule_leads_a_topic(pattern: str, to: str | None, topic: str, led: str | None) -> None:
    assert inward_rule(D, pattern, to).apply(topic) == led


@pytest.mark.parametrize(
    ("pattern", "to", "told"),
    [
        ("", "iotsphere/devices/d/telemetry", "1 to"),
        ("a\0b", "iotsphere/devices/d/telemetry", "NUL"),
        ("$share/g/tele/+", "iotsphere/devices/d/telemetry", "[sharing]"),
        ("tele/#/x", "iotsphere/devices/d/telemetry", "at the end only"),
        ("tele/a+/x", "iotsphere/devices/d/telemetry", "whole one"),
        ("tele/x{id}", "iotsphere/devices/{id}/telemetry", "whole one"),
        ("tele/{ID}", "iotsphere/devices/{ID}/telemetry", "lower-case"),
        ("tele/{id}/{id}", "iotsphere/devices/{id}/telemetry", "twice"),
        ("tele/{id}", "iotsphere/devices/{other}/telemetry", "needs other"),
        ("tele/+", "iotsphere/devices/{id}/telemetry", "no names"),
        ("tele/{id}", "iotsphere/devices/+/telemetry", "no + or #"),
        ("tele/{id}", "iotsphere/gadgets/{id}", "leads nowhere"),
        ("tele/{id}", "iotsphere/devices/{id}/telemetry/a/b", "leads nowhere"),
        ("tele/{id}", "other/devices/{id}/telemetry", "leaves the domain"),
        ("tele/{id}", "{id}/devices/d/telemetry", "leaves the domain"),
        ("tele/{id}", "iotsphere{id}/devices/d/telemetry", "leaves the domain"),
        ("tele/{id}", "iotsphere/devices/{id}/presence", "gateway's own"),
        ("tele/{id}", "iotsphere/system/alerts", "gateway's own"),
        ("tele/{id}", "$SYS/{id}", "$"),
        ("tele/{id}", "iotsphere//{id}/telemetry", "leads nowhere"),
        ("tele/+", None, "say with `to`"),
        ("+/devices/#", None, "domain"),
        ("other/devices/#", None, "outside the domain"),
        ("iotsphere/system/#", None, "nothing that a bridge"),
        ("iotsphere/gadgets/#", None, "nothing that a bridge"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused_with_a_remedy(pattern: str, to: str | None, told: str) -> None:
    with pytest.raises(RequestInvalid, match=re.escape(told)):
        inward_rule(D, pattern, to)


def test_outward_rules_take_own_topics_and_write_any() -> None:
    rule = outward_rule(D, "iotsphere/devices/{device_id}/commands/request", "cmnd/{device_id}/POWER", "value")
    assert rule.apply("iotsphere/devices/d1/commands/request") == "cmnd/d1/POWER"
    assert outward_rule(D, "iotsphere/devices/+/shadow/delta", None).apply("iotsphere/devices/d/shadow/delta") == (
        "iotsphere/devices/d/shadow/delta"
    )
    with pytest.raises(RequestInvalid, match="outside the domain"):
        outward_rule(D, "cmnd/{id}", "x/{id}")
    with pytest.raises(RequestInvalid, match="form"):
        outward_rule(D, "iotsphere/devices/+/shadow/delta", None, "xml")


def test_the_first_rule_that_takes_a_topic_counts_and_covered_filters_are_not_subscribed_twice() -> None:
    one = inward_rule(D, "tele/{id}/SENSOR", "iotsphere/devices/{id}/telemetry")
    rest = inward_rule(D, "tele/{id}/{metric}", "iotsphere/devices/{id}/telemetry/{metric}")
    both = TopicMap((one, rest))
    found = both("tele/d1/SENSOR")
    assert found is not None
    assert found.topic == "iotsphere/devices/d1/telemetry"
    other = both("tele/d1/STATE")
    assert other is not None
    assert other.topic == "iotsphere/devices/d1/telemetry/STATE"
    assert both("x/d1/STATE") is None
    assert both.filters == ("tele/+/+",)
    assert not TopicMap()


def test_filters_that_partly_select_the_same_are_refused() -> None:
    check_disjoint(("a/+/c", "b/#"))
    with pytest.raises(RequestInvalid, match="come twice"):
        check_disjoint(("a/+/c", "b/#", "a/b/+"))


def test_grants_reach_as_far_as_the_rules() -> None:
    rules = (
        inward_rule(D, "tele/{id}/SENSOR", "iotsphere/devices/{id}/telemetry"),
        inward_rule(D, "iotsphere/devices/+/commands/#", None),
        inward_rule(D, "s/{id}", "iotsphere/devices/shelly-{id}/telemetry"),
    )
    grants = {f"{grant.action}:{grant.filter.text}" for grant in grants_of(rules, D)}
    filters = {"iotsphere/devices/+/telemetry", "iotsphere/devices/+/commands/#"}
    assert grants == {f"{action}:{text}" for action in ("publish", "command") for text in filters}


LEVEL = st.sampled_from(["a", "b", "x.y", "{p}", "", "+"])
PATTERN = st.lists(LEVEL, min_size=1, max_size=4).map(
    lambda levels: "/".join(f"{{p{i}}}" if level == "{p}" else level for i, level in enumerate(levels))
)
TOPIC = st.lists(st.sampled_from(["a", "b", "x.y", "xzy", "", "n"]), min_size=1, max_size=5).map("/".join)


@given(PATTERN, st.booleans(), TOPIC)
def test_a_pattern_takes_exactly_what_its_filter_selects(pattern: str, deep: bool, topic: str) -> None:
    text = f"{pattern}/#" if deep else pattern
    if not text or not topic:
        return
    found = parse_pattern(text)
    assert (found.match(topic) is not None) == topic_matches_sub(found.filter, topic)


@given(PATTERN, PATTERN, TOPIC)
def test_covering_and_overlapping_agree_with_matching(one: str, other: str, topic: str) -> None:
    if not one or not other or not topic:
        return
    first, second = parse_pattern(one).filter, parse_pattern(other).filter
    in_first, in_second = topic_matches_sub(first, topic), topic_matches_sub(second, topic)
    assert not (in_first and in_second) or overlaps(first, second)
    assert not (covers(first, second) and in_second) or in_first


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_a_rule_or_refused(pattern: str, to: str) -> None:
    try:
        rule = inward_rule(D, pattern, to)
    except RequestInvalid:
        return
    assert rule.target.startswith(D)
