"""What a fuzzer calls: any bytes, as a client might send them, against the parser and a whole session.

``drive`` returns for every input, or raises AssertionError with the rule that did not hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.codec import Fault, Item, Parser
from iotsphere.adapters.mqtt.encode import publish_parts
from iotsphere.adapters.mqtt.life import CLOSED, Ended, Event, Offer
from iotsphere.adapters.mqtt.reasons import Reason
from iotsphere.adapters.mqtt.session import Session

OFFER = Offer(receive_maximum=8, window=4)
DELIVERIES = 6  # more than fit the window
# What one packet may be answered with, reason string and all; PINGRESP and PUBACK are as short as what they answer.
ANSWER_BYTES = 1_024


def drive(data: bytes) -> None:
    """The first byte says how the rest is cut; the rest is what a client sends."""
    if len(data) < 2:
        return
    step, stream = data[0] % 16 or len(data), data[1:]
    for version in (0, p.MQTT_3_1_1, p.MQTT_5):
        parsed(stream, version, step)
    Visit().drive(stream, step)


def cut(stream: bytes, step: int) -> Iterator[bytes]:
    for at in range(0, len(stream), step):
        yield stream[at : at + step]


def parsed(stream: bytes, version: int, step: int) -> list[Item]:
    """The items of a stream, the same in one piece and in many. ``version``: 0 when a CONNECT is to come first."""
    whole = flat(fed(Parser(version), stream))
    parser = Parser(version)
    pieces = flat([item for piece in cut(stream, step) for item in fed(parser, piece)])
    assert pieces == whole, "pieces give other packets than the whole"
    faults = [item for item in whole if isinstance(item, Fault)]
    assert not faults or (len(faults) == 1 and whole[-1] is faults[0]), "something follows a fault"
    assert parser.pending <= len(stream), "more waits than came"
    return whole


def fed(parser: Parser, data: bytes) -> list[Item]:
    """What the bytes complete, a CONNECT among them welcomed at once."""
    items = parser.feed(data)
    return items + parser.resume() if items and isinstance(items[-1], p.Connect) else items


def flat(items: list[Item]) -> list[Item]:
    """Runs written out as single packets."""
    out: list[Item] = []
    for item in items:
        if isinstance(item, p.Burst):
            out += [p.Publish(topic, payload, number, first & 15) for topic, payload, number, first in item.messages]
        elif isinstance(item, p.Acks):
            out += [p.Ack(p.PUBACK, number) for number in item.packet_ids]
        elif isinstance(item, p.PingReq):
            out += [p.PingReq()] * item.times
        else:
            out.append(item)
    return out


class Visit:
    """A session behind which a door does its plainest: it lets everybody in, answers everything, and sends a few."""

    def __init__(self) -> None:
        self.session = Session(0.0, OFFER)
        self.said = 0
        self.ended = 0
        self._waiting = DELIVERIES

    def drive(self, stream: bytes, step: int) -> None:
        session = self.session
        for piece in cut(stream, step):
            self._carry_out(session.receive(piece, 1.0))
            self._look()
        answered = self.said
        self._carry_out(session.lost())
        self._look()
        assert session.state == CLOSED, "a lost connection goes on"
        assert self.ended == 1, "a connection ends once"
        assert session.receive(b"\xc0\x00", 2.0) == [], "a closed session hears"
        assert session.take() == b"", "a closed session speaks"
        assert answered <= ANSWER_BYTES * (len(stream) // 2 + 2 + DELIVERIES), "more is said than was asked for"

    def _look(self) -> None:
        session = self.session
        if session.speech.unkept:  # what is to be durable first: here it is at once
            session.speech.keep()
            session.speech.kept()
        self.said += len(session.take())
        assert session.incoming.unanswered >= 0, "more is answered than came"
        assert len(session.outgoing.window) <= OFFER.window, "more is under way than the window holds"
        if session.version == p.MQTT_5:
            assert session.incoming.inflow.held <= OFFER.receive_maximum, "more is held than was granted"

    def _carry_out(self, events: list[Event]) -> None:
        session = self.session
        for event in events:
            assert not self.ended, "something follows the end"
            match event:
                case p.Connect():
                    self._carry_out(session.accept(0.0, session_present=False))
                    self._deliver()
                case p.Burst(messages):
                    session.incoming.acknowledge([message[2] for message in messages if message[2]])
                case p.Publish(packet_id=number, flags=flags) | p.Oversized(packet_id=number, flags=flags) if number:
                    if flags & 4 or number % 2:
                        session.incoming.answer(number, Reason.NOT_AUTHORIZED if number % 3 else Reason.SUCCESS, "no")
                    else:
                        session.incoming.acknowledge([number])
                case p.Subscribe(packet_id, requests):
                    session.suback(packet_id, [min(each.qos, 2) for each in requests])
                case p.Unsubscribe(packet_id, filters):
                    session.unsuback(packet_id, [0] * len(filters))
                case Ended():
                    self.ended += 1
        self._deliver()

    def _deliver(self) -> None:
        """Send what the window has room for, at QoS 1 and 2 in turn."""
        session = self.session
        while self._waiting and session.outgoing.window.free > 0:
            qos = 1 + self._waiting % 2
            self._waiting -= 1
            parts = publish_parts(b"t", b"payload", qos << 1, session.version)
            send = session.outgoing.send if qos == 1 else session.outgoing.send_once
            send(parts, self._waiting)
