"""Claims: what the metadata of a sender's own envelope states, checked before any of it is believed."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ..entities.errors import MessageRefused
from ..entities.message import MESSAGE_TYPES
from .envelope import WIRE_NAMES
from .extras import KEYS as EXTRAS
from .extras import encode_extras, read_extras
from .message_id import is_message_id
from .payload import decoder_of
from .timestamps import Reading, read_time

VERSIONS: Final = ("1", "1.0")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
_QUALITY: Final = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")


class Claims(NamedTuple):
    """The usable part of what a sender states about its message; None where it says nothing. ``expires_at``: ms, 0 = never.

    ``extra``: members of the metadata for its receivers alone, as ``encode_extras`` writes them.

    ``source`` and ``receivedAt`` are not here: who sent it, and when it came, the gateway knows better.
    """

    message_id: str | None = None
    time: Reading | None = None
    correlation_id: str | None = None
    message_type: str | None = None
    content_type: str | None = None
    expires_at: int = 0
    traceparent: str | None = None
    quality: str | None = None
    extra: bytes = b""


NOTHING_CLAIMED: Final = Claims()


def read_claims(metadata: object, topic: str) -> Claims:
    """Check the metadata of an envelope that was sent to ``topic``.

    Raises MessageRefused: schema_violation, topic_mismatch, timestamp_invalid or unknown_codec.
    """
    if not isinstance(metadata, dict):
        raise schema_violation("metadata must be an object")
    if not metadata.keys() <= WIRE_NAMES.keys():
        unknown = min(metadata.keys() - WIRE_NAMES.keys())
        raise schema_violation(f"metadata has the unknown key {unknown[:40]!a}: put your own keys into the payload")
    stated = _text(metadata, "topic")
    if stated is not None and stated != topic:
        raise MessageRefused(
            f"metadata.topic is {stated[:80]!a}, but the message was sent to {topic!a}: make them equal",
            code="topic_mismatch",
        )
    message_type = _text(metadata, "messageType")
    if message_type is not None and message_type not in MESSAGE_TYPES:
        raise schema_violation(f"metadata.messageType must be one of {', '.join(MESSAGE_TYPES)}")
    version = _text(metadata, "version")
    if version is not None and version not in VERSIONS:
        raise schema_violation('metadata.version must be "1.0"')
    content_type = _text(metadata, "contentType")
    if content_type is not None:
        decoder_of(content_type)
    traceparent = _text(metadata, "traceparent")
    if traceparent is not None and not is_traceparent(traceparent):
        raise schema_violation("metadata.traceparent must follow W3C Trace Context")
    quality = _text(metadata, "quality")
    if quality is not None and _QUALITY.match(quality) is None:
        raise schema_violation("metadata.quality must be one lower-case word, such as good or sensor_error")
    _text(metadata, "source")
    expires = _time(metadata, "expiresAt")
    return Claims(
        check_id(_text(metadata, "messageId"), "metadata.messageId"),
        _time(metadata, "timestamp"),
        check_id(_text(metadata, "correlationId"), "metadata.correlationId"),
        message_type,
        content_type,
        0 if expires is None else max(expires.time, 1),
        traceparent,
        quality,
        _extra(metadata),
    )


def joined(claims: Claims, given: Claims) -> Claims:
    """What an envelope states, completed by what its transport says."""
    if given == NOTHING_CLAIMED:
        return claims
    expiries = [time for time in (claims.expires_at, given.expires_at) if time]
    return claims._replace(
        message_id=claims.message_id or given.message_id,
        correlation_id=claims.correlation_id or given.correlation_id,
        content_type=claims.content_type or given.content_type,
        traceparent=claims.traceparent or given.traceparent,
        extra=claims.extra or given.extra,
        expires_at=min(expiries, default=0),
    )


def stated_id(metadata: object) -> str | None:
    """The message id of an envelope that may be wrong otherwise; None when there is no proper one."""
    found = metadata.get("messageId") if isinstance(metadata, dict) else None
    return found if isinstance(found, str) and is_message_id(found) else None


def is_traceparent(text: str) -> bool:
    """Tell whether the text has the form of W3C Trace Context's ``traceparent``."""
    return _TRACEPARENT.match(text) is not None


def check_id(text: str | None, name: str) -> str | None:
    """Let a UUID in canonical form, or None, pass. Raises MessageRefused (schema_violation)."""
    if text is None or is_message_id(text):
        return text
    raise schema_violation(f"{name} must be a UUID in lower case with hyphens, or left out")


def schema_violation(why: str) -> MessageRefused:
    """The error for an envelope that breaks its schema."""
    return MessageRefused(f"the envelope does not fit its schema: {why}", code="schema_violation")


def _extra(metadata: dict[str, object]) -> bytes:
    if metadata.keys().isdisjoint(EXTRAS):
        return b""
    try:
        return encode_extras(read_extras(metadata))
    except ValueError as error:
        raise schema_violation(f"metadata.{error}") from error


def _text(metadata: dict[str, object], key: str) -> str | None:
    value = metadata.get(key)
    if value is None or isinstance(value, str):
        return value
    raise schema_violation(f"metadata.{key} must be a text")


def _time(metadata: dict[str, object], key: str) -> Reading | None:
    value = metadata.get(key)
    if value is None:
        return None
    reading = read_time(value)
    if reading is None:
        raise MessageRefused(
            f"metadata.{key} is no time: send ISO-8601 in UTC such as 2026-01-01T00:00:00.000Z, or leave it out",
            code="timestamp_invalid",
        )
    return reading
