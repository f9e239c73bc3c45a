"""One client of the client protocol: its requests become use cases, its subscriptions become frames. No socket here.

The WebSocket door feeds it from a socket; the adapter API feeds the same session in the same process, so both behave
alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import orjson

from ..entities.cursor import scope_of
from ..entities.errors import Forbidden, IotSphereError, MessageRefused, RequestInvalid, TopicInvalid, Unauthenticated
from ..entities.message import Record
from ..entities.position import Gap
from ..entities.principal import Principal
from ..entities.subscription import Start, Subscription
from ..entities.topic import parse_filter, parse_topic
from ..use_cases.authenticate import Authenticate
from ..use_cases.feed import Batch
from ..use_cases.ports.clock import Clock
from ..use_cases.ports.message_log import Appended
from ..use_cases.publish import MessagePublishUseCase
from ..use_cases.reader import Reader
from ..use_cases.subscribe import MessageSubscriptionUseCase
from ..use_cases.work import Member, WorkQueueUseCase
from . import client_protocol as protocol
from .client_delivery import ClientDeliveryAdapter
from .edge import Edge
from .timestamps import iso

MAX_SUBSCRIPTIONS: Final = 1_000
MAX_OUTSTANDING_PUBLISHES: Final = 256
LAG_NOTICE_S: Final = 5.0

CLOSE_UNAUTHENTICATED: Final = 4401
CLOSE_FORBIDDEN: Final = 4403
CLOSE_TOO_SLOW: Final = 4408
CLOSE_TOO_FAST: Final = 4429


@dataclass(frozen=True, slots=True)
class ClientUseCases:
    """What a client can reach."""

    authenticate: Authenticate
    subscribe: MessageSubscriptionUseCase
    publish: MessagePublishUseCase
    work: WorkQueueUseCase
    edge: Edge
    delivery: ClientDeliveryAdapter
    clock: Clock


class Outbox(Protocol):
    """The way to the client. ``write`` never blocks; ``full`` says that nothing more should be written now."""

    @property
    def full(self) -> bool:
        """True while the client has not taken what was written."""
        ...

    def write(self, frame: bytes) -> None:
        """Send one text frame."""
        ...

    def close(self, code: int, reason: str) -> None:
        """End the connection with a WebSocket close code."""
        ...


@dataclass(slots=True)
class _Listening:
    """One subscription of this client."""

    name: str
    scope: str
    subscription: Subscription
    head: bytes
    reader: Reader | None = None
    member: Member | None = None
    task: asyncio.Task[None] | None = None
    held: set[str] = field(default_factory=set)
    room: asyncio.Event = field(default_factory=asyncio.Event)
    credit: int = 100
    told_lag_at: float = -LAG_NOTICE_S
    told_lag: bool = False

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
        if self.task is not None:
            self.task.cancel()


class ClientSession:
    """The state of one client: who it is, what it listens to, what it waits for."""

    def __init__(
        self, use_cases: ClientUseCases, outbox: Outbox, principal: Principal | None = None, exact: bool = False
    ) -> None:
        self._use = use_cases
        self._outbox = outbox
        self._exact = exact
        self.principal = principal
        self._listening: dict[str, _Listening] = {}
        self._by_reader: dict[Reader, _Listening] = {}
        self._names = 0
        self._outstanding = 0
        self._publish_room = asyncio.Event()
        self.delivered = 0
        self.published = 0
        self.refused = 0

    # -- requests -----------------------------------------------------------------------------------------------------

    async def receive(self, raw: bytes) -> None:
        """Carry out one request and answer it. Never raises for what a client can do wrong."""
        ref: int | str | None = None
        try:
            request = protocol.parse_request(raw)
            ref = request.ref
            match request:
                case protocol.Auth():
                    self._renew(request)
                case _ if self.principal is None:
                    raise Unauthenticated('send {"type":"auth","ref":1,"token":"…"} first')
                case protocol.Publish():
                    await self._publish(request, self.principal)
                case protocol.Subscribe() if request.group is not None:
                    await self._join(request, self.principal, request.group)
                case protocol.Subscribe():
                    await self._subscribe(request, self.principal)
                case protocol.Unsubscribe():
                    self._unsubscribe(request)
                case protocol.Acknowledge():
                    await self._acknowledge(request)
                case protocol.Ping():
                    self._answer(protocol.ok(ref, time=iso(self._use.clock.now())))
        except IotSphereError as error:
            self.refused += 1
            if ref is None and isinstance(error, RequestInvalid):
                found = error.facts.get("ref")
                ref = found if isinstance(found, int | str) else None
            self._answer(protocol.failed(ref, error))
            if isinstance(error, Unauthenticated):
                self._outbox.close(CLOSE_UNAUTHENTICATED, "authenticate")

    def _answer(self, frame: bytes) -> None:
        self._outbox.write(frame)

    def _renew(self, request: protocol.Auth) -> None:
        principal = self._use.authenticate.token(request.token)
        if self.principal is not None and principal.identity != self.principal.identity:
            raise Forbidden("a renewed token must be of the same subject; open another connection for another one")
        self.principal = principal
        self._answer(protocol.ok(request.ref, expiresAt=iso(principal.expires_at) if principal.expires_at else None))
        for listening in list(self._listening.values()):
            if not all(principal.may_all("subscribe", wanted) for wanted in listening.subscription.filters):
                self._end(listening)
                self._answer(
                    protocol.notice("ended", subscription=listening.name, code="forbidden", message="no longer granted")
                )

    def still_valid(self) -> bool:
        """Tell whether the principal still holds; the door asks every two seconds and closes with 4401 if not."""
        return self.principal is None or self._use.authenticate.still_valid(self.principal)

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def _publish(self, request: protocol.Publish, principal: Principal) -> None:
        while self._outstanding >= MAX_OUTSTANDING_PUBLISHES:
            self._publish_room.clear()
            await self._publish_room.wait()
        content = request.message if request.message is not None else request.payload
        payload = orjson.dumps(content)
        now = self._use.clock.now()
        try:
            expires_at = _expiry(request.expires_at)
            action = "command" if _is_command(request.topic) else "publish"
            route = self._use.edge.route(principal, request.topic, action)
            record = self._use.edge.admit(
                route,
                payload,
                now,
                retain=request.retain,
                message_id=request.message_id,
                correlation_id=request.correlation_id,
                expires_at=expires_at,
            )
        except (TopicInvalid, MessageRefused, Forbidden) as error:
            letter = self._use.edge.dead_letter(principal, request.topic, payload, now, error)
            answer = protocol.failed(request.ref, error)
            self._submit(letter, lambda _: self._answer(answer))
            self.refused += 1
            return
        self._submit(record, lambda result: self._published(request.ref, record, result))

    def _submit(self, record: Record, then: Callable[[Appended | IotSphereError], None]) -> None:
        self._outstanding += 1

        def done(result: Appended | IotSphereError) -> None:
            self._outstanding -= 1
            self._publish_room.set()
            then(result)

        self._use.publish.submit([record], done)

    def _published(self, ref: int | str, record: Record, result: Appended | IotSphereError) -> None:
        if isinstance(result, IotSphereError):
            self._answer(protocol.failed(ref, result))
            return
        self.published += 1
        position = result.positions[0]
        self._answer(
            protocol.ok(
                ref,
                messageId=record.message_id,
                position=f"{record.partition.channel}/{record.partition.number}/{position.epoch}-{position.offset}",
                duplicate=bool(result.duplicates),
            )
        )

    # -- subscribing --------------------------------------------------------------------------------------------------

    def _open(self, request: protocol.Subscribe, principal: Principal) -> _Listening:
        if len(self._listening) >= MAX_SUBSCRIPTIONS:
            raise RequestInvalid(
                f"a connection may hold {MAX_SUBSCRIPTIONS} subscriptions; unsubscribe, or join filters"
            )
        filters = tuple(dict.fromkeys(parse_filter(text) for text in request.filters))
        scope = scope_of(principal.identity, (wanted.text for wanted in filters))
        for wanted in filters:
            if wanted.domain != principal.domain:
                raise Forbidden(
                    f"{wanted.text!a} is not open to {principal.name!a}; ask for a filter inside your grants"
                )
        self._names += 1
        name = f"s{self._names}"
        start = self._start(request.start, scope)
        subscription = Subscription(filters, start, request.policy, request.max_rate)
        head = b'{"type":"messages","subscription":"%s","cursor":' % name.encode()
        return _Listening(name, scope, subscription, head, credit=request.credit)

    def _start(self, text: str, scope: str) -> Start:
        if text in ("live", "latest", "earliest"):
            return Start(text)
        time = protocol.parse_time(text)
        if time is not None:
            return Start("time", time=time)
        return Start("cursor", cursor=self._use.delivery.read_cursor(text, scope))

    async def _subscribe(self, request: protocol.Subscribe, principal: Principal) -> None:
        listening = self._open(request, principal)
        reader = await self._use.subscribe(principal, listening.subscription, self)
        listening.reader = reader
        self._listening[listening.name] = listening
        self._by_reader[reader] = listening
        self._answer(
            protocol.ok(
                request.ref,
                subscription=listening.name,
                cursor=self._use.delivery.cursor(reader, listening.scope),
                missed=[protocol.gap_facts(gap) for gap in reader.missed_at_start],
            )
        )

    async def _join(self, request: protocol.Subscribe, principal: Principal, group: str) -> None:
        listening = self._open(request, principal)
        listening.member = await self._use.work(principal, group, listening.subscription)
        self._listening[listening.name] = listening
        self._answer(protocol.ok(request.ref, subscription=listening.name, cursor=None, missed=[]))
        listening.task = asyncio.get_running_loop().create_task(self._hand_out(listening, listening.member))

    async def _hand_out(self, listening: _Listening, member: Member) -> None:
        try:
            while True:
                while len(listening.held) >= listening.credit or self._outbox.full:
                    listening.room.clear()
                    await listening.room.wait()
                handouts = await member.take(min(100, listening.credit - len(listening.held)))
                listening.held.update(item.token for item in handouts)
                self._answer(self._use.delivery.handout(listening.name, handouts, self._exact))
                self.delivered += len(handouts)
        except IotSphereError as error:
            self._end(listening)
            self._answer(protocol.notice("ended", subscription=listening.name, code=error.code, message=error.message))

    async def _acknowledge(self, request: protocol.Acknowledge) -> None:
        listening = self._listening.get(request.subscription)
        if listening is None or listening.member is None:
            raise RequestInvalid(f"{request.subscription[:40]!a} is no group subscription of this connection")
        held = [token for token in request.deliveries if token in listening.held]
        count = await listening.member.acknowledge(held, request.retry_in) if held else 0
        listening.held.difference_update(held)
        listening.room.set()
        self._answer(protocol.ok(request.ref, acknowledged=count))

    def _unsubscribe(self, request: protocol.Unsubscribe) -> None:
        listening = self._listening.get(request.subscription)
        if listening is None:
            raise RequestInvalid(f"{request.subscription[:40]!a} is no subscription of this connection")
        cursor = None
        if listening.reader is not None:
            cursor = self._use.delivery.cursor(listening.reader, listening.scope)
        self._end(listening)
        self._answer(protocol.ok(request.ref, cursor=cursor))

    def _end(self, listening: _Listening) -> None:
        self._listening.pop(listening.name, None)
        if listening.reader is not None:
            self._by_reader.pop(listening.reader, None)
        listening.close()

    # -- what readers call (use_cases.reader.Sink) -----------------------------------------------------------------

    def deliver(self, reader: Reader, batch: Batch) -> bool:
        """Write the batch as frames, unless the client has not taken the earlier ones."""
        if self._outbox.full:
            return False
        listening = self._by_reader.get(reader)
        if listening is None:
            return False
        write = self._outbox.write
        for frame in self._use.delivery.frames(batch, reader, listening.head, listening.scope, self._exact):
            write(frame)
        self.delivered += len(batch.entries)
        return True

    def missed(self, reader: Reader, gap: Gap) -> None:
        """Tell the client what it cannot get."""
        listening = self._by_reader.get(reader)
        if listening is not None:
            self._answer(protocol.notice("gap", subscription=listening.name, missed=[protocol.gap_facts(gap)]))

    def lagging(self, reader: Reader, lag: int) -> None:
        """Tell the client that it is behind, at most every five seconds, and that it has caught up, if it was told."""
        listening = self._by_reader.get(reader)
        if listening is None:
            return
        now = asyncio.get_running_loop().time()
        if (lag and now - listening.told_lag_at >= LAG_NOTICE_S) or (not lag and listening.told_lag):
            listening.told_lag_at = now
            listening.told_lag = lag > 0
            self._answer(
                protocol.notice(
                    "lagging",
                    subscription=listening.name,
                    policy=listening.subscription.policy,
                    behind=lag,
                    superseded=reader.superseded,
                )
            )

    # -- the door's side ----------------------------------------------------------------------------------------------

    def has_room(self) -> None:
        """The client has taken what was written: everybody who waited may go on."""
        for reader in list(self._by_reader):
            reader.resume()
        for listening in self._listening.values():
            listening.room.set()

    def cursors(self) -> Mapping[str, str | None]:
        """Where each subscription stands, for a client that has to come back."""
        return {
            listening.name: self._use.delivery.cursor(listening.reader, listening.scope)
            for listening in self._listening.values()
            if listening.reader is not None
        }

    def close(self) -> None:
        """End everything. What a group member held goes to others once its visibility has passed."""
        for listening in list(self._listening.values()):
            self._end(listening)


def _is_command(topic: str) -> bool:
    return parse_topic(topic).channel == "commands" and topic.endswith("/request")


def _expiry(text: str | None) -> int:
    if text is None:
        return 0
    time = protocol.parse_time(text)
    if time is None:
        raise RequestInvalid(f"expiresAt: {text[:40]!a} is no time; write it as 2026-01-31T12:00:00Z")
    return time
