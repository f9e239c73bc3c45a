from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.codec import Limits, Parser
from iotsphere.adapters.mqtt.encode import encode, publish_parts
from iotsphere.adapters.mqtt.life import (
    CLOSED,
    CONNECTING,
    LIFE,
    ONLINE,
    OPENING,
    Ended,
    Event,
    Offer,
    Resumed,
    Settled,
    picture,
)
from iotsphere.adapters.mqtt.properties import NONE, Properties
from iotsphere.adapters.mqtt.reasons import Reason
from iotsphere.adapters.mqtt.session import Session
from iotsphere.adapters.mqtt.window import Window

from .packet_strategies import flat, packets

VERSIONS = (p.MQTT_3_1_1, p.MQTT_5)
TOPIC = b"iotsphere/devices/d1/telemetry"


class Client:
    """The other end: sends packets into a session and reads what the session says."""

    def __init__(self, version: int, offer: Offer | None = None) -> None:
        self.version = version
        self.session = Session(0.0, offer)
        self._parser = Parser(version)

    def send(self, *sent: p.Packet, now: float = 0.0) -> list[Event]:
        return self.session.receive(b"".join(encode(packet, self.version) for packet in sent), now)

    def connect(self, *more: p.Packet, **fields: Any) -> list[Event]:
        fields.setdefault("client_id", "c1")
        return self.send(p.Connect(self.version, **fields), *more)

    def said(self) -> list[Any]:
        return list(flat(self._parser.feed(self.session.take())))


def online(version: int, offer: Offer | None = None, **fields: Any) -> Client:
    client = Client(version, offer)
    client.connect(**fields)
    client.session.accept(0.0, session_present=False)
    client.session.take()
    return client


def ended(events: list[Event]) -> Ended:
    assert isinstance(events[-1], Ended)
    return events[-1]


def publish(packet_id: int) -> p.Publish:
    return p.Publish(TOPIC, b"1", packet_id, 2 if packet_id else 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_connect_is_told_and_nothing_else_is_looked_at_before_accept(version: int) -> None:
    client = Client(version)
    events = client.connect(publish(1))
    assert [type(event) for event in events] == [p.Connect]
    assert client.session.state == CONNECTING
    assert client.said() == []
    assert client.session.accept(1.0, session_present=False) == [p.Burst([(TOPIC, b"1", 1, 0x32)])]
    assert client.session.state == ONLINE
    (connack,) = client.said()
    assert (connack.session_present, connack.reason) == (False, 0)


def test_the_welcome_states_the_limits() -> None:
    client = Client(p.MQTT_5, Offer(receive_maximum=7, max_keep_alive=60, max_session_expiry=100))
    client.connect(client_id="", keep_alive=0, properties=Properties(session_expiry_interval=0xFFFFFFFF))
    client.session.accept(0.0, session_present=False)
    (connack,) = client.said()
    assert connack.properties == Properties(
        session_expiry_interval=100,
        receive_maximum=7,
        maximum_packet_size=Limits().stream,
        assigned_client_identifier=client.session.client_id,
        topic_alias_maximum=64,
        server_keep_alive=60,
    )
    assert client.session.client_id.startswith("auto-")
    assert (client.session.expiry, client.session.keep_alive) == (100, 60)


def test_what_was_granted_as_asked_is_not_repeated() -> None:
    client = Client(p.MQTT_5)
    client.connect(keep_alive=30, properties=Properties(session_expiry_interval=5))
    client.session.accept(0.0, session_present=True)
    (connack,) = client.said()
    assert connack.session_present
    assert connack.properties.session_expiry_interval is None
    assert connack.properties.server_keep_alive is None
    assert connack.properties.assigned_client_identifier is None


@pytest.mark.parametrize(("clean", "expiry"), [(True, 0), (False, Offer().max_session_expiry)])
def test_an_old_client_keeps_its_session_unless_it_is_clean(clean: bool, expiry: int) -> None:
    assert online(p.MQTT_3_1_1, clean_start=clean).session.expiry == expiry


REFUSED: dict[str, tuple[dict[str, Any], Reason, int]] = {
    "plus": ({"client_id": "+"}, Reason.CLIENT_IDENTIFIER_NOT_VALID, 2),
    "hash": ({"client_id": "#"}, Reason.CLIENT_IDENTIFIER_NOT_VALID, 2),
    "slash": ({"client_id": "dev1/../dev2"}, Reason.CLIENT_IDENTIFIER_NOT_VALID, 2),
    "control": ({"client_id": "a\nb"}, Reason.CLIENT_IDENTIFIER_NOT_VALID, 2),
    "right-to-left": ({"client_id": "a\u202eb"}, Reason.CLIENT_IDENTIFIER_NOT_VALID, 2),
    "64 KB": ({"client_id": "x" * 65_535}, Reason.CLIENT_IDENTIFIER_NOT_VALID, 2),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("version", VERSIONS)
def test_a2_unacceptable_connects_are_refused_in_the_words_of_their_version(name: str, version: int) -> None:
    fields, reason, code = REFUSED[name]
    client = Client(version)
    end = ended(client.connect(**fields))
    assert (end.reason, end.will) == (reason, False)
    (connack,) = client.said()
    assert connack.reason == (reason if version == p.MQTT_5 else code)
    assert client.session.state == CLOSED


def test_enhanced_authentication_is_refused() -> None:
    client = Client(p.MQTT_5)
    end = ended(client.connect(properties=Properties(authentication_method="SCRAM-SHA-256")))
    assert end.reason == Reason.BAD_AUTHENTICATION_METHOD
    assert client.said()[0].reason == 0x8C


def test_an_old_client_without_an_id_cannot_keep_a_session() -> None:
    client = Client(p.MQTT_3_1_1)
    assert ended(client.connect(client_id="", clean_start=False)).reason == Reason.CLIENT_IDENTIFIER_NOT_VALID
    assert client.said() == [p.ConnAck(False, 2)]


@pytest.mark.parametrize(("reason", "code"), [(Reason.BAD_USER_NAME_OR_PASSWORD, 4), (Reason.NOT_AUTHORIZED, 5)])
def test_a_wrong_credential_is_refused(reason: Reason, code: int) -> None:
    for version in VERSIONS:
        client = Client(version)
        client.connect()
        assert ended(client.session.refuse(reason, "no")).will is False
        (connack,) = client.said()
        assert connack.reason == (reason if version == p.MQTT_5 else code)
        assert connack.properties == (Properties(reason_string="no") if version == p.MQTT_5 else NONE)


def test_a_malformed_connect_of_a_known_version_is_answered() -> None:
    session = Session(0.0)
    events = session.receive(b"\x10\x0d\x00\x04MQTT\x05\x03\x00\x00\x00\x00\x00", 0.0)
    assert ended(events).reason == Reason.MALFORMED_PACKET
    (connack,) = Parser(p.MQTT_5).feed(session.take())
    assert isinstance(connack, p.ConnAck)
    assert connack.reason == Reason.MALFORMED_PACKET


def test_an_unknown_version_is_answered_with_the_old_return_code() -> None:
    session = Session(0.0)
    ended(session.receive(b"\x10\x0c\x00\x04MQTT\x03\x02\x00\x00\x00\x00", 0.0))
    assert session.take() == b"\x20\x02\x00\x01"


@pytest.mark.parametrize("version", VERSIONS)
def test_d11_a_second_connect_ends_the_connection(version: int) -> None:
    client = online(version, will=p.Will("a", b""))
    end = ended(client.connect())
    assert (end.reason, end.will) == (Reason.PROTOCOL_ERROR, True)
    assert [packet.reason for packet in client.said()] == ([0x82] if version == p.MQTT_5 else [])


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_only_what_the_table_lists_may_be_sent(version: int, data: st.DataObject) -> None:
    """In every state a packet that LIFE does not list ends the connection, and nothing but a protocol error does."""
    packet = data.draw(packets(version))
    before = Client(version)
    fresh = before.send(packet)
    assert isinstance(packet, p.Connect) or ended(fresh).reason == Reason.PROTOCOL_ERROR
    after = online(version)
    events = after.send(packet)
    if (ONLINE, p.name_of(packet)) not in LIFE:
        assert ended(events).reason == Reason.PROTOCOL_ERROR
        assert after.session.state == CLOSED


def test_a_client_sends_no_subscription_identifier() -> None:
    client = online(p.MQTT_5)
    events = client.send(p.Publish(TOPIC, b"1", 1, 2, Properties(subscription_identifiers=(1,))))
    assert ended(events).reason == Reason.PROTOCOL_ERROR


def test_more_than_the_receive_maximum_is_cut_off_behind_what_was_allowed() -> None:
    client = online(p.MQTT_5, Offer(receive_maximum=2))
    events = client.send(publish(1), publish(0), publish(2), publish(0), publish(3))
    assert events[0] == p.Burst([(TOPIC, b"1", i, 0x32 if i else 0x30) for i in (1, 0, 2, 0)])
    assert ended(events).reason == Reason.RECEIVE_MAXIMUM_EXCEEDED
    assert client.said()[-1].reason == 0x93


def test_answers_make_room_within_the_receive_maximum() -> None:
    client = online(p.MQTT_5, Offer(receive_maximum=2))
    for start in range(1, 20, 2):
        events = client.send(publish(start), publish(start + 1))
        assert [type(event) for event in events] == [p.Burst]
        assert client.session.incoming.unanswered == 2
        client.session.incoming.acknowledge([start])
        client.session.incoming.answer(start + 1, Reason.NOT_AUTHORIZED, "no grant")
        assert client.session.incoming.unanswered == 0
        assert client.said() == [
            p.Ack(p.PUBACK, start),
            p.Ack(p.PUBACK, start + 1, Reason.NOT_AUTHORIZED, Properties(reason_string="no grant")),
        ]


def test_an_old_client_is_never_cut_off_for_its_pace() -> None:
    client = online(p.MQTT_3_1_1, Offer(receive_maximum=2))
    assert [type(event) for event in client.send(*map(publish, range(1, 9)))] == [p.Burst]
    assert client.session.incoming.unanswered == 8


def test_a_refusal_is_a_bare_puback_for_an_old_client() -> None:
    client = online(p.MQTT_3_1_1)
    client.send(publish(7))
    client.session.incoming.answer(7, Reason.PAYLOAD_FORMAT_INVALID, "no JSON")
    assert client.session.take() == b"\x40\x02\x00\x07"


def test_reason_strings_stay_away_from_who_does_not_want_them() -> None:
    client = online(p.MQTT_5, properties=Properties(request_problem_information=0))
    client.send(publish(1))
    client.session.incoming.answer(1, Reason.NOT_AUTHORIZED, "no grant")
    client.session.suback(2, [0x87], "no grant")
    client.session.close(Reason.ADMINISTRATIVE_ACTION, "out")
    assert client.said() == [
        p.Ack(p.PUBACK, 1, 0x87),
        p.SubAck(2, (0x87,)),
        p.Disconnect(0x98, Properties(reason_string="out")),
    ]


def test_reason_strings_give_way_to_the_maximum_packet_size() -> None:
    client = online(p.MQTT_5, properties=Properties(maximum_packet_size=40))
    client.send(publish(1))
    client.session.incoming.answer(1, Reason.NOT_AUTHORIZED, "x" * 100)
    assert client.said() == [p.Ack(p.PUBACK, 1, 0x87)]
    assert client.session.outgoing.fits(40)
    assert not client.session.outgoing.fits(41)


def test_reasons_that_puback_cannot_carry_become_unspecified() -> None:
    client = online(p.MQTT_5)
    client.send(publish(1))
    client.session.incoming.answer(1, Reason.PACKET_TOO_LARGE, "")
    assert client.said() == [p.Ack(p.PUBACK, 1, 0x80)]


@pytest.mark.parametrize("version", VERSIONS)
def test_subscriptions_are_answered_per_filter(version: int) -> None:
    client = online(version)
    wanted = p.Subscribe(3, (p.Request("a", 1), p.Request("b", 0)))
    assert client.send(wanted, p.Unsubscribe(4, ("a", "b"))) == [wanted, p.Unsubscribe(4, ("a", "b"))]
    client.session.suback(3, [1, Reason.NOT_AUTHORIZED])
    client.session.unsuback(4, [0, 0x11])
    five = version == p.MQTT_5
    assert client.said() == [p.SubAck(3, (1, 0x87 if five else 0x80)), p.UnsubAck(4, (0, 0x11) if five else ())]


@pytest.mark.parametrize("version", VERSIONS)
def test_pings_are_answered(version: int) -> None:
    client = online(version)
    assert client.send(p.PingReq(), p.PingReq()) == []
    assert client.said() == [p.PingResp(), p.PingResp()]


def test_the_keep_alive_ends_a_silent_connection_after_one_and_a_half_times() -> None:
    client = online(p.MQTT_5, keep_alive=10)
    client.send(p.PingReq(), now=100.0)
    client.said()
    assert client.session.deadline == 115.0
    assert client.session.tick(114.9) == []
    end = ended(client.session.tick(115.0))
    assert (end.reason, end.will) == (Reason.KEEP_ALIVE_TIMEOUT, True)
    assert client.said()[-1].reason == 0x8D
    assert client.session.tick(200.0) == []


def test_an_old_client_without_keep_alive_may_be_silent_for_ever() -> None:
    client = online(p.MQTT_3_1_1, keep_alive=0)
    assert client.session.deadline == float("inf")


def test_who_could_not_be_heard_is_not_dead() -> None:
    client = online(p.MQTT_3_1_1, keep_alive=10)
    client.session.heard(50.0)
    assert client.session.deadline == 65.0


def test_d4_half_a_connect_gains_no_time() -> None:
    session = Session(0.0)
    for second in range(5):
        assert session.receive(b"\x10\x20\x00\x04"[second : second + 1], float(second)) == []
    assert session.tick(4.9) == []
    end = ended(session.tick(5.0))
    assert end.will is False
    assert session.take() == b""


def test_a_credential_that_takes_too_long_is_answered_busy() -> None:
    client = Client(p.MQTT_5)
    client.connect()
    assert ended(client.session.tick(5.0)).reason == Reason.SERVER_BUSY
    assert client.said()[0].reason == 0x89
    assert client.session.accept(5.1, session_present=False) == []


@pytest.mark.parametrize(("reason", "will"), [(0x00, False), (0x04, True), (0x80, True)])
def test_a_goodbye_decides_over_the_will(reason: int, will: bool) -> None:
    end = ended(online(p.MQTT_5).send(p.Disconnect(reason)))
    assert (end.reason, end.will) == (reason, will)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_lost_connection_leaves_the_will(version: int) -> None:
    client = online(version)
    assert ended(client.session.lost()).will is True
    assert client.session.lost() == []
    assert client.said() == []
    opening = Session(0.0)
    assert ended(opening.lost()).will is False


def test_a_goodbye_may_change_the_expiry_but_not_revive_it() -> None:
    kept = online(p.MQTT_5, properties=Properties(session_expiry_interval=60))
    assert ended(kept.send(p.Disconnect(0, Properties(session_expiry_interval=5)))).expiry == 5
    gone = online(p.MQTT_5)
    end = ended(gone.send(p.Disconnect(0, Properties(session_expiry_interval=5))))
    assert (end.reason, end.expiry) == (Reason.PROTOCOL_ERROR, 0)


def test_nothing_counts_after_a_goodbye() -> None:
    client = online(p.MQTT_5)
    events = client.send(publish(1), p.Disconnect(), publish(2))
    assert [type(event) for event in events] == [p.Burst, Ended]
    assert client.send(publish(3)) == []
    client.session.incoming.acknowledge([1])
    assert client.said() == []


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_go_out_within_the_window_of_the_client(version: int) -> None:
    client = online(version, Offer(window=2))
    for tag in ("x", "y"):
        client.session.outgoing.send(publish_parts(TOPIC, b"1", 2, version), tag)
    assert client.session.outgoing.window.free == 0
    with pytest.raises(ValueError, match="full"):
        client.session.outgoing.send(publish_parts(TOPIC, b"1", 2, version), "z")
    assert [packet.packet_id for packet in client.said()] == [1, 2]
    refused = 0x97 if version == p.MQTT_5 else 0
    events = client.send(p.Ack(p.PUBACK, 2, refused), p.Ack(p.PUBACK, 1), p.Ack(p.PUBACK, 9))
    expected = [Settled(["y"], 1), Settled(["x"], 0)] if refused else [Settled(["y", "x"], 0)]
    assert events == expected
    assert client.session.outgoing.window.free == 2


def test_the_receive_maximum_of_the_client_is_its_window() -> None:
    client = online(p.MQTT_5, properties=Properties(receive_maximum=3))
    assert client.session.outgoing.window.size == 3
    assert online(p.MQTT_5).session.outgoing.window.size == Offer().window


def test_ids_of_an_earlier_connection_are_kept_for_what_is_sent_again() -> None:
    client = Client(p.MQTT_3_1_1)
    client.connect(clean_start=False)
    client.session.accept(0.0, session_present=True, resumed=Resumed(reserved=[1, 2]))
    client.said()
    parts = publish_parts(TOPIC, b"1", 2, p.MQTT_3_1_1)
    client.session.outgoing.send(parts, "new")
    client.session.outgoing.send(publish_parts(TOPIC, b"1", 2 | p.DUP, p.MQTT_3_1_1), "old", 2)
    client.session.outgoing.window.drop_reserved()
    client.session.outgoing.send(parts, "next")
    assert [i for i, _ in client.session.outgoing.window.under_way()] == [3, 2, 4]


def test_packet_ids_wrap_around_and_skip_what_is_under_way() -> None:
    window: Window[int] = Window(65_535)
    for number in range(1, 65_536):
        assert window.take(number) == number
    assert window.free == 0
    assert window.release(7) == 7
    assert window.release(7) is None
    assert window.take(0) == 7
    window.release(65_535)
    window.release(1)
    assert [window.take(0), window.take(0)] == [65_535, 1]


def test_the_picture_shows_every_row_of_the_table() -> None:
    lines = picture().splitlines()
    for (state, trigger), following in LIFE.items():
        assert any(line.strip().startswith(f"{state} --> {following}:") and trigger in line for line in lines)
    assert {state for state, _ in LIFE} | set(LIFE.values()) == {OPENING, CONNECTING, ONLINE, CLOSED}
