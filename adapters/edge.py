"""The edge: everything between a sender's bytes and a record that may be appended, the same behind every door.

Order: size, declared decoding, UTF-8, strict JSON, key rules, envelope schema, time policy. A message is admitted as
one record or refused with one reason, and a refusal can be made a dead letter. Nothing here waits or does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

import orjson

from ..entities.errors import Forbidden, IotSphereError, MessageRefused
from ..entities.message import MAX_PAYLOAD_BYTES, VERSION, Record
from ..entities.position import Partition, partition_index
from ..entities.principal import Principal
from ..entities.topic import Topic, is_told_by_gateway, parse_topic
from ..use_cases.ports.clock import Clock
from . import dead_letter as letters
from .claims import NOTHING_CLAIMED, Claims, check_id, joined, read_claims, stated_id
from .message_id import MessageIds, derived, is_message_id
from .payload import Payload, decoder_of, of_value, read_quickly, too_large
from .samples import OBSERVED_KEYS, TIMED, stamp_of
from .timestamps import TZ_ASSUMED, Stamp, iso, iso_bytes, judge, within_years

_SOURCE: Final = "edge"

_HEAD: Final = b'{"metadata":{"messageId":"'
_TIMESTAMP: Final = b'","timestamp":"'
_SEAM: Final = b'},"payload":'
_STAMPED_SEAMS: Final = {None: b'"},"payload":', TZ_ASSUMED: b'","quality":"tz_assumed"},"payload":'}
_MESSAGE_TYPES: Final = {"request": "command", "response": "response", "notifications": "notification"}


class Route(NamedTuple):
    """All that is constant for one principal on one topic; cache it as long as the principal's grants hold.

    ``timed``: a plain payload's own time keys count. ``middle``: the envelope's bytes between timestamp and correlation
    id; ``plain``: the same, then no correlation id and no optional key, up to the payload; ``stamped``: as ``plain``,
    up to the value of ``receivedAt``.
    """

    topic: Topic
    partition: Partition
    source: str
    message_type: str
    timed: bool
    middle: bytes
    plain: bytes
    stamped: bytes


class Edge:
    """Admits messages. ``partitions``: the partitions of a (domain, channel), such as ``MessageLog.partitions``."""

    def __init__(self, clock: Clock, partitions: Callable[[str, str], Sequence[Partition]]) -> None:
        self._clock = clock
        self._partitions = partitions
        self._mint = MessageIds().mint

    def route(self, principal: Principal, topic: str, action: str = "publish") -> Route:
        """Check that the principal may act on the topic, and prepare what its messages share.

        Raises TopicInvalid, Forbidden (no grant, or the credential has expired) and UnknownDomain.
        """
        place = parse_topic(topic)
        if principal.expires_at and principal.expires_at <= self._clock.now():
            raise Forbidden("the credential has expired: get a new one and connect again")
        if place.domain != principal.domain or not principal.may(action, topic):
            raise principal.refusal(action, topic)
        if is_told_by_gateway(place):
            raise Forbidden(f"{topic!a} is told by the gateway alone: subscribe to it")
        return self._route(place, principal.name)

    def own_route(self, topic: str, source: str = "gateway") -> Route:
        """For what the gateway alone may say."""
        return self._route(parse_topic(topic), source)

    def admit(
        self,
        route: Route,
        payload: bytes,
        received_at: int,
        retain: bool = False,
        qos: int = 2,
        *,
        message_id: str | None = None,
        expires_at: int = 0,
        correlation_id: str | None = None,
        content_type: str | None = None,
        traceparent: str | None = None,
        extra: bytes = b"",
    ) -> Record:
        """Make a record of a payload, plain or a whole envelope. Times are ms since 1970; ``expires_at`` 0 = never.

        What an envelope states itself wins over what its transport says; of two expiries the earlier one holds.
        ``extra``: as ``encode_extras`` writes it; ``qos``: as ``Record`` has it. Raises MessageRefused with a dead-letter reason as ``code``.
        """
        try:
            if len(payload) > MAX_PAYLOAD_BYTES:
                raise too_large(len(payload))
            value, text = read_quickly(payload) if content_type is None else decoder_of(content_type)(payload)
            # Numbers may grow when they are written anew: 1e9 becomes 1000000000.0.
            if len(text) > MAX_PAYLOAD_BYTES:
                raise too_large(len(text))
            enveloped = "metadata" in value and "payload" in value and len(value) == 2
            if enveloped or message_id or expires_at or correlation_id or content_type or traceparent or extra:
                given = Claims(
                    message_id=check_id(message_id, "the message id"),
                    expires_at=within_years(expires_at) if expires_at else 0,
                    correlation_id=check_id(correlation_id, "the correlation id"),
                    content_type=content_type,
                    traceparent=traceparent,
                    extra=extra,
                )
                if enveloped:
                    return self._admit_envelope(route, value, received_at, given, retain=retain, qos=qos)
                stamp = stamp_of(value, received_at) if route.timed else Stamp(received_at)
                return self._compose(route, Payload(value, text), received_at, stamp, given, retain=retain, qos=qos)
        except MessageRefused as error:
            if message_id is not None and is_message_id(message_id):
                error.facts.setdefault("message_id", message_id)
            raise
        time = received_at
        plain = route.plain
        if route.timed and not TIMED.isdisjoint(value):
            stamp = stamp_of(value, received_at)
            time = stamp.timestamp
            if time == received_at and stamp.quality is not None:
                content = Payload(value, text)
                return self._compose(route, content, received_at, stamp, NOTHING_CLAIMED, retain=retain, qos=qos)
            if time != received_at:
                plain = b"".join((route.stamped, iso_bytes(received_at), _STAMPED_SEAMS[stamp.quality]))
        minted = self._mint(received_at)
        body = b"".join((_HEAD, minted.encode(), _TIMESTAMP, iso_bytes(time), plain, text, b"}"))
        # Past NamedTuple's own constructor, which costs nearly as much as parsing a small payload.
        return tuple.__new__(Record, (route.partition, route.topic.text, minted, body, time, 0, retain, True, qos))

    def dead_letter(
        self,
        principal: Principal,
        topic: str,
        payload: bytes,
        received_at: int,
        error: IotSphereError,
        *,
        stage: str = "ingress",
        attempts: int = 1,
    ) -> Record:
        """Make a record for the domain's dead letters of a message that ``error`` refused.

        When the sender gave a message id, a repetition of the same bytes gets the same record id, so it is one dead
        letter. Raises ValueError for an error that is no dead-letter reason, such as an unavailable log.
        """
        letter = letters.describe(
            error,
            stage=stage,
            topic=topic,
            source=principal.name,
            payload=payload,
            received_at=received_at,
            attempts=attempts,
        )
        route = self.own_route(f"{principal.domain}/system/dead-letters", _SOURCE)
        claims = NOTHING_CLAIMED
        if letter.message_id is not None:
            facts = "\n".join((principal.identity, letter.topic, letter.message_id, letter.sha256))
            claims = Claims(message_id=derived(sha256(facts.encode("utf-8", "backslashreplace")).digest()[:16]))
        return self._compose(route, Payload({}, letters.encode(letter)), received_at, Stamp(received_at), claims)

    def _route(self, topic: Topic, source: str) -> Route:
        partitions = self._partitions(topic.domain, topic.channel)
        message_type = _message_type(topic)
        middle = b'","topic":%b,"source":%b,"correlationId":' % (orjson.dumps(topic.text), orjson.dumps(source))
        plain = middle + b"null" + _tail(message_type)
        return Route(
            topic,
            partitions[partition_index(topic.key, len(partitions))],
            source,
            message_type,
            topic.channel == "telemetry",
            middle,
            plain + _SEAM,
            plain + b',"receivedAt":"',
        )

    def _admit_envelope(
        self, route: Route, value: dict[str, object], received_at: int, given: Claims, *, retain: bool, qos: int
    ) -> Record:
        metadata = value["metadata"]
        try:
            claims = joined(read_claims(metadata, route.topic.text), given)
            stamp = Stamp(received_at) if claims.time is None else judge(claims.time, received_at)
            return self._compose(route, of_value(value["payload"]), received_at, stamp, claims, retain=retain, qos=qos)
        except MessageRefused as error:
            if (stated := stated_id(metadata)) is not None:
                error.facts["message_id"] = stated
            raise

    def _compose(
        self,
        route: Route,
        content: Payload,
        received_at: int,
        stamp: Stamp,
        claims: Claims,
        *,
        retain: bool = False,
        qos: int = 2,
    ) -> Record:
        if claims.expires_at and claims.expires_at <= received_at:
            raise MessageRefused(
                f"the message expired at {iso(claims.expires_at)}: send it earlier, or let it live longer",
                code="expired",
            )
        if stamp.observed is not None:
            content = _observed(content.value, stamp.observed)
        message_id = claims.message_id or self._mint(received_at)
        parts = [_HEAD, message_id.encode(), _TIMESTAMP, iso_bytes(stamp.timestamp), route.middle]
        parts.append(b'"%b"' % claims.correlation_id.encode() if claims.correlation_id else b"null")
        parts.append(_tail(claims.message_type or route.message_type))
        if stamp.timestamp != received_at:
            parts.append(b',"receivedAt":"%b"' % iso_bytes(received_at))
        if claims.content_type:
            parts.append(b',"contentType":%b' % orjson.dumps(claims.content_type))
        if claims.expires_at:
            parts.append(b',"expiresAt":"%b"' % iso_bytes(claims.expires_at))
        if claims.traceparent:
            parts.append(b',"traceparent":"%b"' % claims.traceparent.encode())
        quality = stamp.quality or claims.quality
        if quality:
            parts.append(b',"quality":"%b"' % quality.encode())
        parts += (claims.extra, _SEAM, content.canonical, b"}")
        return Record(
            route.partition,
            route.topic.text,
            message_id,
            b"".join(parts),
            stamp.timestamp,
            claims.expires_at,
            retain,
            claims.message_id is None,
            qos,
        )


def _message_type(topic: Topic) -> str:
    if topic.channel in ("commands", "users"):
        return _MESSAGE_TYPES.get(topic.text.rpartition("/")[2], "event")
    return "event"


@lru_cache(maxsize=8)
def _tail(message_type: str) -> bytes:
    return f',"messageType":"{message_type}","version":"{VERSION}"'.encode()


def _observed(value: dict[str, object], time: int) -> Payload:
    """The payload with the device's own time beside its values, under a key that is free."""
    for key in OBSERVED_KEYS:
        if key not in value:
            return of_value({**value, key: iso(time)})
    return of_value(value)
