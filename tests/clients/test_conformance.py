"""What MQTT 3.1.1 and MQTT 5 have in common, as a conformance suite checks it: with arbitrary topics, at every QoS."""

from __future__ import annotations

import itertools
import socket

import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.encode import encode
from iotsphere.adapters.mqtt.properties import Properties
from tests.gateways.mqtt.peer import Peer

from .guest import Guest, Will

Address = tuple[str, int]
BOTH = pytest.mark.parametrize("version", [4, 5])
_roots = itertools.count(1)


@pytest.fixture
def root() -> str:
    """A part of the topic tree that no other test uses."""
    return f"root{next(_roots)}"


def topics(root: str) -> list[str]:
    return [f"{root}/{text}" for text in ("TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA")]


def talk(address: Address, *packets: bytes) -> bytes:
    """Send raw packets over a connection of their own, and read until the gateway closes it."""
    with socket.create_connection(address, timeout=60) as wire:
        wire.sendall(b"".join(packets))
        heard = b""
        while data := wire.recv(4096):
            heard += data
        return heard


@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_comes_at_the_qos_of_its_publisher(playground: Address, root: str, version: int, qos: int) -> None:
    topic = topics(root)[0]
    with Guest(playground, version) as guest:
        assert guest.subscribe(topic) == [2]
        assert guest.publish(topic, b"hello", qos) == 0
        (message,) = guest.receives(1)
        assert (message.topic, message.payload, message.qos, message.retain) == (topic, b"hello", qos, False)


@BOTH
@pytest.mark.parametrize("asked", [0, 1, 2])
def test_a_message_comes_at_most_at_the_qos_that_was_asked(
    playground: Address, root: str, version: int, asked: int
) -> None:
    topic = topics(root)[0]
    with Guest(playground, version) as guest:
        assert guest.subscribe(topic, qos=asked) == [asked]
        for qos in range(3):
            guest.publish(topic, b"%d" % qos, qos)
        guest.receives(3)
        assert [message.qos for message in guest.messages] == [min(qos, asked) for qos in range(3)]


@BOTH
def test_a_second_connect_and_a_strange_protocol_end_the_connection(playground: Address, version: int) -> None:
    connect = encode(p.Connect(version, "twice"), version)
    assert talk(playground, connect, connect)[0] == 0x20
    assert talk(playground, connect.replace(b"\x00\x04MQTT", b"\x00\x04hjhj"))[:1] in (b"", b"\x20")


@BOTH
def test_retained_messages_are_kept_at_each_qos_and_taken_away(playground: Address, root: str, version: int) -> None:
    places = topics(root)[1:4]
    with Guest(playground, version) as guest:
        for qos, topic in enumerate(places):
            guest.publish(topic, b"qos %d" % qos, qos, retain=True)
        guest.subscribe(f"{root}/+/+")
        guest.receives(3)
        assert sorted(m.qos for m in guest.messages) == [0, 1, 2]
        assert all(m.retain for m in guest.messages)
        for qos, topic in enumerate(places):
            guest.publish(topic, b"", qos, retain=True)
    with Guest(playground, version) as guest:
        guest.subscribe(f"{root}/+/+")
        guest.publish(places[0], b"live", 1)
        assert [(m.payload, m.retain) for m in guest.receives(1)] == [(b"live", False)]


@BOTH
def test_the_will_of_a_lost_client_is_published(playground: Address, root: str, version: int) -> None:
    topic = topics(root)[2]
    with Guest(playground, version, "watcher") as watcher:
        watcher.subscribe(topic)
        with Guest(playground, version, "lost", will=(topic, b"gone", {})) as lost:
            lost.vanish()
            (message,) = watcher.receives(1)
        assert (message.payload, message.qos) == (b"gone", 2)


@BOTH
def test_no_will_follows_a_goodbye(playground: Address, root: str, version: int) -> None:
    topic = topics(root)[2]
    with Guest(playground, version, "watcher") as watcher:
        watcher.subscribe(topic)
        with Guest(playground, version, "leaving", will=(topic, b"gone", {})):
            pass
        watcher.publish(topic, b"after", 1)
        assert [m.payload for m in watcher.receives(1)] == [b"after"]


@BOTH
def test_a_silent_client_is_cut_after_its_keep_alive_and_leaves_its_will(
    playground: Address, root: str, version: int
) -> None:
    topic = topics(root)[4]
    will: Will = (topic, b"keepalive expiry", {})
    with Guest(playground, version, "watcher") as watcher:
        watcher.subscribe(topic)
        with Guest(playground, version, "silent", keep_alive=1, will=will) as silent:
            silent.hang()
            assert [m.payload for m in watcher.receives(1)] == [b"keepalive expiry"]


def test_a_client_without_id_is_let_in_for_a_clean_session_alone(playground: Address) -> None:
    with Guest(playground, 4, "") as guest:
        assert guest.connack is not None
        assert not guest.connack[1].is_failure
    refused = talk(playground, encode(p.Connect(4, "", clean_start=False), 4))
    assert refused == b"\x20\x02\x00\x02"
    with Guest(playground, 5, "", clean=False) as guest:
        assert guest.granted.AssignedClientIdentifier


@BOTH
def test_messages_wait_for_an_offline_client(playground: Address, root: str, version: int) -> None:
    with Guest(playground, version, "keeper", clean=False) as keeper:
        keeper.subscribe(f"{root}/+/+")
    with Guest(playground, version, "sender") as sender:
        for qos, topic in enumerate(topics(root)[1:4]):
            sender.publish(topic, b"qos %d" % qos, qos)
    with Guest(playground, version, "keeper", clean=False) as keeper:
        assert keeper.present
        keeper.receives(3)
        assert sorted((m.payload, m.qos) for m in keeper.messages) == [(b"qos %d" % qos, qos) for qos in range(3)]
    with Guest(playground, version, "keeper") as again:  # a clean start ends the session
        assert not again.present


@BOTH
def test_overlapping_filters_select_a_message_once_at_the_highest_qos(
    playground: Address, root: str, version: int
) -> None:
    with Guest(playground, version) as guest:
        guest.subscribe(f"{root}/TopicA/#", qos=2)
        guest.subscribe(f"{root}/TopicA/+", qos=1)
        guest.publish(topics(root)[3], b"overlapping", 2)
        guest.publish(topics(root)[3], b"end", 2)
        guest.receives(2)
        assert [(m.payload, m.qos) for m in guest.messages] == [(b"overlapping", 2), (b"end", 2)]


@BOTH
def test_what_was_not_acknowledged_comes_again(playground: Address, root: str, version: int) -> None:
    with Guest(playground, version, "keeper", clean=False) as keeper:
        keeper.subscribe(f"{root}/#")
        keeper.hang()
        with Guest(playground, version, "sender") as sender:
            sender.subscribe(f"{root}/#")
            for qos in (1, 2):
                sender.publish(topics(root)[1], b"%d" % qos, qos)
            sender.receives(2)
        keeper.vanish()
    with Guest(playground, version, "keeper", clean=False) as keeper:
        assert keeper.present
        assert [m.payload for m in keeper.receives(2)] == [b"1", b"2"]
        assert [m.dup for m in keeper.messages] == [True, True]


@BOTH
async def test_a_client_that_answers_none_of_its_own_messages_gets_them_again(
    playground: Address, root: str, version: int
) -> None:
    kept: dict[str, object] = {"properties": Properties(session_expiry_interval=60)} if version == p.MQTT_5 else {}
    async with Peer(playground, version) as peer:
        await peer.connect(None, f"mute{version}", clean_start=False, **kept)
        await peer.subscribe(p.Request(f"{root}/#", 2))
        peer.send(*(p.Publish(topics(root)[qos].encode(), b"", qos, qos << 1) for qos in (1, 2)))
        await peer.take(p.Publish, 2)
        assert {(answer.kind, answer.packet_id) for answer in await peer.take(p.Ack, 2)} == {
            (p.PUBACK, 1),
            (p.PUBREC, 2),
        }
        peer.send(p.Ack(p.PUBREL, 2))
        assert (await peer.expect(p.Ack)).kind == p.PUBCOMP
        peer.send(p.Disconnect())
        await peer.end()
    async with Peer(playground, version) as peer:
        assert (await peer.connect(None, f"mute{version}", clean_start=False)).session_present
        first, second = await peer.take(p.Publish, 2)
        assert [(m.topic.decode(), m.qos, m.flags & 8) for m in (first, second)] == [
            (topics(root)[1], 1, 8),
            (topics(root)[2], 2, 8),
        ]
        peer.send(p.Ack(p.PUBACK, first.packet_id), p.Ack(p.PUBREC, second.packet_id))
        assert (await peer.expect(p.Ack)) == p.Ack(p.PUBREL, second.packet_id)


@BOTH
def test_a_filter_that_nobody_may_have_is_refused_alone(playground: Address, root: str, version: int) -> None:
    with Guest(playground, version) as guest:
        assert guest.subscribe("test/nosubscribe", topics(root)[0]) == [0x80, 2]


@BOTH
def test_no_wildcard_at_the_beginning_selects_a_dollar_topic(playground: Address, root: str, version: int) -> None:
    with Guest(playground, version) as guest:
        guest.subscribe("+/+", "#")
        guest.messages.clear()
        guest.publish(f"${root}/B", b"dollar", 1)
        guest.publish(f"{root}/B", b"plain", 1)
        guest.until(lambda: b"plain" in guest.payloads, "the plain one")
        assert b"dollar" not in guest.payloads
        guest.subscribe(f"${root}/#")
        guest.publish(f"${root}/B", b"dollar", 1)
        guest.until(lambda: b"dollar" in guest.payloads, "the one that was asked for")


@BOTH
def test_nothing_comes_for_a_filter_that_was_given_up(playground: Address, root: str, version: int) -> None:
    places = topics(root)[:3]
    with Guest(playground, version) as guest:
        guest.subscribe(*places)
        guest.client.unsubscribe(places[0])
        guest.until(lambda: guest.unsubacks, "the UNSUBACK")
        for number, topic in enumerate(places):
            guest.publish(topic, b"topic %d" % number, 1)
        guest.receives(2)
        assert sorted(guest.payloads) == [b"topic 1", b"topic 2"]


@BOTH
def test_levels_may_be_empty_and_payloads_too(playground: Address, root: str, version: int) -> None:
    with Guest(playground, version) as guest:
        guest.subscribe(f"{root}/+/TopicA", f"{root}//+")
        guest.publish(topics(root)[4], b"", 1)
        assert [(m.topic, m.payload) for m in guest.receives(1)] == [(f"{root}//TopicA", b"")]
