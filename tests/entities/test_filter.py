"""Filters against brute force: which topics they select, cover, share, and in which channels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.entities.errors import FilterInvalid
from iotsphere.entities.topic import TopicFilter, parse_filter, parse_topic
from tests.support.examples import tried

from .universe import ALL_TOPICS, SPACE, selects, space_filters, tiny_filters


@given(tiny_filters())
def test_matches_is_the_mqtt_rule(wanted: TopicFilter) -> None:
    for topic in ALL_TOPICS:
        assert wanted.matches(topic) == selects(wanted.text, topic), topic


@tried(100)
@given(tiny_filters(), tiny_filters())
def test_covers_means_that_every_topic_is_selected(one: TopicFilter, two: TopicFilter) -> None:
    every = all(selects(one.text, topic) for topic in ALL_TOPICS if selects(two.text, topic))
    assert one.covers(two) == every


@tried(100)
@given(tiny_filters(), tiny_filters())
def test_overlaps_means_that_some_topic_is_selected_by_both(one: TopicFilter, two: TopicFilter) -> None:
    some = any(selects(one.text, topic) and selects(two.text, topic) for topic in ALL_TOPICS)
    assert one.overlaps(two) == two.overlaps(one) == some


@given(tiny_filters())
def test_exact_filters_select_one_topic(wanted: TopicFilter) -> None:
    count = sum(selects(wanted.text, topic) for topic in ALL_TOPICS)
    assert wanted.is_exact == (count == 1 and selects(wanted.text, wanted.text) and not {"+", "#"} & set(wanted.levels))


@given(space_filters())
def test_channels_are_never_too_few(wanted: TopicFilter) -> None:
    seen = {channel for topic, channel in SPACE.items() if selects(wanted.text, topic)}
    assert seen <= wanted.channels


@given(space_filters())
def test_channels_are_never_too_many(wanted: TopicFilter) -> None:
    # A witness for each channel: the space over the filter's own levels, so that any id it names is tried.
    names = sorted({level for level in wanted.levels if level not in ("+", "#")} | {"d1", "t", "batch", "users"})
    witnesses = set()
    for one in names:
        for two in names:
            for topic in _topics(wanted.domain, one, two):
                if selects(wanted.text, topic):
                    witnesses.add(parse_topic(topic).channel)
    assert wanted.channels == witnesses


def _topics(domain: str, name: str, metric: str) -> list[str]:
    tails = ["telemetry", f"telemetry/{metric}", "presence", "errors", "commands/request", "commands/response"]
    tails += ["commands/status", "status", "alerts"]
    parts = ("reported", "desired", "delta", "document")
    tails += [f"shadow/{part}" for part in parts]
    tails += [f"shadow/{metric}/{part}" for part in parts if metric not in parts]
    texts = [f"{domain}/devices/{name}/{tail}" for tail in tails]
    texts += [f"{domain}/users/{name}/notifications", f"{domain}/users/{name}/preferences"]
    texts += [f"{domain}/system/{leaf}" for leaf in ("status", "metrics", "alerts", "dead-letters")]
    return [text for text in texts if _in_space(text)]


def _in_space(text: str) -> bool:
    levels = text.split("/")
    if levels[2] == "-no-id" or (len(levels) > 4 and levels[4] in ("+", "#")):
        return False
    return (levels[1] != "devices") or ((levels[2] == "batch") == (levels[3] in ("status", "alerts")))


CHANNELS = {
    "iotsphere/#": {"telemetry", "shadow", "commands", "users", "system", "batch"},
    "iotsphere/devices/+/telemetry/#": {"telemetry"},
    "iotsphere/devices/d1/#": {"telemetry", "shadow", "commands", "system"},
    "iotsphere/devices/batch/#": {"batch"},
    "iotsphere/devices/batch/telemetry": set(),
    "iotsphere/devices/-d1/#": set(),
    "iotsphere/devices/+/presence": {"system"},
    "iotsphere/+/+/alerts": {"batch"},
    "iotsphere/+/alerts": {"system"},
    "iotsphere/users/u1/+": {"users"},
    "iotsphere/system/status/#": {"system"},
    "iotsphere/devices": set(),
    "iotsphere": set(),
    "iotsphere/a/b/c/d/e": set(),
}


@pytest.mark.parametrize("text", CHANNELS)
def test_channels_by_example(text: str) -> None:
    assert parse_filter(text).channels == CHANNELS[text]


BAD = [
    "",
    "#",
    "+",
    "+/devices/#",
    "/iotsphere/#",
    "$SYS/#",
    "$share/g/#",
    "$share/g/iotsphere/#",
    "iotsphere/#/devices",
    "iotsphere/devices#",
    "iotsphere/devices/d+/telemetry",
    "iotsphere//telemetry",
    "iotsphere/devices/",
    "iotsphere/devices/d\x00",
    "iotsphere/devices/\ud800",
    "iotsphere/" + "+/" * 9 + "#",
    "iotsphere/" + "d" * 512,
]


@pytest.mark.parametrize("text", BAD)
def test_filters_outside_the_rules_are_refused(text: str) -> None:
    with pytest.raises(FilterInvalid) as caught:
        parse_filter(text)
    assert caught.value.code == "filter_invalid"
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 700


@given(st.text(max_size=80))
def test_any_text_is_a_filter_of_one_domain_or_refused(text: str) -> None:
    try:
        wanted = parse_filter(text)
    except FilterInvalid:
        return
    assert "/".join(wanted.levels) == wanted.text == text
    assert wanted.domain.isascii()
    assert wanted.domain not in ("+", "#")
