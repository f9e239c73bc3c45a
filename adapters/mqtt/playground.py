"""MQTT without the product's topic space: any topic, any payload, anybody; for conformance suites and first tries.

What a guest publishes to ``TopicA/B`` lies in the log under ``{domain}/playground/topics/.TopicA/.B``. Each level gets a
dot in front, since the space has no empty level, and topics that begin with ``$`` lie beside the others, so that no
wildcard at the beginning of a filter selects them (MQTT 5 section 4.7.2). The payload is any bytes, so it travels as
base64 in a JSON object, beside the properties that MQTT hands on. Everything between, from
the edge to the log and back to the client's window, is what every device uses.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Final, NamedTuple

import orjson

from ...entities.errors import FilterInvalid, Forbidden, TopicInvalid
from ...entities.message import Record
from ...entities.principal import Principal, parse_grant
from ...entities.topic import PLAYGROUND, Topic, parse_filter
from ..edge import Edge, Route
from . import packets as p
from .life import Event
from .properties import NONE, PUBLISH, Properties, decode_properties, encode_properties

NOT_FOR_SUBSCRIBERS: Final = ("test/nosubscribe", "nosubscribe")
_SHARE: Final = "$share/"
_CLOSED: Final = "closed"


class Handed(NamedTuple):
    """A guest's message as it is handed on: what it was when it came, less what only its sender's session knew."""

    topic: bytes
    payload: bytes
    properties: Properties


class Playground:
    """Translates between guests and the log of one domain. ``guest``: who they all are."""

    def __init__(self, domain: str) -> None:
        self._home = f"{domain}/{PLAYGROUND}"
        places = (f"{self._home}/topics/#", f"{self._home}/dollar/#")
        grants = [f"{action}:{place}" for action in ("publish", "subscribe") for place in places]
        self.guest = Principal(
            "service", PLAYGROUND, domain, tuple(parse_grant(text, domain=domain) for text in grants)
        )

    # -- in -----------------------------------------------------------------------------------------------------------

    def received(self, events: Iterable[Event]) -> list[Event]:
        """What guests sent, in the words of the topic space."""
        return [self._translated(event) for event in events]

    def _translated(self, event: Event) -> Event:
        match event:
            case p.Burst(messages):
                return p.Burst([(self._place(m[0]), _wrapped(m[1], m[3]), m[2], m[3]) for m in messages])
            case p.Publish():
                payload = _wrapped(event.payload, event.flags, event.properties)
                return event._replace(
                    topic=self._place(event.topic), payload=payload, properties=_kept(event.properties)
                )
            case p.Oversized():
                return event._replace(topic=self._place(event.topic), properties=_kept(event.properties))
            case p.Connect(will=p.Will() as will):
                payload = _wrapped(will.payload, will.qos << 1 | will.retain, will.properties)
                topic = self._place(will.topic.encode()).decode()
                return event._replace(
                    will=will._replace(topic=topic, payload=payload, properties=_kept(will.properties))
                )
            case p.Subscribe():
                return event._replace(
                    requests=tuple(each._replace(filter=self.filter_of(each.filter)) for each in event.requests)
                )
            case p.Unsubscribe():
                return event._replace(filters=tuple(self.filter_of(text) for text in event.filters))
        return event

    def filter_of(self, text: str) -> str:
        """A guest's filter in the topic space; what is no filter stays none."""
        if text.startswith(_SHARE):
            group, _, inner = text[len(_SHARE) :].partition("/")
            return f"{_SHARE}{group}/{self.filter_of(inner)}" if inner else text
        if text in NOT_FOR_SUBSCRIBERS:
            return f"{self._home}/{_CLOSED}"
        levels = (level if level in ("+", "#") else f".{level}" for level in text.split("/"))
        return f"{self._home}/{_quarter(text)}/{'/'.join(levels)}" if text else text

    def _place(self, topic: bytes) -> bytes:
        return f"{self._home}/{_quarter(topic.decode())}/.".encode() + topic.replace(b"/", b"/.")

    # -- out ----------------------------------------------------------------------------------------------------------

    def handed(self, record: Record) -> Handed:
        """A record as a guest gets it."""
        topic = record.topic.split("/", 3)[3][1:].replace("/.", "/").encode()
        if not record.body:
            return Handed(topic, b"", NONE)
        said = orjson.loads(record.body)["payload"]
        properties, _ = decode_properties(block := b64decode(said["properties"]), 0, len(block), PUBLISH)
        return Handed(topic, b64decode(said["data"]), properties)


class PlaygroundEdge(Edge):
    """The edge with one more kind of topic: those below the playground, for the guest alone."""

    def route(self, principal: Principal, topic: str, action: str = "publish") -> Route:
        """Prepare what messages of a topic share. Raises TopicInvalid and Forbidden."""
        try:
            place = parse_filter(topic)
        except FilterInvalid as error:
            raise TopicInvalid(error.message, code="topic_invalid", topic=topic[:80]) from error
        if not principal.may(action, topic):
            raise Forbidden(f"{principal.kind} {principal.name!a} may not {action} on {topic[:80]!a}")
        return self._route(Topic(topic, place.domain, "system", topic, None, None), principal.name)


def _quarter(text: str) -> str:
    return "dollar" if text.startswith("$") else "topics"


def _wrapped(payload: bytes, flags: int, properties: Properties = NONE) -> bytes:
    """A message as the JSON that the log keeps; an empty retained one stays empty, since it takes a value away."""
    if not payload and flags & p.RETAIN:
        return b""
    handed_on = Properties(
        payload_format_indicator=properties.payload_format_indicator,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        user_properties=properties.user_properties,
    )
    said = {
        "data": b64encode(payload).decode(),
        "properties": b64encode(encode_properties(handed_on)).decode(),
    }
    return orjson.dumps(said)


def _kept(properties: Properties) -> Properties:
    """What the door itself has to know of a message's properties."""
    kept = Properties(
        message_expiry_interval=properties.message_expiry_interval,
        will_delay_interval=properties.will_delay_interval,
    )
    return NONE if kept == NONE else kept
