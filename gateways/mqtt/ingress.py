"""A client's messages on their way into the log: admitted in one go, appended, and only then acknowledged.

What has arrived with one read of the socket is one submission. A refused message becomes a dead letter in the same
submission, and is acknowledged with its reason. Answers leave in the order in which the messages came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from ...adapters.dead_letter import reason_of
from ...adapters.edge import Route
from ...adapters.message_id import MessageIds
from ...adapters.mqtt import packets as p
from ...adapters.mqtt.reasons import Reason
from ...adapters.mqtt.refusals import is_denial, publish_reason
from ...adapters.mqtt.session import Session
from ...adapters.mqtt.stated import MESSAGE_ID, stated
from ...adapters.notices import oversized_letter, refusal_record
from ...entities.errors import IotSphereError, LogFull, MessageRefused, ShuttingDown
from ...entities.message import MAX_PAYLOAD_BYTES, Record
from ...entities.principal import Principal
from ...use_cases.ports.message_log import Appended
from .door import MqttDoor

KNOWN_ROUTES: Final = 1_024

_Message: TypeAlias = tuple[bytes, bytes, int, int]  # topic, payload, packet id, first byte


class _Batch:
    """One submission, and the answers that it owes: packet ids in order, and why some of them are refused."""

    __slots__ = ("close", "ids", "now", "records", "refused", "result", "size")

    def __init__(self, now: int) -> None:
        self.now = now
        self.records: list[Record] = []
        self.ids: list[int] = []
        self.refused: dict[int, tuple[Reason, str]] = {}
        self.size = 0
        self.close: tuple[Reason, str] | None = None
        self.result: Appended | IotSphereError | None = None


class MqttIngress:
    """One connection's way in. ``moved`` is called once answers lie in the session, or it ``failed`` and is to be closed.

    ``own`` is told each record that the client has published.
    """

    def __init__(
        self, door: MqttDoor, session: Session, principal: Principal, moved: Callable[[], None], ids: MessageIds
    ) -> None:
        self._door = door
        self._session = session
        self._principal = principal
        self._moved = moved
        self._ids = ids
        self._routes: dict[bytes, Route | IotSphereError] = {}
        self._under_way: deque[_Batch] = deque()
        self._congested = False
        self._settled: asyncio.Event | None = None
        self.bytes_under_way = 0
        self.own: Callable[[list[Record]], None] | None = None
        self.failed: tuple[Reason, str] | None = None

    @property
    def blocked(self) -> bool:
        """Whether the client has enough under way: its socket is to be read no further."""
        return (
            self.bytes_under_way >= self._door.limits.unappended_bytes
            or self._session.unanswered >= self._session.offer.receive_maximum
            or (self._congested and self._door.use.publish.congested)
        )

    @property
    def busy(self) -> bool:
        """Whether anything is on its way into the log."""
        return bool(self._under_way)

    async def settle(self) -> None:
        """Wait until nothing is on its way any more."""
        while self._under_way:
            self._settled = asyncio.Event()
            await self._settled.wait()

    def take(self, items: Iterable[p.Burst | p.Publish | p.Oversized]) -> None:
        """Admit messages and submit them."""
        batch = _Batch(self._door.use.clock.now())
        for item in items:
            match item:
                case p.Burst():
                    self._burst(batch, item)
                case p.Publish():
                    self._single(batch, item)
                case p.Oversized():
                    self._oversized(batch, item)
            if batch.close is not None:
                break
        self._submit(batch)

    def publish(self, packet: p.Publish) -> None:
        """Submit a message that no client waits for: a will."""
        batch = _Batch(self._door.use.clock.now())
        self._single(batch, packet._replace(packet_id=0))
        batch.close = None
        self._submit(batch)

    # -- admitting ----------------------------------------------------------------------------------------------------

    def _burst(self, batch: _Batch, burst: p.Burst) -> None:
        routes = self._routes
        admit = self._door.use.edge.admit
        add = batch.records.append
        answer = batch.ids.append
        now = batch.now
        size = 0
        for message in burst.messages:
            topic, payload, packet_id, first = message
            if packet_id:
                answer(packet_id)
            route = routes.get(topic)
            if route is None:
                route = self._route(topic)
            if payload and isinstance(route, Route):
                try:
                    add(admit(route, payload, now, retain=first & 1 == 1))
                    size += len(payload)
                except MessageRefused as error:
                    self._refuse(batch, message, error)
            else:
                self._unusual(batch, message, route)
                if batch.close is not None:
                    break
        batch.size += size

    def _unusual(self, batch: _Batch, message: _Message, route: Route | IotSphereError) -> None:
        if isinstance(route, IotSphereError):
            self._refuse(batch, message, route)
        elif message[3] & p.RETAIN:
            # An empty retained message takes the retained value away (MQTT 5 section 3.3.1.3).
            self._door.counts["retained_cleared"] += 1
            minted = self._ids.mint(batch.now)
            batch.records.append(Record(route.partition, route.topic.text, minted, b"", batch.now, 0, True, True))
        else:
            self._door.counts["empty_payload"] += 1

    def _single(self, batch: _Batch, packet: p.Publish) -> None:
        topic, payload, packet_id, flags, properties = packet
        if packet_id:
            batch.ids.append(packet_id)
        route = self._routes.get(topic) or self._route(topic)
        if not payload or isinstance(route, IotSphereError):
            self._unusual(batch, packet[:4], route)
            return
        says = stated(properties, batch.now)
        try:
            record = self._door.use.edge.admit(
                route,
                payload,
                batch.now,
                retain=bool(flags & p.RETAIN),
                message_id=says.message_id,
                expires_at=says.expires_at,
                correlation_id=says.correlation_id,
                content_type=says.content_type,
            )
        except MessageRefused as error:
            self._refuse(batch, packet[:4], error)
        else:
            batch.records.append(record)
            batch.size += len(payload)

    def _oversized(self, batch: _Batch, packet: p.Oversized) -> None:
        if packet.packet_id:
            batch.ids.append(packet.packet_id)
        route = self._routes.get(packet.topic) or self._route(packet.topic)
        error: IotSphereError = MessageRefused(
            f"the payload has {packet.size} bytes, more than {MAX_PAYLOAD_BYTES}: split it, or store it elsewhere",
            code="payload_too_large",
            message_id=packet.properties.user_property(MESSAGE_ID),
        )
        if isinstance(route, IotSphereError):
            error = route
        batch.records.append(oversized_letter(self._door.use.edge, self._principal, packet, error, batch.now))
        self._answer_refusal(batch, packet.topic, packet.packet_id, error)

    def _route(self, topic: bytes) -> Route | IotSphereError:
        found: Route | IotSphereError
        try:
            found = self._door.use.edge.route(self._principal, topic.decode())
        except IotSphereError as error:
            found = error.with_traceback(None)
        if len(self._routes) >= KNOWN_ROUTES:
            self._routes.clear()
        self._routes[topic] = found
        return found

    # -- refusing -----------------------------------------------------------------------------------------------------

    def _refuse(self, batch: _Batch, message: _Message, error: IotSphereError) -> None:
        topic, payload, packet_id, _ = message
        batch.size += len(payload)
        edge = self._door.use.edge
        batch.records.append(edge.dead_letter(self._principal, topic.decode(), payload, batch.now, error))
        self._answer_refusal(batch, topic, packet_id, error)

    def _answer_refusal(self, batch: _Batch, topic: bytes, packet_id: int, error: IotSphereError) -> None:
        door = self._door
        five = self._session.version == p.MQTT_5
        code = reason_of(error)
        door.counts[f"refused_{code}"] += 1
        if five and packet_id:
            batch.refused[len(batch.ids) - 1] = publish_reason(error), error.message
        elif not five and is_denial(error) and door.limits.close_on_denial:
            if packet_id:
                batch.ids.pop()
            batch.close = publish_reason(error), error.message
        elif self._principal.kind == "device":
            facts = {"error": code, "topic": topic.decode(), "packetId": packet_id or None, "detail": error.message}
            who = self._principal
            batch.records.append(refusal_record(door.use.edge, who.domain, who.name, facts, batch.now))

    # -- appending and answering --------------------------------------------------------------------------------------

    def _submit(self, batch: _Batch) -> None:
        if self.own is not None:
            self.own(batch.records)
        self._under_way.append(batch)
        if not batch.records:
            batch.result = Appended((), frozenset())
            self._answer_all()
            return
        self.bytes_under_way += batch.size
        self._door.counts["submitted"] += len(batch.records)

        def done(result: Appended | IotSphereError) -> None:
            batch.result = result
            self._answer_all()
            self._moved()

        self._congested = self._door.use.publish.submit(batch.records, done)

    def _answer_all(self) -> None:
        under_way = self._under_way
        while under_way:
            batch = under_way[0]
            if batch.result is None:
                return
            under_way.popleft()
            if batch.records:
                self.bytes_under_way -= batch.size
            self._answer(batch, batch.result)
        if self._settled is not None:
            self._settled.set()

    def _answer(self, batch: _Batch, result: Appended | IotSphereError) -> None:
        session = self._session
        if isinstance(result, IotSphereError):
            self._fail(batch, result)
        elif not batch.refused:
            session.acknowledge(batch.ids)
        else:
            start = 0
            for index, (reason, text) in batch.refused.items():
                session.acknowledge(batch.ids[start:index])
                session.acknowledge_refused(batch.ids[index], reason, text)
                start = index + 1
            session.acknowledge(batch.ids[start:])
        if batch.close is not None and self.failed is None:
            self.failed = batch.close

    def _fail(self, batch: _Batch, error: IotSphereError) -> None:
        """The log did not take the batch, and retrying it here is pointless."""
        self._door.counts[error.code] += 1
        if isinstance(error, ShuttingDown):
            self.failed = Reason.SERVER_SHUTTING_DOWN, error.message
        elif self._session.version == p.MQTT_5:
            full = isinstance(error, LogFull)
            reason = Reason.QUOTA_EXCEEDED if full else Reason.IMPLEMENTATION_SPECIFIC_ERROR
            for packet_id in batch.ids:
                self._session.acknowledge_refused(packet_id, reason, error.message)
        else:
            self.failed = Reason.QUOTA_EXCEEDED, error.message
