"""Envelopes: messages to the JSON that every wire carries and back, with the payload's bytes kept as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from ..entities.errors import MessageRefused
from ..entities.message import Message, Metadata
from .extras import read_extras

_HEAD: Final = b'{"metadata":'
# The first occurrence is the real one: inside a JSON text the quote would be escaped, and metadata is flat.
_SEAM: Final = b'},"payload":'

WIRE_NAMES: Final[Mapping[str, str]] = {
    "messageId": "message_id",
    "timestamp": "timestamp",
    "topic": "topic",
    "source": "source",
    "correlationId": "correlation_id",
    "messageType": "message_type",
    "version": "version",
    "receivedAt": "received_at",
    "contentType": "content_type",
    "expiresAt": "expires_at",
    "traceparent": "traceparent",
    "quality": "quality",
    "responseTopic": "response_topic",
    "correlationData": "correlation_data",
    "properties": "properties",
}
_REQUIRED: Final = ("messageId", "timestamp", "topic", "source", "messageType", "version")

_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_RUN: Final = b"0" * 16
# A string, so that digits within are passed over, or an integer of 16 digits or more that is no part of a float.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|(?<![0-9.eE+-])-?[0-9]{16,}+(?![.eE])')
MAX_BROWSER_INTEGER: Final = 2**53


def encode(message: Message) -> bytes:
    """The envelope of a message. ``correlationId`` is always there; the other optional keys only where they are set."""
    metadata = message.metadata
    fields: dict[str, object] = {
        "messageId": metadata.message_id,
        "timestamp": metadata.timestamp,
        "topic": metadata.topic,
        "source": metadata.source,
        "correlationId": metadata.correlation_id,
        "messageType": metadata.message_type,
        "version": metadata.version,
    }
    optional = {
        "receivedAt": metadata.received_at,
        "contentType": metadata.content_type,
        "expiresAt": metadata.expires_at,
        "traceparent": metadata.traceparent,
        "quality": metadata.quality,
        "responseTopic": metadata.response_topic,
        "correlationData": metadata.correlation_data,
        "properties": metadata.properties or None,
    }
    fields.update((wire, value) for wire, value in optional.items() if value is not None)
    return b"".join((_HEAD, orjson.dumps(fields), b',"payload":', message.payload, b"}"))


def decode(body: bytes) -> Message:
    """The message of an envelope as ``encode`` or the edge wrote it.

    Raises MessageRefused (schema_violation) for anything else: this reads the gateway's own form, not a sender's.
    """
    seam = body.find(_SEAM)
    if seam < 0 or not body.startswith(_HEAD) or not body.endswith(b"}"):
        raise _foreign("it is not of the form {metadata, payload}")
    try:
        fields = orjson.loads(body[len(_HEAD) : seam + 1])
    except orjson.JSONDecodeError as error:
        raise _foreign("its metadata is no JSON") from error
    known: dict[str, Any] = {}
    for wire, value in fields.items():
        name = WIRE_NAMES.get(wire)
        if name is None:
            raise _foreign(f"its metadata has an unknown key {wire[:40]!a}")
        if wire == "properties":
            known[name] = pairs_of(value)
        elif isinstance(value, str):
            known[name] = value
        elif value is not None:
            raise _foreign(f"its {wire} is no text")
    for wire in _REQUIRED:
        if WIRE_NAMES[wire] not in known:
            raise _foreign(f"its {wire} is missing")
    return Message(Metadata(**known), body[seam + len(_SEAM) : -1])


def pairs_of(value: Any) -> tuple[tuple[str, str], ...]:
    """The pairs of ``properties``. Raises MessageRefused as ``decode`` does."""
    try:
        return read_extras({"properties": value}).properties
    except ValueError as error:
        raise _foreign(f"its {error}") from error


def payload_of(body: bytes) -> bytes:
    """The payload's bytes, cut out of an envelope as ``encode`` or the edge wrote it. Raises as ``decode`` does."""
    seam = body.find(_SEAM)
    if seam < 0:
        raise _foreign("it is not of the form {metadata, payload}")
    return body[seam + len(_SEAM) : -1]


def browser_safe(body: bytes) -> bytes:
    """The envelope with each integer beyond 2^53 in its payload as a text, since JavaScript would round it.

    Nearly always this is the same object, found out in well under a microsecond.
    """
    start = body.find(_SEAM) + len(_SEAM)
    if body.translate(_DIGITS).find(_LONG_RUN, start) < 0:
        return body
    return body[:start] + _TOKEN.sub(_quote_integer, body[start:])


def is_browser_safe(bodies: bytes) -> bool:
    """True when there is nothing to change in any of the envelopes, joined; at times False all the same."""
    return bodies.translate(_DIGITS).find(_LONG_RUN) < 0


def browser_safe_json(text: bytes) -> bytes:
    """Any JSON text with each integer beyond 2^53 as a text."""
    return text if text.translate(_DIGITS).find(_LONG_RUN) < 0 else _TOKEN.sub(_quote_integer, text)


def _quote_integer(token: re.Match[bytes]) -> bytes:
    text = token[0]
    if text.startswith(b'"') or abs(int(text)) <= MAX_BROWSER_INTEGER:
        return text
    return b'"%b"' % text


def _foreign(why: str) -> MessageRefused:
    return MessageRefused(f"the envelope cannot be read: {why}; send it through a door of the gateway")
