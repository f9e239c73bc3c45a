"""QoS 2 and topic aliases, byte for byte: both sides of MQTT 5 sections 4.3.3 and 3.3.2.3.4."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.message_id import is_message_id, minted_at
from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.aliases import AliasesOut
from iotsphere.adapters.mqtt.encode import publish_parts
from iotsphere.adapters.mqtt.inflow import Inflow
from iotsphere.adapters.mqtt.life import Event, Offer, Resumed, Settled
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.adapters.mqtt.reasons import Reason
from iotsphere.use_cases.session.state import Inbound, Received

from .test_session import TOPIC, VERSIONS, Client, ended, online


def twice(packet_id: int, payload: bytes = b"1", flags: int = 4) -> p.Publish:
    return p.Publish(TOPIC, payload, packet_id, flags)


def durable(version: int, inflow: Inflow | None = None, released: tuple[int, ...] = ()) -> Client:
    client = Client(version)
    client.connect(clean_start=False)
    resumed = Resumed(released=released, inflow=inflow or Inflow("salt", Inbound(5)), durable=True)
    client.session.accept(0.0, session_present=True, resumed=resumed)
    client.said()
    return client


def written(client: Client) -> Inbound:
    """Let what waits be on record."""
    inbound = client.session.incoming.inflow.snapshot(7)
    client.session.speech.keep()
    client.session.speech.kept()
    return inbound


# -- from the client --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_qos_2_in_is_four_steps(version: int) -> None:
    client = online(version)
    incoming = client.session.incoming
    assert client.send(twice(7)) == [twice(7)]
    assert client.said() == []
    assert incoming.unanswered == 1
    incoming.answer(7)
    assert client.said() == [p.Ack(p.PUBREC, 7)]
    assert (incoming.unanswered, incoming.inflow.held) == (0, 1)
    assert client.send(p.Ack(p.PUBREL, 7)) == []
    assert client.said() == [p.Ack(p.PUBCOMP, 7)]
    assert incoming.inflow.held == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_until_it_is_released_a_repetition_is_acknowledged_and_not_taken(version: int) -> None:
    client = online(version)
    client.send(twice(7))
    assert client.send(twice(7, flags=12)) == []
    assert client.said() == []  # its PUBREC comes once it is in the log
    client.session.incoming.answer(7)
    assert client.said() == [p.Ack(p.PUBREC, 7)]
    assert client.send(twice(7, flags=12), twice(7)) == []
    assert client.said() == [p.Ack(p.PUBREC, 7), p.Ack(p.PUBREC, 7)]
    client.send(p.Ack(p.PUBREL, 7))
    assert client.send(twice(7)) == [twice(7)]  # the id was free: it is another message, whatever it says


@pytest.mark.parametrize("version", VERSIONS)
def test_a_release_of_nothing_is_answered(version: int) -> None:
    client = online(version)
    client.send(p.Ack(p.PUBREL, 9))
    assert client.said() == [p.Ack(p.PUBCOMP, 9, 0x92 if version == p.MQTT_5 else 0)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_release_that_was_answered_before_the_connection_broke_is_no_error(version: int) -> None:
    client = durable(version)
    client.send(p.Ack(p.PUBREL, 9))
    assert client.said() == [p.Ack(p.PUBCOMP, 9)]
    client.send(twice(8, flags=12), p.Ack(p.PUBREL, 10))  # it still sends again what it had
    assert client.said() == [p.Ack(p.PUBCOMP, 10)]
    client.send(twice(7), p.Ack(p.PUBREL, 9))  # it begins anew, so it has lost count
    assert client.said() == [p.Ack(p.PUBCOMP, 9, 0x92 if version == p.MQTT_5 else 0)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_release_before_the_pubrec_is_a_protocol_error(version: int) -> None:
    client = online(version)
    events = client.send(twice(7), p.Ack(p.PUBREL, 7), twice(8))
    assert events[0] == twice(7)
    assert ended(events).reason == Reason.PROTOCOL_ERROR


def test_a_pubrec_with_an_error_frees_the_id() -> None:
    client = online(p.MQTT_5)
    client.send(twice(7))
    client.session.incoming.answer(7, Reason.NOT_AUTHORIZED, "no grant")
    assert client.said() == [p.Ack(p.PUBREC, 7, 0x87, Properties(reason_string="no grant"))]
    assert client.send(twice(7)) == [twice(7)]


def test_an_old_client_gets_a_bare_pubrec_and_its_id_is_not_free() -> None:
    client = online(p.MQTT_3_1_1)
    client.send(twice(7))
    client.session.incoming.answer(7, Reason.PAYLOAD_FORMAT_INVALID, "no JSON")
    assert client.session.take() == b"\x50\x02\x00\x07"
    assert client.send(twice(7, flags=12)) == []


def test_the_receive_maximum_counts_until_pubcomp() -> None:
    client = online(p.MQTT_5, Offer(receive_maximum=2))
    client.send(twice(1), p.Publish(TOPIC, b"1", 2, 2))
    client.session.incoming.answer(1)
    client.session.incoming.acknowledge([2])
    assert client.send(p.Publish(TOPIC, b"1", 3, 2)) == [p.Burst([(TOPIC, b"1", 3, 0x32)])]
    assert ended(client.send(p.Publish(TOPIC, b"1", 4, 2))).reason == Reason.RECEIVE_MAXIMUM_EXCEEDED
    free = online(p.MQTT_5, Offer(receive_maximum=1))
    free.send(twice(1))
    free.session.incoming.answer(1)
    free.send(p.Ack(p.PUBREL, 1))
    assert free.send(twice(2)) == [twice(2)]
    assert ended(free.send(twice(3))).reason == Reason.RECEIVE_MAXIMUM_EXCEEDED


@pytest.mark.parametrize("version", VERSIONS)
def test_what_frees_an_id_leaves_only_once_it_is_on_record(version: int) -> None:
    client = durable(version)
    client.send(twice(1), twice(2))
    inflow = client.session.incoming.inflow
    first = inflow.message_id(1)
    client.session.incoming.answer(1)
    assert client.said() == [p.Ack(p.PUBREC, 1)]
    client.send(p.Ack(p.PUBREL, 1))
    assert client.said() == []
    inbound = written(client)
    assert inbound == Inbound(7, received=(Received(2, 5, False, inbound.received[0].mark),))
    assert client.said() == [p.Ack(p.PUBCOMP, 1)]
    assert client.send(twice(1)) == [twice(1)]
    assert inflow.message_id(1) != first  # equal id, equal bytes, another message
    if version == p.MQTT_5:
        client.session.incoming.answer(2, Reason.QUOTA_EXCEEDED)
        assert client.said() == []
        assert written(client).generation == 8
        assert client.said() == [p.Ack(p.PUBREC, 2, 0x97)]


def test_message_ids_follow_from_session_generation_and_packet_id() -> None:
    flows = [Inflow(salt, Inbound(generation)) for salt in ("a", "b") for generation in (1_000, 1_001)]
    ids = []
    for inflow in flows:
        for packet_id in (1, 2, 65_535):
            inflow.take(twice(packet_id))
            ids.append(inflow.message_id(packet_id))
    assert len(set(ids)) == 12
    assert all(each is not None and is_message_id(each) for each in ids)
    assert [minted_at(each or "") for each in ids[:4]] == [1_000, 1_000, 1_000, 1_001]
    again = Inflow("a", Inbound(1_000))
    again.take(twice(2, b"other"))
    assert again.message_id(2) == ids[1]


def test_without_a_session_that_is_kept_nobody_asks_for_ids() -> None:
    inflow = Inflow()
    inflow.take(twice(1))
    assert inflow.message_id(1) is None


def test_what_an_earlier_connection_took_is_known() -> None:
    before = Inflow("s", Inbound(5))
    before.take(twice(1))
    before.done(1)
    before.take(twice(2))
    client = durable(p.MQTT_5, Inflow("s", Inbound(9, received=before.state().received)))
    assert client.send(twice(1, flags=12)) == []
    assert client.said() == [p.Ack(p.PUBREC, 1)]
    assert client.send(twice(2, flags=12)) == [twice(2, flags=12)]  # it may be in the log, or not
    inflow = client.session.incoming.inflow
    assert inflow.unsure == {2: (5,)}
    assert inflow.message_ids(2) == {before.message_id(2)}
    assert inflow.message_id(2) == before.message_id(2)


@pytest.mark.parametrize("flags", [4, 12])
def test_other_bytes_under_an_id_of_an_earlier_connection_are_another_message(flags: int) -> None:
    before = Inflow("s", Inbound(5))
    before.take(twice(1))
    before.done(1)
    inflow = Inflow("s", Inbound(9, received=before.state().received))
    assert inflow.take(twice(1, b"2", flags)) is True
    assert inflow.unsure == {}
    assert inflow.message_id(1) != before.message_id(1)


def test_after_a_bad_end_what_is_sent_again_is_looked_up_and_what_is_new_is_not() -> None:
    inflow = Inflow("s", Inbound(9, before=(4, 5)))
    assert inflow.take(twice(1, flags=12)) is True
    assert inflow.take(twice(2)) is True
    assert inflow.unsure == {1: (4, 5)}
    assert inflow.message_ids(1) == {inflow.message_id(1, 4), inflow.message_id(1, 5)}
    assert inflow.message_id(1) == inflow.message_id(1, 5)
    assert inflow.message_id(2) == inflow.message_id(2, 9)


def test_an_id_that_became_free_is_no_longer_looked_up_in_earlier_generations() -> None:
    inflow = Inflow("s", Inbound(9, before=(5,)))
    assert inflow.free(3)  # a PUBREL for a message that was in no record
    assert inflow.snapshot(10) == Inbound(10, (5,), ((3, 9),))
    inflow.take(twice(3, flags=12))
    assert inflow.unsure == {}
    later = Inflow("s", Inbound(11, (5, 10), ((3, 9),)))
    later.take(twice(3, flags=12))
    assert later.unsure == {3: (10,)}


def test_once_a_new_message_is_through_nothing_is_looked_up_any_more() -> None:
    inflow = Inflow("s", Inbound(9, before=(5,)))
    inflow.take(twice(1))
    inflow.done(1)
    inflow.free(1)
    assert inflow.snapshot(10) == Inbound(10)


def test_too_many_settled_ids_end_the_search() -> None:
    inflow = Inflow("s", Inbound(9, before=(5,)))
    for packet_id in range(1, 1_026):
        inflow.free(packet_id)
    assert inflow.snapshot(10) == Inbound(10)


# -- to the client ----------------------------------------------------------------------------------------------------


def sent(client: Client, *tags: str, flags: int = 4) -> None:
    for tag in tags:
        client.session.outgoing.send_once(publish_parts(TOPIC, tag.encode(), flags, client.version), tag)


@pytest.mark.parametrize("version", VERSIONS)
def test_qos_2_out_is_four_steps(version: int) -> None:
    client = online(version, Offer(window=1))
    sent(client, "x")
    assert client.said() == [p.Publish(TOPIC, b"x", 1, 4)]
    assert client.session.outgoing.window.free == 0
    assert client.send(p.Ack(p.PUBREC, 1)) == [Settled(["x"], 0)]
    assert client.said() == [p.Ack(p.PUBREL, 1)]
    assert client.session.outgoing.window.free == 0
    assert client.send(p.Ack(p.PUBREC, 1)) == []
    assert client.said() == [p.Ack(p.PUBREL, 1)]
    assert client.send(p.Ack(p.PUBCOMP, 1)) == [Settled([], 0)]
    assert client.send(p.Ack(p.PUBCOMP, 1)) == []
    assert client.session.outgoing.window.free == 1
    assert client.said() == []


def test_a_refusal_ends_the_steps() -> None:
    client = online(p.MQTT_5)
    sent(client, "x")
    client.said()
    assert client.send(p.Ack(p.PUBREC, 1, 0x97)) == [Settled(["x"], 1)]
    assert client.said() == []
    assert len(client.session.outgoing.window) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pubrec_for_nothing_is_answered(version: int) -> None:
    client = online(version)
    assert client.send(p.Ack(p.PUBREC, 9)) == []
    assert client.said() == [p.Ack(p.PUBREL, 9, 0x92 if version == p.MQTT_5 else 0)]


@pytest.mark.parametrize("version", VERSIONS)
def test_acknowledgements_of_another_qos_are_protocol_errors(version: int) -> None:
    client = online(version)
    sent(client, "x")
    assert ended(client.send(p.Ack(p.PUBACK, 1))).reason == Reason.PROTOCOL_ERROR
    client = online(version)
    client.session.outgoing.send(publish_parts(TOPIC, b"y", 2, version), "y")
    assert ended(client.send(p.Ack(p.PUBREC, 1))).reason == Reason.PROTOCOL_ERROR


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_and_releases_leave_once_they_are_on_record_and_in_order(version: int) -> None:
    client = durable(version)
    outgoing, speech = client.session.outgoing, client.session.speech
    outgoing.send(publish_parts(TOPIC, b"a", 2, version), "a")
    sent(client, "b")
    outgoing.send(publish_parts(TOPIC, b"c", 2, version), "c")
    assert [(x.payload, x.packet_id) for x in client.said()] == [(b"a", 1)]
    speech.keep()
    assert speech.blocked
    sent(client, "d")
    speech.kept()
    assert [(x.payload, x.packet_id) for x in client.said()] == [(b"b", 2), (b"c", 3)]
    assert speech.unkept
    written(client)
    assert [(x.payload, x.packet_id) for x in client.said()] == [(b"d", 4)]
    outgoing.send(publish_parts(TOPIC, b"e", 2, version), "e")
    assert [x.payload for x in client.said()] == [b"e"]
    client.send(p.Ack(p.PUBREC, 2), p.Ack(p.PUBREC, 4))
    assert client.said() == []
    written(client)
    assert client.said() == [p.Ack(p.PUBREL, 2), p.Ack(p.PUBREL, 4)]


@pytest.mark.parametrize("version", VERSIONS)
def test_releases_are_repeated_after_the_welcome(version: int) -> None:
    client = Client(version)
    client.connect(clean_start=False)
    client.session.accept(0.0, session_present=True, resumed=Resumed(released=(4, 9), durable=True))
    assert client.said()[1:] == [p.Ack(p.PUBREL, 4), p.Ack(p.PUBREL, 9)]
    sent(client, *"abcdefghi")
    assert [number for number, _ in client.session.outgoing.window.under_way()] == [1, 2, 3, 5, 6, 7, 8, 10, 11]


# -- aliases ----------------------------------------------------------------------------------------------------------


def aliased(topic: bytes, alias: int, packet_id: int = 0) -> p.Publish:
    return p.Publish(topic, b"1", packet_id, 2 if packet_id else 0, Properties(topic_alias=alias, content_type="x"))


def test_an_alias_stands_for_its_latest_topic() -> None:
    client = online(p.MQTT_5)
    events: list[Event] = []
    for topic in (TOPIC, b"", b"iotsphere/other", b""):
        events += client.send(aliased(topic, 64))
    topics = [event.topic for event in events if isinstance(event, p.Publish)]
    assert topics == [TOPIC, TOPIC, b"iotsphere/other", b"iotsphere/other"]
    assert {event.properties for event in events if isinstance(event, p.Publish)} == {Properties(content_type="x")}


@pytest.mark.parametrize(("topic", "alias"), [(b"", 1), (TOPIC, 0), (TOPIC, 65), (b"", 65)])
def test_an_alias_that_stands_for_nothing_ends_the_connection(topic: bytes, alias: int) -> None:
    client = online(p.MQTT_5)
    assert ended(client.send(aliased(topic, alias))).reason == Reason.TOPIC_ALIAS_INVALID
    assert client.said()[-1].reason == 0x94


def test_the_server_abbreviates_topics_that_come_again() -> None:
    aliases = AliasesOut(2)
    assert [aliases.of(topic) for topic in "aabbacc"] == [
        (0, False),
        (1, False),
        (0, False),
        (2, False),
        (1, True),
        (0, False),
        (0, False),
    ]


@given(st.lists(st.sampled_from("abcdefgh"), max_size=60), st.integers(1, 5))
def test_what_the_server_abbreviates_a_client_can_always_read(topics: list[str], maximum: int) -> None:
    aliases, known = AliasesOut(maximum), {}
    for topic in topics:
        alias, is_known = aliases.of(topic)
        assert 0 <= alias <= maximum
        if alias and not is_known:
            assert alias not in known
            known[alias] = topic
        assert not alias or known[alias] == topic
