"""One MQTT connection as the server sees it: bytes in, events and bytes out, and not a single await.

Who may send what, and when, is the table ``LIFE``. Times are seconds of any clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from . import packets as p
from .codec import Fault, Item, Parser
from .connect import Granted, grant, unacceptable, welcome
from .encode import PINGRESP, encode, pubacks
from .life import CLOSED, CONNECTING, LIFE, ONLINE, OPENING, Ended, Event, Offer, Settled, Tag
from .properties import NONE, Properties
from .reasons import CONNACK, DISCONNECT, PUBACK, SUBACK_FAILURE_3, Reason, connack_3
from .window import Window

KEEP_ALIVE_FACTOR: Final = 1.5  # MQTT 5 section 3.1.2.10
DEFAULT_RECEIVE_MAXIMUM: Final = 65_535
NEVER: Final = float("inf")


class Session:
    """The protocol state of one connection. Call ``take`` after each call for the bytes that are to be sent.

    ``unanswered``: messages from the client that wait for their PUBACK. ``demands``: packets that cost the server work,
    so all but the acknowledgements of what it sent; whoever charges for them sets it back.
    """

    def __init__(self, now: float, offer: Offer | None = None) -> None:
        self.offer = offer or Offer()
        self.state = OPENING
        self.version = 0
        self.client_id = ""
        self.expiry = 0
        self.unanswered = 0
        self.demands = 0
        self.keep_alive = 0
        self.maximum_packet = p.MAX_PACKET_BYTES
        self.window: Window[Tag] = Window(0)
        self._connect: p.Connect | None = None
        self._parser = Parser(limits=self.offer.limits)
        self._heard = now
        self._out: list[bytes] = []
        self._explain = True

    # -- in -----------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take bytes from the client. Nothing behind a CONNECT is looked at before ``accept``."""
        if self.state == CLOSED:
            return []
        if self.state == ONLINE:  # before, nothing counts as a sign of life: who dribbles gains no time
            self._heard = now
        return self._take(self._parser.feed(data))

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

    def accept(self, now: float, *, session_present: bool, reserved: Sequence[int] = ()) -> list[Event]:
        """Welcome the client; returns what it has sent meanwhile. ``reserved``: packet ids still under way to it."""
        connect = self._connect
        if connect is None or not self._move("accept"):
            return []
        self._heard = now
        wanted = connect.properties.receive_maximum or DEFAULT_RECEIVE_MAXIMUM
        self.window = Window(min(wanted, self.offer.window), reserved)
        block = welcome(connect, self.offer, Granted(self.client_id, self.keep_alive, self.expiry))
        self._out.append(encode(p.ConnAck(session_present, Reason.SUCCESS, block), self.version))
        return self._take(self._parser.resume())

    def refuse(self, reason: Reason, text: str) -> list[Event]:
        """Turn the client away with a CONNACK."""
        if self.state != CONNECTING:
            return []
        if self.version == p.MQTT_5:
            code = reason if reason in CONNACK else Reason.UNSPECIFIED_ERROR
            self._say(lambda block: p.ConnAck(False, code, block), text)
        else:
            self._out.append(encode(p.ConnAck(False, connack_3(reason)), self.version))
        return self._end("refuse", reason, text)

    # -- out ----------------------------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """The bytes to send now; each is given once."""
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def acknowledge(self, packet_ids: Sequence[int]) -> None:
        """Answer messages that are in the log."""
        if packet_ids:
            self.unanswered -= len(packet_ids)
            if self.state == ONLINE:
                self._out.append(pubacks(packet_ids))

    def acknowledge_refused(self, packet_id: int, reason: Reason, text: str) -> None:
        """Answer a message that was turned away; MQTT 3.1.1 has no words for it and gets the bare PUBACK."""
        self.unanswered -= 1
        if self.state == ONLINE:
            code = reason if reason in PUBACK else Reason.UNSPECIFIED_ERROR
            self._say(lambda block: p.Ack(p.PUBACK, packet_id, code, block), text if self._explain else "")

    def suback(self, packet_id: int, reasons: Sequence[int], text: str = "") -> None:
        """Answer a Subscribe, a reason per filter."""
        if self.state == ONLINE:
            if self.version != p.MQTT_5:
                reasons = [min(reason, SUBACK_FAILURE_3) for reason in reasons]
            self._say(lambda block: p.SubAck(packet_id, tuple(reasons), block), text if self._explain else "")

    def unsuback(self, packet_id: int, reasons: Sequence[int]) -> None:
        """Answer an Unsubscribe, a reason per filter."""
        if self.state == ONLINE:
            self._out.append(encode(p.UnsubAck(packet_id, tuple(reasons)), self.version))

    def fits(self, size: int) -> bool:
        """Whether the client takes a packet of so many bytes."""
        return size <= self.maximum_packet

    def send(self, parts: tuple[bytes, bytes], tag: Tag, packet_id: int = 0) -> None:
        """Send a message at QoS 1, made by ``publish_parts``. Raises ValueError when the window is full."""
        head, tail = parts
        self._out += (head, self.window.take(tag, packet_id).to_bytes(2, "big"), tail)

    def send_unanswered(self, packet: bytes) -> None:
        """Send a message at QoS 0."""
        self._out.append(packet)

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
            match item:
                case p.Burst():
                    self.demands += len(item.messages) - 1
                    self._on_burst(item, events)
                case p.Publish() | p.Oversized():
                    self._on_publish(item, events)
                case p.Acks():
                    self._on_acks(item.packet_ids, 0, events)
                case p.Ack():
                    self._on_acks((item.packet_id,), item.reason, events)
                case p.Subscribe() | p.Unsubscribe():
                    events.append(item)
                case p.PingReq():
                    self.demands += item.times - 1
                    self._out.append(PINGRESP * item.times)
                case p.Connect():
                    self._on_connect(item, events)
                case p.Disconnect():
                    self._on_disconnect(item, events)
        return events

    def _on_connect(self, packet: p.Connect, events: list[Event]) -> None:
        self._move("CONNECT")
        properties = packet.properties
        self._connect = packet
        self.version = packet.version
        self.client_id, self.keep_alive, self.expiry = grant(packet, self.offer)
        self._explain = properties.request_problem_information != 0
        if properties.maximum_packet_size is not None:
            self.maximum_packet = properties.maximum_packet_size
        problem = unacceptable(packet)
        if problem is None:
            events.append(packet)
        else:
            events += self.refuse(*problem)

    def _on_burst(self, burst: p.Burst, events: list[Event]) -> None:
        count = len(burst.messages) - [message[2] for message in burst.messages].count(0)
        room = self.offer.receive_maximum - self.unanswered
        if count <= room or self.version != p.MQTT_5:  # MQTT 3.1.1 knows no such limit: its socket is read no further
            self.unanswered += count
            events.append(burst)
            return
        self.unanswered += room
        events.append(burst.first(room))
        self._break(self._too_many(), events)

    def _on_publish(self, packet: p.Publish | p.Oversized, events: list[Event]) -> None:
        if packet.flags >> 1 & 3 == 2:
            self._break(Fault(Reason.QOS_NOT_SUPPORTED, "QoS 2 is not spoken here; use QoS 1"), events)
        elif packet.properties.topic_alias is not None:
            self._break(Fault(Reason.TOPIC_ALIAS_INVALID, "topic aliases are not spoken here"), events)
        elif packet.properties.subscription_identifiers:
            self._break(Fault(Reason.PROTOCOL_ERROR, "a client sends no subscription identifier"), events)
        elif packet.packet_id and self.unanswered >= self.offer.receive_maximum and self.version == p.MQTT_5:
            self._break(self._too_many(), events)
        else:
            self.unanswered += 1 if packet.packet_id else 0
            events.append(packet)

    def _too_many(self) -> Fault:
        text = f"more than {self.offer.receive_maximum} unanswered messages"
        return Fault(Reason.RECEIVE_MAXIMUM_EXCEEDED, text)

    def _on_acks(self, packet_ids: Sequence[int], reason: int, events: list[Event]) -> None:
        release = self.window.release
        tags = [tag for tag in map(release, packet_ids) if tag is not None]
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
        reason = Reason(packet.reason)
        events.append(Ended(reason, "the client said goodbye", reason != Reason.SUCCESS, self.expiry))

    # -- ending -------------------------------------------------------------------------------------------------------

    def _break(self, fault: Fault, events: list[Event]) -> None:
        """The client broke the rules: tell it why, in the words of its version, and close."""
        if self.state == OPENING:
            if fault.version == p.MQTT_5:
                block = Properties(reason_string=fault.text)
                self._out.append(encode(p.ConnAck(False, fault.reason, block), p.MQTT_5))
            elif fault.reason == Reason.UNSUPPORTED_PROTOCOL_VERSION:
                self._out.append(encode(p.ConnAck(False, connack_3(fault.reason)), p.MQTT_3_1_1))
        events += self._end("malformed", fault.reason, fault.text)

    def _end(self, trigger: str, reason: Reason, text: str) -> list[Event]:
        online = self.state == ONLINE
        if not self._move(trigger):
            return []
        if online and self.version == p.MQTT_5 and trigger != "lost":
            code = reason if reason in DISCONNECT else Reason.UNSPECIFIED_ERROR
            self._say(lambda block: p.Disconnect(code, block), text)
        return [Ended(reason, text, online, self.expiry)]

    def _say(self, make: Callable[[Properties], p.Packet], text: str) -> None:
        """Send a packet with a reason string, unless the client's maximum packet size forbids the string."""
        block = Properties(reason_string=text) if text and self.version == p.MQTT_5 else NONE
        data = encode(make(block), self.version)
        if not self.fits(len(data)):
            data = encode(make(NONE), self.version)
        self._out.append(data)
