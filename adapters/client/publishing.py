"""What one client publishes: checked at the edge, limited in rate, and answered once it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import orjson

from ...entities.errors import Forbidden, IotSphereError, MessageRefused, RateLimited, RequestInvalid, TopicInvalid
from ...entities.message import Record
from ...entities.principal import Principal
from ...entities.topic import action_on
from ...use_cases.ports.message_log import Appended
from . import protocol
from .use_cases import ClientUseCases

MAX_OUTSTANDING: Final = 256
# A client that sends before the time that it was told: so many refusals at once, or a second, end its connection.
MAX_STRIKES: Final = 1_000
FORGIVEN_PER_SECOND: Final = 100


class ClientPublishing:
    """The publishing side of one client. ``answer`` sends a frame; ``refused`` counts what was turned away.

    ``exact``: integers beyond 2^53 are sent as they are.
    """

    __slots__ = (
        "_answer", "_clock", "_edge", "_exact", "_outstanding", "_rates", "_requests", "_room", "_strikes", "_struck_at",
        "_submit_records", "_told_until", "published", "refused",
    )  # fmt: skip

    def __init__(self, use_cases: ClientUseCases, answer: Callable[[bytes], None], exact: bool = False) -> None:
        self._edge = use_cases.edge
        self._submit_records = use_cases.publish.submit
        self._clock = use_cases.clock
        self._rates = use_cases.rates
        self._requests = use_cases.elsewhere if use_cases.state is None else use_cases.state.use.requests
        self._answer = answer
        self._exact = exact
        self._outstanding = 0
        self._room: asyncio.Event | None = None  # made when somebody waits for it
        self._strikes = 0.0
        self._struck_at = 0.0
        self._told_until = 0.0
        self.published = 0
        self.refused = 0

    @property
    def flooding(self) -> bool:
        """True for a client that goes on sending although it was told to wait."""
        return self._strikes > MAX_STRIKES

    async def __call__(self, request: protocol.Publish, principal: Principal) -> None:
        """Publish. Waits while too many earlier ones are unanswered. Raises RateLimited and Unauthenticated."""
        content = request.message if request.message is not None else request.payload
        payload = orjson.dumps(content)
        self._limit(principal, len(payload))
        await self._until_room()
        now = self._clock.now()
        try:
            route = self._edge.route(principal, request.topic, action_on(request.topic))
            record = self._edge.admit(
                route,
                payload,
                now,
                retain=request.retain,
                message_id=request.message_id,
                correlation_id=request.correlation_id,
                expires_at=expiry(request.expires_at),
            )
        except (TopicInvalid, MessageRefused, Forbidden) as error:
            error.facts.setdefault("message_id", request.message_id)
            self._bury(request.ref, principal, request.topic, payload, error)
            return
        if self._requests is not None and self._requests.handles(route.topic):
            await self._decide(request.ref, principal, record, payload)
            return
        self._submit(record, lambda result: self._published(request.ref, record, result))

    async def _decide(self, ref: int | str, principal: Principal, record: Record, payload: bytes) -> None:
        """Have a request decided, and answer with the decision."""
        assert self._requests is not None
        try:
            decided = await self._requests(principal, record)
        except MessageRefused as error:
            error.facts.setdefault("message_id", record.message_id)
            self._bury(ref, principal, record.topic, payload, error)
        except IotSphereError as error:
            self.refused += 1
            self._answer(protocol.failed(ref, error, self._exact))
        else:
            self.published += 1
            self._answer(protocol.decided(ref, {"messageId": record.message_id, **decided}, self._exact))

    async def refuse(self, ref: int | str | None, principal: Principal, raw: bytes, error: MessageRefused) -> None:
        """Dead-letter a request to publish that is no strict JSON, and answer it. Raises RateLimited."""
        self._limit(principal, len(raw))
        await self._until_room()
        self._bury(ref, principal, str(error.facts["topic"]), raw, error)

    def _limit(self, principal: Principal, size: int) -> None:
        now = asyncio.get_running_loop().time()
        try:
            self._rates.check(principal, 1, size, now)
        except RateLimited as error:
            if now < self._told_until:
                forgiven = (now - self._struck_at) * FORGIVEN_PER_SECOND
                self._strikes = max(0.0, self._strikes - forgiven) + 1
                self._struck_at = now
            after = error.facts.get("retry_after")
            self._told_until = now + (after if isinstance(after, float) else 0.0)
            raise

    async def _until_room(self) -> None:
        while self._outstanding >= MAX_OUTSTANDING:
            room = self._room = self._room or asyncio.Event()
            room.clear()
            await room.wait()

    def _bury(
        self, ref: int | str | None, principal: Principal, topic: str, payload: bytes, error: IotSphereError
    ) -> None:
        """Make the refusal a dead letter; the client is answered once that is durable."""
        letter = self._edge.dead_letter(principal, topic, payload, self._clock.now(), error)
        answer = protocol.failed(ref, error)
        self.refused += 1
        self._submit(letter, lambda _: self._answer(answer))

    def _submit(self, record: Record, then: Callable[[Appended | IotSphereError], None]) -> None:
        self._outstanding += 1

        def done(result: Appended | IotSphereError) -> None:
            self._outstanding -= 1
            if self._room is not None:
                self._room.set()
            then(result)

        self._submit_records([record], done)

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


def expiry(text: str | None) -> int:
    """A time in ms, 0 for none. Raises RequestInvalid."""
    if text is None:
        return 0
    time = protocol.parse_time(text)
    if time is None:
        raise RequestInvalid(f"expiresAt: {text[:40]!a} is no time; write it as 2026-01-31T12:00:00Z")
    return time
