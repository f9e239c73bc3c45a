"""One MQTT connection as the server sees it: bytes in, events and bytes out, and not a single await.

Who may send what, and when, is the table ``LIFE``. Times are seconds of any clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from . import packets as p
from .aliases import AliasesOut
from .codec import Fault, Item, Parser
from .connect import Granted, grant, unacceptable, welcome
from .encode import PINGRESP, encode
from .incoming import Incoming
from .life import CLOSED, CONNECTING, LIFE, ONLINE, OPENING, Ended, Event, Offer, Resumed, Settled
from .outgoing import Outgoing
from .primitives import Malformed
from .properties import Properties
from .reasons import CONNACK, DISCONNECT, SUBACK_FAILURE_3, Reason, connack_3
from .speech import Speech
from .window import Window

KEEP_ALIVE_FACTOR: Final = 1.5  # MQTT 5 section 3.1.2.10
DEFAULT_RECEIVE_MAXIMUM: Final = 65_535
NEVER: Final = float("inf")


class Session:
    """The protocol state of one connection. Call ``take`` after each call for the bytes that are to be sent.

    ``incoming`` and ``outgoing``: its messages. ``speech``: what it is told, and when. ``demands``: packets that cost the
    server work, so all but the acknowledgements of what it sent; whoever charges for them sets it back.
    """

    __slots__ = (
        "_connect", "_heard", "_parser", "client_id", "demands", "expiry", "incoming", "keep_alive", "offer", "outgoing",
        "speech", "state", "version",
    )  # fmt: skip

    def __init__(self, now: float, offer: Offer | None = None) -> None:
        self.offer = offer or Offer()
        self.state = OPENING
        self.version = 0
        self.client_id = ""
        self.expiry = 0
        self.demands = 0
        self.keep_alive = 0
        self.speech = Speech()
        self.incoming = Incoming(self.speech, self.offer.receive_maximum, self.offer.aliases)
        self.outgoing = Outgoing(self.speech)
        self._connect: p.Connect | None = None
        self._parser = Parser(limits=self.offer.limits)
        self._heard = now

    # -- in -----------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take bytes from the client. Nothing behind a CONNECT is looked at before ``accept``."""
        found = self.read(data, now)
        return [found] if isinstance(found, p.Burst) else found

    def read(self, data: bytes, now: float) -> list[Event] | p.Burst:
        """As ``receive``, but simple messages alone, which are nearly all of the traffic, come without a list."""
        if self.state == CLOSED:
            return []
        items = self._parser.feed(data)
        if self.state == ONLINE:  # before, nothing counts as a sign of life: who dribbles gains no time
            self._heard = now
            if len(items) == 1 and isinstance(burst := items[0], p.Burst) and self.incoming.takes(burst):
                self.demands += len(burst.messages)
                return burst
        return self._take(items)

    def heard(self, now: float) -> None:
        """Count the client as alive: it could not be heard while nobody listened."""
        self._heard = now

    @property
    def deadline(self) -> float:
        """When ``tick`` ends the connection unless something is heard before."""
        if self.state == ONLINE:
            return self._heard + KEEP_ALIVE_FACTOR * self.keep_alive if self.keep_alive else NEVER
        return self._heard + self.offer.connect_within if self.state != CLOSED else NEVER

    def tick(self, now: float) -> list[Event]:
        """End a connection whose time is over."""
        if now < self.deadline:
            return []
        if self.state == ONLINE:
            text = f"nothing was heard for {KEEP_ALIVE_FACTOR} times the keep alive of {self.keep_alive} s"
            return self._end("timeout", Reason.KEEP_ALIVE_TIMEOUT, text)
        if self.state == CONNECTING:
            return self.refuse(Reason.SERVER_BUSY, "your credential could not be checked in time; try again")
        text = f"no complete CONNECT within {self.offer.connect_within:.0f} s"
        return self._end("timeout", Reason.NOT_AUTHORIZED, text)

    def lost(self, text: str = "the connection was lost") -> list[Event]:
        """The socket is gone."""
        return self._end("lost", Reason.UNSPECIFIED_ERROR, text)

    # -- connecting ---------------------------------------------------------------------------------------------------

    def accept(self, now: float, *, session_present: bool, resumed: Resumed | None = None) -> list[Event]:
        """Welcome the client; returns what it has sent meanwhile."""
        connect = self._connect
        if connect is None or not self._move("accept"):
            return []
        self._heard = now
        self._connect = None
        old = resumed or Resumed()
        wanted = connect.properties.receive_maximum or DEFAULT_RECEIVE_MAXIMUM
        self.incoming.go_on(old.inflow, session_present)
        self.outgoing.window = Window(min(wanted, self.offer.window), old.reserved, old.released)
        if connect.properties.topic_alias_maximum:
            self.outgoing.aliases = AliasesOut(connect.properties.topic_alias_maximum)
        block = welcome(connect, self.offer, Granted(self.client_id, self.keep_alive, self.expiry))
        self.speech.put(encode(p.ConnAck(session_present, Reason.SUCCESS, block), self.version))
        self.speech.durable = old.durable
        self.speech.online = True
        self.outgoing.resume()
        return self._take(self._parser.resume())

    def refuse(self, reason: Reason, text: str) -> list[Event]:
        """Turn the client away with a CONNACK."""
        if self.state != CONNECTING:
            return []
        if self.version == p.MQTT_5:
            code = reason if reason in CONNACK else Reason.UNSPECIFIED_ERROR
            self.speech.say(lambda block: p.ConnAck(False, code, block), text)
        else:
            self.speech.put(encode(p.ConnAck(False, connack_3(reason)), self.version))
        return self._end("refuse", reason, text)

    # -- out ----------------------------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """The bytes to send now; each is given once."""
        return self.speech.take()

    def suback(self, packet_id: int, reasons: Sequence[int], text: str = "") -> None:
        """Answer a Subscribe, a reason per filter."""
        if self.state == ONLINE:
            if self.version != p.MQTT_5:
                reasons = [min(reason, SUBACK_FAILURE_3) for reason in reasons]
            said = text if self.speech.explain else ""
            self.speech.say(lambda block: p.SubAck(packet_id, tuple(reasons), block), said)

    def unsuback(self, packet_id: int, reasons: Sequence[int]) -> None:
        """Answer an Unsubscribe, a reason per filter."""
        if self.state == ONLINE:
            self.speech.put(encode(p.UnsubAck(packet_id, tuple(reasons)), self.version))

    def close(self, reason: Reason, text: str = "") -> list[Event]:
        """End the connection from this side; MQTT 5 clients are told why."""
        if self.state == ONLINE:
            return self._end("close", reason, text)
        return self.refuse(Reason.SERVER_UNAVAILABLE, text)

    # -- the table ----------------------------------------------------------------------------------------------------

    def _move(self, trigger: str) -> bool:
        following = LIFE.get((self.state, trigger))
        if following is None:
            return False
        self.state = following
        return True

    def _take(self, items: list[Item]) -> list[Event]:
        events: list[Event] = []
        for item in items:
            if self.state == CLOSED:
                break
            if isinstance(item, Fault):
                self._break(item, events)
                break
            name = p.name_of(item)
            if (self.state, name) not in LIFE:
                self._break(Fault(Reason.PROTOCOL_ERROR, f"{name} has no place here", self.version), events)
                break
            self.demands += 1
            try:
                self._one(item, events)
            except Malformed as error:
                self._break(Fault(error.reason, str(error), self.version), events)
        return events

    def _one(self, item: Item, events: list[Event]) -> None:
        match item:
            case p.Burst():
                self.demands += len(item.messages) - 1
                burst, all_of_it = self.incoming.burst(item)
                events.append(burst)
                if not all_of_it:
                    raise self.incoming.too_many()
            case p.Publish() | p.Oversized():
                packet = self.incoming.publish(item)
                if packet is not None:
                    events.append(packet)
            case p.Acks():
                self._on_acks(item.packet_ids, 0, events)
            case p.Ack(kind=p.PUBACK):
                self._on_acks((item.packet_id,), item.reason, events)
            case p.Ack(kind=p.PUBREL):
                self.incoming.release(item.packet_id)
            case p.Ack():
                settled = self.outgoing.step(item)
                if settled is not None:
                    self.demands -= 1
                    events.append(settled)
            case p.Subscribe() | p.Unsubscribe():
                events.append(item)
            case p.PingReq():
                self.demands += item.times - 1
                self.speech.put(PINGRESP * item.times)
            case p.Connect():
                self._on_connect(item, events)
            case p.Disconnect():
                self._on_disconnect(item, events)

    def _on_connect(self, packet: p.Connect, events: list[Event]) -> None:
        self._move("CONNECT")
        properties = packet.properties
        self._connect = packet
        self.version = self.speech.version = packet.version
        self.client_id, self.keep_alive, self.expiry = grant(packet, self.offer)
        self.speech.explain = properties.request_problem_information != 0
        if properties.maximum_packet_size is not None:
            self.speech.maximum = properties.maximum_packet_size
        problem = unacceptable(packet)
        if problem is None:
            events.append(packet)
        else:
            events += self.refuse(*problem)

    def _on_acks(self, packet_ids: Sequence[int], reason: int, events: list[Event]) -> None:
        tags = self.outgoing.acknowledged(packet_ids)
        self.demands += len(packet_ids) - len(tags) - 1
        if tags:
            events.append(Settled(tags, len(tags) if reason >= Reason.UNSPECIFIED_ERROR else 0))

    def _on_disconnect(self, packet: p.Disconnect, events: list[Event]) -> None:
        asked = packet.properties.session_expiry_interval
        if asked is not None:
            if asked and not self.expiry:
                text = "a session that was to end with its connection cannot be kept in the end"
                self._break(Fault(Reason.PROTOCOL_ERROR, text), events)
                return
            self.expiry = min(asked, self.offer.max_session_expiry)
        self._move("DISCONNECT")
        self.speech.online = False
        reason = Reason(packet.reason)
        events.append(Ended(reason, "the client said goodbye", reason != Reason.SUCCESS, self.expiry))

    # -- ending -------------------------------------------------------------------------------------------------------

    def _break(self, fault: Fault, events: list[Event]) -> None:
        """The client broke the rules: tell it why, in the words of its version, and close."""
        if self.state == OPENING:
            if fault.version == p.MQTT_5:
                block = Properties(reason_string=fault.text)
                self.speech.put(encode(p.ConnAck(False, fault.reason, block), p.MQTT_5))
            elif fault.reason == Reason.UNSUPPORTED_PROTOCOL_VERSION:
                self.speech.put(encode(p.ConnAck(False, connack_3(fault.reason)), p.MQTT_3_1_1))
        events += self._end("malformed", fault.reason, fault.text)

    def _end(self, trigger: str, reason: Reason, text: str) -> list[Event]:
        online = self.state == ONLINE
        if not self._move(trigger):
            return []
        self.speech.online = False
        if online and self.version == p.MQTT_5 and trigger != "lost":
            code = reason if reason in DISCONNECT else Reason.UNSPECIFIED_ERROR
            self.speech.say(lambda block: p.Disconnect(code, block), text)
        return [Ended(reason, text, online, self.expiry)]
