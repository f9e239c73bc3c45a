"""The topic space: what is a topic, what is none, and in which channel it lies."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.entities.errors import TopicInvalid
from iotsphere.entities.topic import MAX_TOPIC_BYTES, Topic, is_device_id, is_domain, is_user_id, parse_topic

from .universe import SPACE

GOLDEN = {
    "iotsphere/devices/d1/telemetry": ("telemetry", "d1", "d1", None),
    "iotsphere/devices/d1/telemetry/temperature": ("telemetry", "d1", "d1", None),
    "iotsphere/devices/d1/telemetry/SHT3X-0x45:a_b.c": ("telemetry", "d1", "d1", None),
    "iotsphere/devices/a0:b1:c2/shadow/reported": ("shadow", "a0:b1:c2", "a0:b1:c2", None),
    "iotsphere/devices/D1/shadow/desired": ("shadow", "D1", "D1", None),
    "iotsphere/devices/d1/shadow/delta": ("shadow", "d1", "d1", None),
    "iotsphere/devices/d1/shadow/document": ("shadow", "d1", "d1", None),
    "iotsphere/devices/d1/shadow/radio/delta": ("shadow", "d1", "d1", None),
    "iotsphere/devices/d1/commands/status": ("commands", "d1", "d1", None),
    "iotsphere/devices/d1/commands/request": ("commands", "d1", "d1", None),
    "iotsphere/devices/d1/commands/response": ("commands", "d1", "d1", None),
    "iotsphere/devices/d1/presence": ("system", "d1", "d1", None),
    "iotsphere/devices/d1/errors": ("system", "d1", "d1", None),
    "iotsphere/devices/batch/status": ("batch", "iotsphere/devices/batch/status", None, None),
    "iotsphere/devices/batch/alerts": ("batch", "iotsphere/devices/batch/alerts", None, None),
    "acme/users/u.1@x/notifications": ("users", "u.1@x", None, "u.1@x"),
    "acme/users/u1/preferences": ("users", "u1", None, "u1"),
    "iotsphere/system/status": ("system", "iotsphere/system/status", None, None),
    "iotsphere/system/dead-letters": ("system", "iotsphere/system/dead-letters", None, None),
}

# Field case A22 (odd topics) and attack A2 (hostile ids), and the borders of the grammar.
ODD = [
    "/iotsphere/devices/d1/telemetry/t",
    "iotsphere/devices//telemetry/t",
    "iotsphere/devices/d1/telemetry/t/",
    "iotsphere/devices/HM 300/telemetry/t",
    "iotsphere/devices/room_1/hue_go_1/telemetry/t",
    "iotsphere/devices/SHSW-1#11490B#1/telemetry/t",
    "iotsphere/devices/+/telemetry/t",
    "iotsphere/devices/#",
    "#",
    "+",
    "",
    "/",
    "iotsphere",
    "iotsphere/devices",
    "iotsphere/devices/d1",
    "iotsphere/devices/d1/",
    "iotsphere/devices/d1/telemetry/a/b",
    "iotsphere/devices/d1/shadow",
    "iotsphere/devices/d1/shadow/Reported",
    "iotsphere/devices/d1/shadow/radio",
    "iotsphere/devices/d1/shadow/desired/delta",
    "iotsphere/devices/d1/shadow/radio/band/delta",
    "iotsphere/devices/d1/commands",
    "iotsphere/devices/d1/presence/x",
    "iotsphere/devices/d1/firmware",
    "iotsphere/devices/batch",
    "iotsphere/devices/batch/telemetry",
    "iotsphere/devices/batch/status/x",
    "iotsphere/users/u1",
    "iotsphere/users/u1/secrets",
    "iotsphere/system",
    "iotsphere/system/status/x",
    "iotsphere/system/unknown",
    "iotsphere/gateways/g1/status",
    "$SYS/broker/uptime",
    "$share/g/iotsphere/devices/d1/telemetry",
    "iot sphere/devices/d1/telemetry",
    "iotsphere/devices/.*/telemetry",
    "iotsphere/devices/../telemetry",
    "iotsphere/devices/-d1/telemetry",
    "iotsphere/devices/d1\x00/telemetry",
    "iotsphere/devices/d1\n/telemetry",
    "iotsphere/devices/d1\x1b[2J/telemetry",
    "iotsphere/devices/d1\x85/telemetry",
    "iotsphere/devices/d1/telemetry/t\n",
    "iotsphere/devices/d\u0131/telemetry",  # dotless i
    "iotsphere/devices/\u0430bc/telemetry",  # Cyrillic a
    "iotsphere/devices/d\uff11/telemetry",  # full-width 1
    "iotsphere/devices/d\u200b1/telemetry",  # zero-width space
    "iotsphere/devices/d\u0661/telemetry",  # an Arabic digit is no digit here
    "iotsphere/devices/\ud800/telemetry",
    "iotsphere/devices/d1/telemetry/" + "m" * 65,
    "iotsphere/devices/" + "d" * 65 + "/telemetry",
]


@pytest.mark.parametrize("text", GOLDEN)
def test_topics_of_the_space_fall_into_their_channel(text: str) -> None:
    channel, key, device_id, user_id = GOLDEN[text]
    assert parse_topic(text) == Topic(text, text.partition("/")[0], channel, key, device_id, user_id)


@pytest.mark.parametrize("text", ODD)
def test_a22_odd_topics_are_refused_and_never_repaired(text: str) -> None:
    with pytest.raises(TopicInvalid) as caught:
        parse_topic(text)
    assert caught.value.code == "topic_invalid"
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "text", ["a/" * 10 + "a", "iotsphere/devices/d1/telemetry/" + "m" * 512, "\u00e9" * 257, "x" * 65_536]
)
def test_too_long_topics_are_told_so_without_being_quoted_in_full(text: str) -> None:
    with pytest.raises(TopicInvalid) as caught:
        parse_topic(text)
    assert caught.value.code == "topic_too_long"
    assert len(caught.value.message) < 700


def test_the_longest_ids_are_allowed() -> None:
    longest = f"{'a' * 64}/devices/{'d' * 64}/telemetry/{'m' * 64}"
    assert parse_topic(longest).device_id == "d" * 64
    assert len(longest) < MAX_TOPIC_BYTES


@pytest.mark.parametrize("text", sorted(SPACE))
def test_the_test_universe_lies_in_the_space(text: str) -> None:
    assert parse_topic(text).channel == SPACE[text]


@given(st.text(max_size=600))
def test_any_text_is_a_topic_or_refused(text: str) -> None:
    try:
        topic = parse_topic(text)
    except TopicInvalid:
        return
    assert topic.text == text
    assert topic.text.isascii()


@given(st.text(alphabet=string.printable + "\u00e9\u0430\x00\ud800", max_size=70))
def test_ids_are_what_the_grammar_says(text: str) -> None:
    start = set(string.ascii_letters + string.digits)
    plain = bool(text) and text[0] in start and len(text) <= 64
    assert is_device_id(text) == (plain and set(text) <= start | set("_.:-") and text != "batch")
    assert is_user_id(text) == (plain and set(text) <= start | set("_.:@-"))
    assert is_domain(text) == (plain and set(text) <= start | set("_-"))
    if is_device_id(text):
        assert parse_topic(f"iotsphere/devices/{text}/telemetry").device_id == text
