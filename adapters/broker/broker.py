"""The adapter API for backend services: publish, subscribe and share work, the same over every wire.

    async with iotsphere.connect(url, token=token) as broker:
        receipt = await broker.publish("iotsphere/devices/d1/telemetry/temperature", 21.5)
        async for message in broker.subscribe("iotsphere/devices/+/telemetry/#", from_=cursor):
            ...

A lost connection is not seen here: subscriptions resume with their cursors, and what was published without an answer
is sent again with the same message id, so nothing is lost or doubled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, overload
from uuid import uuid4

import orjson

from ...entities.errors import IotSphereError, MessageRefused, RateLimited, RequestInvalid, ShuttingDown, Unavailable
from ...entities.message import MAX_PAYLOAD_BYTES, Message
from ...entities.topic import parse_filter
from ..envelope import encode
from ..payload import too_large
from .requests import Answer, PendingRequests, json_text
from .state import BrokerState
from .stream import DeliveryStream, MessageStream, OnGap
from .subscriptions import Subscriptions
from .wire import Wire

Json = Mapping[str, Any] | Sequence[Any] | str | int | float | bool | None

MAX_IN_FLIGHT: Final = 200
RETRY_S: Final = 0.5


class Receipt(NamedTuple):
    """What the gateway answered to a publication, once it was durable.

    ``position``: where it is in the log, for people; empty for a request, which is decided instead of being appended.
    ``duplicate``: it was there already, under the same message id. ``decided``: what was decided about a request.
    """

    message_id: str
    position: str
    duplicate: bool
    decided: Answer | None = None


class MessageBrokerAdapter(BrokerState):
    """A client of a gateway, or of a log directly. Use it as an async context manager.

    Every method raises Unauthenticated once the token has expired or was revoked; a broker does not come back from
    that, so ``renew`` in time.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._requests = PendingRequests(wire.send)
        self._subscriptions = Subscriptions(self._requests)
        self._in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._line = asyncio.Lock()
        self._wait_until = 0.0
        self._failure: IotSphereError | None = None

    async def __aenter__(self) -> Self:
        await self._wire.open(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._subscriptions.finish()
        await self._wire.close()
        self.lost(ShuttingDown("this broker was closed; connect again"))

    # -- publishing ---------------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: Message | bytes | Json,
        *,
        message_id: str | None = None,
        correlation_id: str | None = None,
        expires_at: str | None = None,
        retain: bool = False,
    ) -> Receipt:
        """Publish one message and wait until it is durable.

        ``payload``: a value that JSON can hold, JSON text as bytes, or a whole Message (its metadata then counts).
        ``expires_at``: ISO-8601. A gateway that asks to slow down is obeyed. Raises TopicInvalid, Forbidden,
        MessageRefused, LogFull.
        """
        if isinstance(payload, Message):
            message_id = payload.metadata.message_id
            content = b'"message":' + encode(payload)
        else:
            message_id = message_id or str(uuid4())
            content = b'"payload":' + _json(payload)
        members: dict[str, object] = {
            "topic": topic,
            "messageId": message_id,
            "correlationId": correlation_id,
            "expiresAt": expires_at,
            "retain": retain,
        }
        body = b"," + orjson.dumps(members)[1:-1] + b"," + content
        async with self._in_flight:
            await self._pause()
            answer = await self._publish(body)
            if answer is None:
                async with self._line:  # if all who were refused tried again at once, most would be refused again
                    while answer is None:
                        await self._pause()
                        answer = await self._publish(body)
            if "position" not in answer:
                return Receipt(answer["messageId"], "", bool(answer.get("repeated")), answer)
            return Receipt(answer["messageId"], answer["position"], answer["duplicate"])

    async def _publish(self, body: bytes) -> Answer | None:
        """Ask until there is an answer; None: it is to be sent later, when ``_pause`` is over."""
        while True:
            self._subscriptions.moved()
            try:
                return await self._requests.ask("publish", body, repeat=True)
            except RateLimited as error:
                if self._failure is not None:
                    raise
                after = error.facts.get("retry_after")
                now = asyncio.get_running_loop().time()
                self._wait_until = max(self._wait_until, now + (after if isinstance(after, float) else RETRY_S))
                return None
            except ShuttingDown:
                if self._failure is not None:
                    raise
                await asyncio.sleep(RETRY_S)  # another gateway will take it

    async def _pause(self) -> None:
        wait = self._wait_until - asyncio.get_running_loop().time()
        if wait > 0:
            await asyncio.sleep(wait)
            await self._pause()  # others may have been told to wait even longer

    # -- subscribing --------------------------------------------------------------------------------------------------

    @overload
    def subscribe(
        self,
        *filters: str,
        from_: str = ...,
        policy: str = ...,
        max_rate: float = ...,
        on_gap: OnGap | None = ...,
        group: None = ...,
    ) -> MessageStream: ...

    @overload
    def subscribe(self, *filters: str, group: str, from_: str = ..., credit: int = ...) -> DeliveryStream: ...

    def subscribe(
        self,
        *filters: str,
        from_: str = "live",
        policy: str = "complete",
        max_rate: float = 0.0,
        on_gap: OnGap | None = None,
        group: str | None = None,
        credit: int = 100,
    ) -> MessageStream | DeliveryStream:
        """Listen to filters of one domain; what is published after this call is received.

        ``from_``: ``live``, ``latest`` (the last value of each topic first), ``earliest``, a cursor, or a time in
        ISO-8601. ``policy``: ``complete`` (everything, at this consumer's pace) or ``latest`` (when slow, the newest
        value per topic). ``max_rate``: messages a second, 0 = no limit. ``group``: share the messages with the other
        members, each to be acknowledged; ``credit`` of them at once. Where messages can no longer be had, ``on_gap`` is
        called for each gap, or, without it, the iteration raises MessagesMissed once and may be gone on with.

        Raises FilterInvalid; the iteration raises Forbidden, CursorInvalid and Conflict.
        """
        if not filters:
            raise RequestInvalid("subscribe to at least one filter, such as iotsphere/devices/#")
        members: dict[str, object] = {"filters": filters}
        domain = next(iter({parse_filter(text).domain for text in filters}))
        stream: MessageStream | DeliveryStream
        if group is None:
            members |= {"policy": policy, "maxRate": float(max_rate), "cursors": "message"}
            stream = MessageStream(self._subscriptions, domain, orjson.dumps(members)[1:-1], from_, on_gap)
        else:
            members |= {"group": group, "credit": credit}
            stream = DeliveryStream(self._subscriptions, domain, orjson.dumps(members)[1:-1], from_, None)
        self._subscriptions.add(stream)
        return stream

    async def renew(self, token: str) -> None:
        """Go on with a fresh token of the same subject. Raises Unauthenticated and Forbidden."""
        self._wire.use_token(token)
        try:
            await self._requests.ask("auth", b',"token":' + orjson.dumps(token))
        except Unavailable:
            if self._failure is not None:
                raise
            # the next connection begins with this token

    # -- what the wire calls ------------------------------------------------------------------------------------------

    def opened(self) -> None:
        """Subscribe again, and send again what was published without an answer; in this order, as it was asked for."""
        self._requests.connected = True
        self._subscriptions.opened()
        self._requests.again()

    def lost(self, error: IotSphereError | None) -> None:
        """Wait for the next connection, or, with an error, give everybody that error."""
        if error is not None:
            self._failure = error
        self._subscriptions.lost(error)
        self._requests.lost(error)

    async def received(self, frame: bytes) -> None:
        """Take one frame; waits while its consumer is slow and nobody else needs the wire."""
        document = orjson.loads(frame)
        if document["type"] in ("ok", "error"):
            self._requests.answered(document)
        else:
            await self._subscriptions.received(document, len(frame))


def _json(payload: bytes | Json) -> bytes:
    """The JSON text of a payload. Raises MessageRefused, RequestInvalid."""
    text = payload if isinstance(payload, bytes) else json_text(payload)
    if len(text) > MAX_PAYLOAD_BYTES:
        raise too_large(len(text))
    if text is payload:
        try:
            orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise MessageRefused(
                f"the payload is no JSON text ({error}); pass the value itself, or valid JSON", code="payload_not_json"
            ) from error
    return text
