"""A client's packets as records to append: each is admitted by the edge, or refused and made a dead letter.

What has arrived with one read of the socket is one batch, and a request that is carried out is a batch of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from ...adapters.dead_letter import reason_of
from ...adapters.edge import Route
from ...adapters.message_id import MessageIds
from ...adapters.mqtt import packets as p
from ...adapters.mqtt.reasons import Reason
from ...adapters.mqtt.refusals import is_denial, publish_reason
from ...adapters.mqtt.session import Session
from ...adapters.mqtt.stated import MESSAGE_ID, check_format, stated
from ...adapters.notices import oversized_letter, refusal_record
from ...entities.dead_letter import REASONS
from ...entities.errors import IotSphereError, MessageRefused
from ...entities.message import MAX_PAYLOAD_BYTES, Record
from ...entities.principal import Principal
from ...use_cases.ports.message_log import Appended
from .door import MqttDoor

KNOWN_ROUTES: Final = 1_024
QOS_2: Final = 4  # in the first byte

_Message: TypeAlias = tuple[bytes, bytes, int, int]  # topic, payload, packet id, first byte


class Batch:
    """One submission, and the answers that it owes: packet ids in order, and ``apart`` those that are no plain PUBACK.

    ``request``: what is to be carried out first; ``records`` are then what its failure leaves to append.
    """

    __slots__ = ("apart", "close", "ids", "now", "records", "request", "result", "size")

    def __init__(self, now: int, request: Requested | None = None) -> None:
        self.now = now
        self.request = request
        self.records: list[Record] = []
        self.ids: list[int] = []
        self.apart: dict[int, tuple[Reason, str]] = {}
        self.size = 0
        self.close: tuple[Reason, str] | None = None
        self.result: Appended | IotSphereError | None = None


class Requested(NamedTuple):
    """A message that asks for something, as it came, and as the record that it would be."""

    message: _Message
    record: Record


class _Request(NamedTuple):
    """The route of a topic whose messages are carried out."""

    route: Route


Way: TypeAlias = Route | _Request | IotSphereError


class MqttIntake:
    """One connection's packets in, batches out. ``ways``: what becomes of the topics that it has used lately."""

    __slots__ = ("_batch", "_done", "_door", "_edge", "_ids", "_now", "_principal", "_session", "ways")

    def __init__(self, door: MqttDoor, session: Session, principal: Principal) -> None:
        self._door = door
        self._session = session
        self._principal = principal
        self._ids = MessageIds()
        self._now = door.use.clock.now
        self._edge = door.use.edge
        self.ways: dict[bytes, Way] = {}
        self._batch = Batch(0)
        self._done: list[Batch] = []

    def take(self, items: Iterable[p.Burst | p.Publish | p.Oversized]) -> list[Batch]:
        """Admit messages."""
        self._batch = Batch(self._now())
        for item in items:
            match item:
                case p.Burst():
                    self._burst(item)
                case p.Publish():
                    self._single(item)
                case p.Oversized():
                    self._oversized(item)
            if self._batch.close is not None:
                break
        batches, self._done = self._done, []
        batch = self._batch
        if batch.records or batch.ids or batch.close is not None:
            batches.append(batch)
        return batches

    # -- admitting ----------------------------------------------------------------------------------------------------

    def _burst(self, burst: p.Burst) -> None:
        ways = self.ways
        admit = self._edge.admit
        batch = self._batch
        add = batch.records.append
        answer = batch.ids.append
        now = batch.now
        size = 0
        for message in burst.messages:
            topic, payload, packet_id, first = message
            if packet_id:
                answer(packet_id)
            way = ways.get(topic)
            if way is None:
                way = self.way(topic)
            if payload and isinstance(way, Route):
                try:
                    add(admit(way, payload, now, first & 1 == 1, first >> 1 & 3))
                    size += len(payload)
                except MessageRefused as error:
                    self._refuse(batch, message, error)
            else:
                self._unusual(message, way)
                if batch is not self._batch:  # a request was put behind it
                    batch.size += size
                    batch = self._batch
                    add = batch.records.append
                    answer = batch.ids.append
                    size = 0
                if batch.close is not None:
                    break
        batch.size += size

    def _unusual(self, message: _Message, way: Way) -> None:
        batch = self._batch
        if isinstance(way, IotSphereError):
            self._refuse(batch, message, way)
        elif isinstance(way, _Request):
            self._single(p.Publish(*message), answered=True)
        elif message[3] & p.RETAIN:
            # An empty retained message takes the retained value away (MQTT 5 section 3.3.1.3).
            self._door.counts["retained_cleared"] += 1
            minted = self._ids.mint(batch.now)
            batch.records.append(Record(way.partition, way.topic.text, minted, b"", batch.now, 0, True, True))
        else:
            self._door.counts["empty_payload"] += 1

    def _single(self, packet: p.Publish, *, answered: bool = False) -> None:
        topic, payload, packet_id, flags, _ = packet
        batch = self._batch
        if packet_id and not answered:
            self._owe(packet_id, flags)
        way = self.ways.get(topic) or self.way(topic)
        if isinstance(way, IotSphereError) or (not payload and isinstance(way, Route)):
            self._unusual(packet[:4], way)
            return
        try:
            record = self._admit(way.route if isinstance(way, _Request) else way, packet, batch.now)
        except MessageRefused as error:
            self._refuse(batch, packet[:4], error)
            return
        if isinstance(way, _Request):
            self._request(Requested(packet[:4], record))
        else:
            batch.records.append(record)
            batch.size += len(payload)

    def _admit(self, route: Route, packet: p.Publish, now: int) -> Record:
        check_format(packet.properties, packet.payload)
        says = stated(packet.properties, now)
        message_id = says.message_id
        if message_id is None and packet.flags & QOS_2:
            message_id = self._session.incoming.inflow.message_id(packet.packet_id)
        return self._edge.admit(
            route,
            packet.payload,
            now,
            retain=bool(packet.flags & p.RETAIN),
            qos=packet.qos,
            message_id=message_id,
            expires_at=says.expires_at,
            correlation_id=says.correlation_id,
            content_type=says.content_type,
            traceparent=says.traceparent,
            extra=says.extra,
        )

    def record_of(self, packet: p.Publish | p.Oversized) -> Record | None:
        """The record that a packet would be, if it is one to append."""
        way = self.ways.get(packet.topic) or self.way(packet.topic)
        if not isinstance(way, Route) or isinstance(packet, p.Oversized) or not packet.payload:
            return None
        try:
            return self._admit(way, packet, self._door.use.clock.now())
        except MessageRefused:
            return None  # it is refused, and told so, when its turn comes

    def answer_only(self, packet: p.Publish | p.Oversized) -> Batch:
        """The batch of a message at QoS 2 that is in the log already."""
        self._batch = Batch(self._now())
        self._owe(packet.packet_id, packet.flags)
        return self._batch

    def _owe(self, packet_id: int, flags: int) -> None:
        batch = self._batch
        if flags & QOS_2:
            batch.apart[len(batch.ids)] = Reason.SUCCESS, ""
        batch.ids.append(packet_id)

    def _request(self, request: Requested) -> None:
        """End the batch, and put the request with its answer behind it."""
        before = self._batch
        _, payload, packet_id, flags = request.message
        if packet_id:
            before.ids.pop()
            before.apart.pop(len(before.ids), None)
        if before.records or before.ids:
            self._done.append(before)
        self._batch = batch = Batch(before.now, request)
        if packet_id:
            self._owe(packet_id, flags)
        batch.size = len(payload)
        self._done.append(batch)
        self._batch = Batch(before.now)

    def _oversized(self, packet: p.Oversized) -> None:
        batch = self._batch
        if packet.packet_id:
            self._owe(packet.packet_id, packet.flags)
        way = self.ways.get(packet.topic) or self.way(packet.topic)
        error: IotSphereError = MessageRefused(
            f"the payload has {packet.size} bytes, more than {MAX_PAYLOAD_BYTES}: split it, or store it elsewhere",
            code="payload_too_large",
            message_id=packet.properties.user_property(MESSAGE_ID),
        )
        if isinstance(way, IotSphereError):
            error = way
        batch.records.append(oversized_letter(self._edge, self._principal, packet, error, batch.now))
        self._answer_refusal(batch, packet.topic, packet.packet_id, error)

    def way(self, topic: bytes) -> Way:
        """What becomes of the messages of a topic, also of one that is not in ``ways``."""
        use = self._door.use
        found: Way
        try:
            found = use.edge.route(self._principal, topic.decode())
            if use.requests is not None and use.requests.handles(found.topic):
                found = _Request(found)
        except IotSphereError as error:
            found = error.with_traceback(None)
        if len(self.ways) >= KNOWN_ROUTES:
            self.ways.clear()
        self.ways[topic] = found
        return found

    # -- refusing -----------------------------------------------------------------------------------------------------

    def failed(self, batch: Batch, request: Requested, error: IotSphereError) -> None:
        """A request was not carried out: leave its dead letter, where that is due, and its answer in the batch."""
        topic, _, packet_id, _ = request.message
        if error.code in REASONS or is_denial(error):
            self._refuse(batch, request.message, error)
        elif self._session.version != p.MQTT_5 and error.retry:
            batch.ids.clear()
            batch.apart.clear()  # a bare PUBACK would say that it was done
            batch.close = publish_reason(error), error.message
        else:
            self._answer_refusal(batch, topic, packet_id, error)

    def _refuse(self, batch: Batch, message: _Message, error: IotSphereError) -> None:
        topic, payload, packet_id, _ = message
        batch.size += len(payload)
        edge = self._edge
        batch.records.append(edge.dead_letter(self._principal, topic.decode(), payload, batch.now, error))
        self._answer_refusal(batch, topic, packet_id, error)

    def _answer_refusal(self, batch: Batch, topic: bytes, packet_id: int, error: IotSphereError) -> None:
        door = self._door
        five = self._session.version == p.MQTT_5
        code = reason_of(error) if is_denial(error) else error.code
        door.counts[f"refused_{code}"] += 1
        if five and packet_id:
            batch.apart[len(batch.ids) - 1] = publish_reason(error), error.message
        elif not five and is_denial(error) and door.limits.close_on_denial:
            if packet_id:
                batch.ids.pop()
                batch.apart.pop(len(batch.ids), None)
            batch.close = publish_reason(error), error.message
        elif self._principal.kind == "device":
            facts = {"error": code, "topic": topic.decode(), "packetId": packet_id or None, "detail": error.message}
            who = self._principal
            batch.records.append(refusal_record(door.use.edge, who.domain, who.name, facts, batch.now))
