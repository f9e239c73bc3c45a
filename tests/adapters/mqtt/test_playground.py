"""The playground: guests' topics, filters, payloads and properties on their way into the log and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.playground import Handed, Playground, PlaygroundEdge
from iotsphere.adapters.mqtt.properties import NONE, Properties
from iotsphere.entities.errors import Forbidden, TopicInvalid
from iotsphere.entities.message import Record
from iotsphere.entities.position import Partition
from iotsphere.entities.principal import device
from iotsphere.entities.topic import key_of, parse_filter
from tests.adapters.mqtt.packet_strategies import publishes

HOME = "play/playground"
NOW = 1_790_000_000_000
SPACE = Playground("play")
levels = st.sampled_from(["", "a", "A", "b c", "$x", ".", "..", "+x", "é"]).filter(lambda text: "+" not in text)
texts = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.lists(st.one_of(levels, st.just("+")), min_size=1, max_size=4).flatmap(
    lambda found: st.sampled_from([found, [*found, "#"]]).map("/".join).filter(bool)
)


class Clock:
    def now(self) -> int:
        return NOW


def edge() -> PlaygroundEdge:
    return PlaygroundEdge(Clock(), lambda domain, channel: [Partition(domain, channel, 0)])


def sent(packet: p.Publish) -> p.Publish:
    (event,) = SPACE.received([packet])
    assert isinstance(event, p.Publish)
    return event


def kept(packet: p.Publish) -> Record:
    """The record of a guest's message."""
    event = sent(packet)
    route = edge().route(SPACE.guest, event.topic.decode())
    return edge().admit(route, event.payload, NOW, retain=event.retain)


def matches(wanted: str, topic: str) -> bool:
    """MQTT 5 section 4.7, word by word."""
    if topic.startswith("$") and wanted[:1] in ("+", "#"):
        return False
    mine, theirs = wanted.split("/"), topic.split("/")
    for index, level in enumerate(mine):
        if level == "#":
            return True
        if index >= len(theirs) or level not in ("+", theirs[index]):
            return False
    return len(mine) == len(theirs)


@given(publishes(p.MQTT_5), texts)
def test_a_message_comes_out_as_it_went_in(packet: p.Publish, topic: str) -> None:
    packet = packet._replace(topic=topic.encode(), payload=packet.payload or b"1")
    given = packet.properties
    expected = Properties(
        payload_format_indicator=given.payload_format_indicator,
        content_type=given.content_type,
        response_topic=given.response_topic,
        correlation_data=given.correlation_data,
        user_properties=given.user_properties,
    )
    assert SPACE.handed(kept(packet)) == Handed(packet.topic, packet.payload, expected)


@given(texts, filters)
def test_a_filter_selects_what_mqtt_says(topic: str, wanted: str) -> None:
    place = sent(p.Publish(topic.encode(), b"1", 0, 0)).topic.decode()
    assert parse_filter(SPACE.filter_of(wanted)).matches(place) is matches(wanted, topic)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TopicA/+", f"{HOME}/topics/.TopicA/+"),
        ("#", f"{HOME}/topics/#"),
        ("/+", f"{HOME}/topics/./+"),
        ("$SYS/#", f"{HOME}/dollar/.$SYS/#"),
        ("$share/g/a/b", f"$share/g/{HOME}/topics/.a/.b"),
        ("$share/g/", "$share/g/"),
        ("a#", f"{HOME}/topics/.a#"),
        ("", ""),
        ("test/nosubscribe", f"{HOME}/closed"),
    ],
)
def test_filters_are_put_below_the_playground(text: str, expected: str) -> None:
    assert SPACE.filter_of(text) == expected


def test_every_event_with_a_topic_is_translated_and_the_others_are_not() -> None:
    will = p.Will("w", b"x", 1, True, Properties(will_delay_interval=3, content_type="c"))
    events: list[Any] = [
        p.Connect(5, "c", will=will),
        p.Burst([(b"a", b"1", 7, 0x32)]),
        p.Subscribe(1, (p.Request("a/#", 1, no_local=True),)),
        p.Unsubscribe(2, ("a/#",)),
        p.Oversized(b"a", b"head", 3, 2, NONE, 9, "00"),
        p.PingReq(),
    ]
    connect, burst, subscribe, unsubscribe, oversized, ping = SPACE.received(events)
    assert isinstance(connect, p.Connect)
    assert connect.will is not None
    assert connect.will.topic == f"{HOME}/topics/.w"
    assert connect.will.properties == Properties(will_delay_interval=3)
    place = f"{HOME}/topics/.a".encode()
    assert burst == p.Burst([(place, b'{"data":"MQ==","properties":"AA=="}', 7, 0x32)])
    assert subscribe == p.Subscribe(1, (p.Request(f"{HOME}/topics/.a/#", 1, no_local=True),))
    assert unsubscribe == p.Unsubscribe(2, (f"{HOME}/topics/.a/#",))
    assert oversized == p.Oversized(place, b"head", 3, 2, NONE, 9, "00")
    assert ping is events[5]


def test_an_empty_retained_message_stays_empty_and_any_other_is_kept() -> None:
    assert sent(p.Publish(b"a", b"", 0, p.RETAIN)).payload == b""
    assert SPACE.handed(kept(p.Publish(b"a", b"", 1, 2))) == Handed(b"a", b"", NONE)
    emptied = Record(Partition("play", "system", 0), f"{HOME}/topics/.a", "id", b"", NOW, 0, True, True)
    assert SPACE.handed(emptied) == Handed(b"a", b"", NONE)


def test_the_playground_leads_nowhere_else() -> None:
    for topic in ("play/devices/d1/telemetry", "play/system/alerts", "other/playground/topics/.a", f"{HOME}/closed"):
        with pytest.raises(Forbidden):
            edge().route(SPACE.guest, topic)
    with pytest.raises(Forbidden):
        edge().route(device("play", "d1"), f"{HOME}/topics/.a")
    with pytest.raises(TopicInvalid):
        edge().route(SPACE.guest, f"{HOME}/topics/.a\x07")
    assert not SPACE.guest.may_all("subscribe", parse_filter("play/#"))


def test_each_topic_is_a_key_of_its_own_in_the_channel_system() -> None:
    route = edge().route(SPACE.guest, f"{HOME}/topics/.a/.b")
    assert (route.topic.channel, route.topic.key, route.source) == ("system", f"{HOME}/topics/.a/.b", "playground")
    assert key_of(route.topic.text) == route.topic.key
    assert key_of("iotsphere/devices/d1/telemetry") == "d1"
    assert parse_filter(f"{HOME}/topics/#").channels == {"system"}
    assert parse_filter("play/devices/+/telemetry/#").channels == {"telemetry"}
