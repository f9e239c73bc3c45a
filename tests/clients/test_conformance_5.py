"""What MQTT 5 adds, as a conformance suite checks it: properties, options, expiry, aliases, flow control, sharing."""

from __future__ import annotations

import itertools
import select
import socket
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.codec import Parser
from iotsphere.adapters.mqtt.encode import encode
from iotsphere.adapters.mqtt.properties import Properties
from tests.gateways.mqtt.peer import Peer, ack

from .guest import Guest, properties

Address = tuple[str, int]
FIVE = 5
_roots = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """A topic of this test alone."""
    return f"five{next(_roots)}/TopicA"


def said_with(message: paho.MQTTMessage) -> Any:
    """A message's properties, which Paho makes anew for each kind of packet."""
    return message.properties


def publish(topic: str, payload: bytes, packet_id: int = 0, qos: int = 0, **fields: Any) -> p.Publish:
    return p.Publish(topic.encode(), payload, packet_id, qos << 1, Properties(**fields))


# What a publisher says beside its payload


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ({"UserProperty": [("a", "2"), ("c", "3"), ("a", "4")]}, {"UserProperty": [("a", "2"), ("c", "3"), ("a", "4")]}),
        ({"PayloadFormatIndicator": 1, "ContentType": "My name"}, {"PayloadFormatIndicator": 1, "ContentType": "My name"}),
        ({"ResponseTopic": "r/t", "CorrelationData": b"334"}, {"ResponseTopic": "r/t", "CorrelationData": b"334"}),
    ],
    ids=["user properties", "payload format", "request and response"],
)  # fmt: skip
def test_properties_reach_the_subscriber_at_each_qos(
    playground: Address, topic: str, said: dict[str, Any], heard: dict[str, Any]
) -> None:
    with Guest(playground, FIVE) as guest:
        guest.subscribe(topic)
        for qos in range(3):
            guest.publish(topic, b"", qos, **said)
        for message in guest.receives(3):
            assert {name: getattr(said_with(message), name, None) for name in heard} == heard


def test_properties_are_retained_and_belong_to_wills_too(playground: Address, topic: str) -> None:
    given = {"UserProperty": [("a", "2"), ("a", "3")], "ContentType": "text/plain"}
    with Guest(playground, FIVE, "watcher") as watcher:
        watcher.publish(topic, b"kept", 1, retain=True, **given)
        watcher.subscribe(topic)
        watcher.receives(1)
        with Guest(playground, FIVE, "lost", will=(topic, b"gone", given)) as lost:
            lost.vanish()
            watcher.receives(2)
        assert [(m.payload, m.retain) for m in watcher.messages] == [(b"kept", True), (b"gone", False)]
        for message in watcher.messages:
            assert (said_with(message).UserProperty, said_with(message).ContentType) == tuple(given.values())


def test_a_request_is_answered_where_it_says(playground: Address, topic: str) -> None:
    answers = f"{topic}/answers"
    with Guest(playground, FIVE, "asker") as asker, Guest(playground, FIVE, "answerer") as answerer:
        asker.subscribe(answers)
        answerer.subscribe(topic)
        asker.publish(topic, b"request", 1, ResponseTopic=answers, CorrelationData=b"\x00\xff7")
        request = said_with(answerer.receives(1)[0])
        answerer.publish(request.ResponseTopic, b"response", 1, CorrelationData=request.CorrelationData)
        (response,) = asker.receives(1)
        assert (response.payload, said_with(response).CorrelationData) == (b"response", b"\x00\xff7")


def test_a_message_expires_and_says_how_long_it_lasts(playground: Address, topic: str) -> None:
    with Guest(playground, FIVE, "keeper", clean=False) as keeper:
        keeper.subscribe(topic)
    with Guest(playground, FIVE, "sender") as sender:
        for seconds, text in ((1, b"expires"), (600, b"lasts")):
            for qos in (1, 2):
                sender.publish(topic, text, qos, MessageExpiryInterval=seconds)
        sender.subscribe(f"{topic}/later")
        with Guest(playground, FIVE, "lost", will=(f"{topic}/later", b"late", {"WillDelayInterval": 2}),
                   SessionExpiryInterval=60) as lost:  # fmt: skip
            lost.vanish()
        sender.receives(1)  # two seconds later
    with Guest(playground, FIVE, "keeper", clean=False) as keeper:
        keeper.receives(2)
        assert keeper.payloads == [b"lasts", b"lasts"]
        assert all(0 < said_with(m).MessageExpiryInterval < 600 for m in keeper.messages)


# What a subscriber asks for


def test_no_local_keeps_a_client_from_hearing_itself(playground: Address, topic: str) -> None:
    with Guest(playground, FIVE, "one") as one, Guest(playground, FIVE, "two") as two:
        one.subscribe(topic, noLocal=True)
        two.subscribe(topic, noLocal=True)
        one.publish(topic, b"from one", 1)
        two.publish(topic, b"from two", 1)
        assert [m.payload for m in one.receives(1)] == [b"from two"]
        assert [m.payload for m in two.receives(1)] == [b"from one"]


def test_retain_as_published_shows_how_it_was_published(playground: Address, topic: str) -> None:
    with Guest(playground, FIVE, "as it was") as kept, Guest(playground, FIVE, "as usual") as usual:
        kept.subscribe(topic, retainAsPublished=True)
        usual.subscribe(topic)
        kept.publish(topic, b"false", 1)
        kept.publish(topic, b"true", 1, retain=True)
        assert [(m.payload, m.retain) for m in kept.receives(2)] == [(b"false", False), (b"true", True)]
        assert [(m.payload, m.retain) for m in usual.receives(2)] == [(b"false", False), (b"true", False)]


@pytest.mark.parametrize(("handling", "first", "again"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_retain_handling(playground: Address, topic: str, handling: int, first: int, again: int) -> None:
    with Guest(playground, FIVE) as guest:
        guest.publish(topic, b"kept", 1, retain=True)
        for count in (first, again):
            guest.messages.clear()
            guest.subscribe(topic, retainHandling=handling)
            guest.publish(topic, b"live", 1)
            guest.until(lambda: b"live" in guest.payloads, "what is live")
            assert guest.payloads == [*[b"kept"] * count, b"live"]


def test_a_message_names_all_subscriptions_that_selected_it(playground: Address, topic: str) -> None:
    with Guest(playground, FIVE, "one") as one, Guest(playground, FIVE, "two") as two:
        one.subscribe(topic, identifier=456_789)
        two.subscribe(topic, identifier=2)
        two.subscribe(f"{topic}/#", identifier=3)
        one.publish(topic, b"sub identifier test", 1)
        assert said_with(one.receives(1)[0]).SubscriptionIdentifier == [456_789]
        assert sorted(said_with(two.receives(1)[0]).SubscriptionIdentifier) == [2, 3]


def test_one_member_of_a_share_gets_a_message_and_everybody_else_too(playground: Address, topic: str) -> None:
    shared, alone = f"{topic}/shared", f"{topic}/alone"
    with Guest(playground, FIVE, "one") as one, Guest(playground, FIVE, "two") as two:
        for guest in (one, two):
            assert guest.subscribe(f"$share/crew/{shared}", alone)[0] < 0x80
        for number in range(20):
            one.publish(shared, b"shared %d" % number, number % 3)
        one.publish(alone, b"alone", 1)
        one.until(lambda: b"alone" in one.payloads, "what both get")
        two.until(lambda: b"alone" in two.payloads, "what both get")
        one.until(lambda: len(one.messages) + len(two.messages) >= 22, "all that is shared")
        got = [payload for payload in one.payloads + two.payloads if payload != b"alone"]
        assert sorted(got) == sorted(b"shared %d" % number for number in range(20))


# What the connection agrees on


def test_the_gateway_says_what_it_grants(playground: Address) -> None:
    with Guest(playground, FIVE, "", keep_alive=120) as guest:
        assert guest.granted.ServerKeepAlive == 60
        assert guest.granted.AssignedClientIdentifier
        assert not hasattr(guest.granted, "MaximumQoS")  # which means 2
        assert getattr(guest.granted, "SharedSubscriptionAvailable", 1) == 1
        assert guest.granted.TopicAliasMaximum > 0


def test_a_session_lives_as_long_as_it_was_to(playground: Address, topic: str) -> None:
    def visit(expiry: int, *, clean: bool = False, at_the_end: int | None = None) -> bool:
        with Guest(playground, FIVE, "guest", clean=clean, SessionExpiryInterval=expiry) as guest:
            guest.subscribe(topic)
            if at_the_end is not None:
                guest.client.disconnect(properties=properties(PacketTypes.DISCONNECT, SessionExpiryInterval=at_the_end))
                guest.until(lambda: guest.goodbyes, "the end")
            return guest.present

    assert visit(0, clean=True) is False
    assert visit(0) is False
    assert visit(600) is False
    assert visit(600) is True
    assert visit(600, clean=True) is False
    assert visit(600, at_the_end=0) is True
    assert visit(1, at_the_end=600) is False
    assert visit(1) is True
    # Its session ended a second after it left; a will tells when that second is over.
    with Guest(playground, FIVE, "watcher") as watcher:
        watcher.subscribe(f"{topic}/over")
        will = (f"{topic}/over", b"", {"WillDelayInterval": 600})
        with Guest(playground, FIVE, "other", will=will, SessionExpiryInterval=1) as other:
            other.vanish()
        watcher.receives(1)
    assert visit(0) is False


def test_a_delayed_will_is_cancelled_by_coming_back(playground: Address, topic: str) -> None:
    def lose(client_id: str, delay: int) -> None:
        will = (topic, client_id.encode(), {"WillDelayInterval": delay})
        with Guest(playground, FIVE, client_id, clean=False, will=will) as guest:
            guest.vanish()

    with Guest(playground, FIVE, "watcher") as watcher:
        watcher.subscribe(topic)
        lose("comes back", 10)
        with Guest(playground, FIVE, "comes back", clean=False) as back:
            assert back.present
            lose("stays away", 10)  # told when that of the other one would have been told already
            assert [m.payload for m in watcher.receives(1)] == [b"stays away"]


async def test_a_client_may_use_aliases(playground: Address, topic: str) -> None:
    async with Peer(playground) as peer:
        connack = await peer.connect(None, "aliases", clean_start=True)
        assert connack.properties.topic_alias_maximum
        await peer.subscribe(topic)
        peer.send(publish(topic, b"1", topic_alias=1), publish("", b"2", topic_alias=1))
        assert [(m.topic, m.payload) for m in await peer.take(p.Publish, 2)] == [
            (topic.encode(), b"1"),
            (topic.encode(), b"2"),
        ]


@pytest.mark.parametrize("first", [publish("a", b"1", topic_alias=0), publish("", b"1", topic_alias=1)])
async def test_an_alias_that_is_none_ends_the_connection(playground: Address, first: p.Publish) -> None:
    async with Peer(playground) as peer:
        await peer.connect(None, "aliases")
        peer.send(first)
        assert (await peer.expect(p.Disconnect)).reason in (0x82, 0x94)
        await peer.end()


async def test_an_alias_ends_with_its_connection_also_where_the_session_goes_on(
    playground: Address, topic: str
) -> None:
    async with Peer(playground) as peer:
        await peer.connect(None, "comes back", properties=Properties(session_expiry_interval=60))
        await peer.subscribe(topic)
        peer.send(publish(topic, b"1", 1, 1, topic_alias=1))
        peer.send(ack((await peer.expect(p.Publish)).packet_id))
        await peer.expect(p.Ack)
    async with Peer(playground) as peer:
        assert (await peer.connect(None, "comes back", clean_start=False)).session_present
        peer.send(publish(topic, b"2", 1, 1))
        assert (await peer.expect(p.Publish)).payload == b"2"
        peer.send(publish("", b"3", 2, 1, topic_alias=1))
        assert (await peer.expect(p.Disconnect)).reason == 0x94
        await peer.end()


@pytest.mark.parametrize("most", [0, 1])
async def test_the_gateway_uses_as_many_aliases_as_the_client_lets_it(
    playground: Address, topic: str, most: int
) -> None:
    async with Peer(playground) as peer:
        await peer.connect(None, "aliased", properties=Properties(topic_alias_maximum=most))
        await peer.subscribe(p.Request(topic, 2))
        for qos in range(3):
            peer.send(publish(topic, b"topic alias 1", qos, qos))
        got = await peer.take(p.Publish, 3)
    said = [(m.topic.decode(), m.properties.topic_alias) for m in got]
    assert said == ([(topic, 1), ("", 1), ("", 1)] if most else [(topic, None)] * 3)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_nothing_is_sent_that_is_larger_than_the_client_takes(playground: Address, topic: str, qos: int) -> None:
    async with Peer(playground) as peer:
        await peer.connect(None, "small", properties=Properties(maximum_packet_size=64))
        await peer.subscribe(p.Request(topic, 2))
        payloads = (b"." * 32, b"." * 64, b"end")
        peer.send(*(publish(topic, payload, qos and number, qos) for number, payload in enumerate(payloads, 1)))
        assert [m.payload for m in await peer.take(p.Publish, 2)] == [b"." * 32, b"end"]


async def test_no_more_is_under_way_than_the_client_takes(playground: Address, topic: str) -> None:
    async with Peer(playground) as peer:
        await peer.connect(None, "narrow", properties=Properties(receive_maximum=2))
        await peer.subscribe(topic)
        peer.send(*(publish(topic, b"%d" % number, number, 1) for number in (1, 2, 3)))
        first, second = await peer.take(p.Publish, 2)
        await peer.take(p.Ack, 3)
        await peer.ping()
        assert not [m for m in peer.packets if isinstance(m, p.Publish)]
        peer.send(ack(first.packet_id))
        assert [m.payload for m in (first, second, await peer.expect(p.Publish))] == [b"1", b"2", b"3"]


async def test_a_client_that_sends_more_than_the_gateway_takes_is_cut_off(playground: Address, topic: str) -> None:
    async with Peer(playground) as peer:
        connack = await peer.connect(None, "flood")
        most = connack.properties.receive_maximum
        assert most
        peer.send(*(publish(topic, b"message", number, 2) for number in range(1, most + 2)))
        assert (await peer.expect(p.Disconnect)).reason == 0x93
        await peer.end()


def test_a_client_that_is_still_sending_hears_why_it_is_cut_off(playground: Address, topic: str) -> None:
    """It answers each PUBREC before it reads on, and so writes to a connection that the gateway has ended."""
    parser = Parser(FIVE)
    with socket.create_connection(playground, timeout=60) as wire:

        def read() -> list[Any]:
            data = wire.recv(64)
            assert data, "closed without a word"
            return parser.feed(data)

        wire.sendall(encode(p.Connect(FIVE, "busy"), FIVE))
        (connack,) = read()
        most = connack.properties.receive_maximum
        messages = [encode(publish(topic, b"message", number, 2), FIVE) for number in range(1, most + 2)]
        wire.sendall(b"".join(messages[:-1]))
        while len(wire.recv(65_536, socket.MSG_PEEK)) < 4 * most:  # a PUBREC is 4 bytes
            pass
        wire.sendall(messages[-1])
        ended = select.poll()
        ended.register(wire, select.POLLRDHUP)
        assert ended.poll(60_000), "the gateway has not ended it"
        while True:
            for packet in read():
                if isinstance(packet, p.Disconnect):
                    assert packet.reason == 0x93
                    return
                assert packet.kind == p.PUBREC
                wire.sendall(encode(p.Ack(p.PUBREL, packet.packet_id), FIVE))
