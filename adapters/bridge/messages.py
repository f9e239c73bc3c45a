"""A bridge's messages: from a foreign PUBLISH to a record or a dead letter, and from an entry of the log to a PUBLISH.

Nothing goes round in circles: what a bridge took out of a log carries the mark of that log and is not taken in again,
and what any bridge brought in is never carried out by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import orjson

from ...entities.dead_letter import REASONS
from ...entities.errors import Forbidden, IotSphereError, MessageRefused, TopicInvalid
from ...entities.message import Entry, Message, Record
from ...entities.position import partition_index
from ...entities.principal import Principal
from ...entities.topic import Topic, action_on, parse_topic
from .. import envelope
from ..alerts import gateway_principal
from ..edge import Edge, Route
from ..mqtt.properties import Properties
from ..mqtt.stated import MESSAGE_ID, stated
from ..timestamps import iso
from .file import BridgeSpec
from .mapping import TopicMap, grants_of

ORIGIN: Final = "iotsphere-origin"
RETAINED: Final = "retained"
BRIDGES: Final = "bridge:"
KNOWN_TOPICS: Final = 4_096
UNKNOWN_TIME: Final = 0

# Reason codes of a PUBACK (MQTT 5 section 3.4.2.1) and the dead-letter reasons that they come to.
_REFUSALS: Final = {0x87: "acl_denied", 0x90: "topic_invalid", 0x95: "payload_too_large", 0x99: "codec_error"}


class Arrival(NamedTuple):
    """A PUBLISH that came from the broker. ``retained``: the broker replays it; it is not new."""

    topic: str
    payload: bytes
    packet_id: int
    repeated: bool
    retained: bool
    properties: Properties


class Admitted(NamedTuple):
    """What becomes of an arrival: a record to append, or None with the word under which it is counted.

    ``asks``: the record is a request, to be decided instead of appended.
    """

    record: Record | None
    outcome: str
    asks: bool = False


class Outgoing(NamedTuple):
    """A PUBLISH for the broker. ``expires_in``: seconds, None = never. ``key``: the device that it is about."""

    topic: str
    payload: bytes
    message_id: str
    correlation_id: str | None
    expires_in: int | None
    key: str


def principal_of(spec: BridgeSpec) -> Principal:
    """Who the bridge is to the edge: a service that may write where its rules lead."""
    return Principal("service", spec.source, spec.domain, grants_of(spec.inward.rules, spec.domain))


class Inward:
    """Translates what comes in. ``origin``: the mark of this log. ``ordinal``: which slice of the device ids is ours.

    ``asks``: whether messages on a topic are requests.
    """

    def __init__(self, edge: Edge, spec: BridgeSpec, origin: str, ordinal: int, asks: Callable[[Topic], bool]) -> None:
        self._edge = edge
        self._spec = spec
        self._principal = principal_of(spec)
        self._origin = origin
        self._ordinal = ordinal
        self._asks = asks
        self._routes: dict[str, Route | IotSphereError | None] = {}

    def __call__(self, arrival: Arrival, now: int) -> Admitted:
        """Admit one message. ``now``: ms since 1970."""
        topic, payload, _, _, retained, properties = arrival
        if properties.user_property(ORIGIN) == self._origin:
            return Admitted(None, "own")
        try:
            route = self._routes[topic]
        except KeyError:
            route = self._route(topic)
        if route is None:
            return Admitted(None, "other_slice")
        if isinstance(route, IotSphereError):
            return self._refused(topic, payload, now, route)
        if not payload:
            return Admitted(None, "empty")
        says = stated(properties, now)
        try:
            record = self._edge.admit(
                route,
                payload,
                now,
                message_id=says.message_id,
                expires_at=says.expires_at,
                correlation_id=says.correlation_id,
                content_type=says.content_type,
            )
        except MessageRefused as error:
            return self._refused(route.topic.text, payload, now, error)
        if self._asks(route.topic):
            return self._request(record, payload, retained, now)
        return Admitted(as_replay(record, now) if retained else record, "taken")

    def _request(self, record: Record, payload: bytes, retained: bool, now: int) -> Admitted:
        """A request. What a broker repeats must not be done twice, and what it replays must not be done again."""
        if retained:
            error = MessageRefused("a broker replayed this request: ask without RETAIN", code="replayed")
            return self._refused(record.topic, payload, now, error)
        if record.minted and record.topic.endswith("/commands/request"):
            why = "a command from a broker needs an id of its own, since the broker may repeat it: send it as the user "
            error = MessageRefused(why + "property messageId, or in an envelope", code="schema_violation")
            return self._refused(record.topic, payload, now, error)
        return Admitted(record, "taken", asks=True)

    def decided_against(self, record: Record, now: int, error: IotSphereError) -> Record:
        """The dead letter of a request that was decided against: nobody else would be told."""
        payload = envelope.payload_of(record.body)
        return self._edge.dead_letter(self._principal, record.topic, payload, now, error)

    def _refused(self, topic: str, payload: bytes, now: int, error: IotSphereError) -> Admitted:
        return Admitted(self._edge.dead_letter(self._principal, topic, payload, now, error), "refused")

    def _route(self, topic: str) -> Route | IotSphereError | None:
        found: Route | IotSphereError | None
        try:
            found = self._lead(topic)
        except IotSphereError as error:
            found = error.with_traceback(None)
        if self._spec.slices > 1:
            key = found.topic.key if isinstance(found, Route) else topic
            if partition_index(key, self._spec.slices) != self._ordinal:
                found = None
        if len(self._routes) >= KNOWN_TOPICS:
            self._routes.clear()
        self._routes[topic] = found
        return found

    def _lead(self, topic: str) -> Route:
        mapped = self._spec.inward(topic)
        if mapped is None:
            raise TopicInvalid(
                "no rule of the bridge takes this topic any more: add an [[in]] rule for it", topic=topic
            )
        place = parse_topic(mapped.topic)
        if place.channel == "system":
            raise Forbidden(f"{mapped.topic!a} is the gateway's own to write: map it to another topic")
        return self._edge.route(self._principal, mapped.topic, action_on(mapped.topic))


def as_replay(record: Record, now: int) -> Record:
    """The record of a replayed retained message: marked, and not made new by the time at which it happened to come.

    It keeps the time that it states itself. Without one nobody knows how old it is: it gets 1970, so that it never
    hides a value that came live.
    """
    message = envelope.decode(record.body)
    timestamp = record.timestamp if record.timestamp != now else UNKNOWN_TIME
    metadata = replace(message.metadata, timestamp=iso(timestamp), received_at=iso(now), quality=RETAINED)
    return record._replace(body=envelope.encode(Message(metadata, message.payload)), timestamp=timestamp)


class Outward:
    """Translates what goes out. None for what does not concern the bridge."""

    def __init__(self, edge: Edge, spec: BridgeSpec) -> None:
        self._edge = edge
        self._map: TopicMap = spec.outward
        self._principal = principal_of(spec)
        self.brought_in = 0

    def __call__(self, entry: Entry, now: int) -> Outgoing | None:
        """The PUBLISH of an entry. Raises MessageRefused when the message does not have the form that its rule asks for."""
        record = entry.record
        mapped = self._map(record.topic) if record.body else None
        if mapped is None:
            return None
        place = parse_topic(record.topic)
        if place.channel == "system":
            return None
        message = envelope.decode(record.body)
        if message.metadata.source.startswith(BRIDGES):
            self.brought_in += 1
            return None
        expires_in = max(1, -(-(record.expires_at - now) // 1000)) if record.expires_at else None
        payload = _formed(mapped.rule.form, record.body, message.payload)
        return Outgoing(
            mapped.topic, payload, record.message_id, message.metadata.correlation_id, expires_in, place.key
        )

    def dead_letter(self, entry: Entry, now: int, error: IotSphereError) -> Record:
        """The record of a message that cannot be handed to the broker, ever."""
        record = entry.record
        payload = envelope.payload_of(record.body)
        return self._edge.dead_letter(self._principal, record.topic, payload, now, error, stage="processor")


def _formed(form: str, body: bytes, payload: bytes) -> bytes:
    if form == "envelope":
        return body
    if form == "payload":
        return payload
    value = orjson.loads(payload)
    if not isinstance(value, dict) or "value" not in value:
        raise MessageRefused(
            "the rule sends the payload's `value`, and this one has none: send a plain value, or set payload = 'payload'",
            code="codec_error",
        )
    inner = value["value"]
    return inner.encode() if isinstance(inner, str) else orjson.dumps(inner)


def user_properties(outgoing: Outgoing, origin: str) -> list[tuple[str, str]]:
    """What travels beside the payload: the message's id, and the mark of the log that it came from."""
    return [(MESSAGE_ID, outgoing.message_id), (ORIGIN, origin)]


def broker_refusal(code: int, topic: str) -> MessageRefused:
    """The error for a PUBLISH that the broker turned away for good, by the reason code of its PUBACK."""
    return MessageRefused(
        f"the broker refuses to take {topic[:80]!a} (0x{code:02X}): allow the bridge's user to publish there, or change "
        "the rule",
        code=_REFUSALS.get(code, "codec_error"),
    )


def undecided(error: IotSphereError) -> IotSphereError:
    """An error of a request as one that a dead letter can tell."""
    if error.code in REASONS or error.code in ("forbidden", "unknown_domain", "unauthenticated"):
        return error
    known = {"not_found": "acl_denied", "conflict": "version_conflict"}
    return MessageRefused(error.message, code=known.get(error.code, "schema_violation"), **error.facts)


def bridge_alert(edge: Edge, spec: BridgeSpec, alert: str, facts: Mapping[str, object], now: int) -> Record:
    """A message on ``{domain}/system/alerts`` about the bridge."""
    route = edge.route(gateway_principal(spec.domain), f"{spec.domain}/system/alerts")
    return edge.admit(route, orjson.dumps({"alert": alert, "bridge": spec.name, **facts}), now)
