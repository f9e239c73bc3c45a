"""Dead letters as JSON: what is written to ``{domain}/system/dead-letters``, and read back to be listed."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Final

import orjson

from ..entities.dead_letter import MAX_RAW_BYTES, REASONS, DeadLetter
from ..entities.errors import IotSphereError, MessageRefused
from ..entities.topic import MAX_TOPIC_BYTES
from .timestamps import iso, read_time

MAX_DETAIL_CHARACTERS: Final = 500
# Refusals that are no fault of the payload, and what their dead letter is called. Another domain reads as not allowed.
_RENAMED: Final = {"forbidden": "acl_denied", "unknown_domain": "acl_denied", "unauthenticated": "acl_denied"}


def reason_of(error: IotSphereError) -> str:
    """The dead-letter reason of an error. Raises ValueError for one that is no reason to give a message up."""
    reason = _RENAMED.get(error.code, error.code)
    if reason not in REASONS:
        raise ValueError(f"{error.code} is no reason for a dead letter: keep the message and retry")
    return reason


def describe(
    error: IotSphereError, *, stage: str, topic: str, source: str, payload: bytes, received_at: int, attempts: int = 1
) -> DeadLetter:
    """The dead letter of a message that ``error`` refused. Raises ValueError as ``reason_of`` does."""
    message_id = error.facts.get("message_id")
    return DeadLetter(
        reason=reason_of(error),
        stage=stage,
        topic=_valid(topic)[:MAX_TOPIC_BYTES],
        source=source,
        received_at=received_at,
        sha256=sha256(payload).hexdigest(),
        size=len(payload),
        raw=bytes(payload[:MAX_RAW_BYTES]),
        attempts=attempts,
        detail=printable(error.message),
        message_id=message_id if isinstance(message_id, str) else None,
    )


def encode(letter: DeadLetter) -> bytes:
    """The payload of a dead letter: one JSON object, ``raw`` in base64, ``receivedAt`` as ISO-8601."""
    return orjson.dumps(
        {
            "reason": letter.reason,
            "stage": letter.stage,
            "topic": letter.topic,
            "source": letter.source,
            "receivedAt": iso(letter.received_at),
            "sha256": letter.sha256,
            "size": letter.size,
            "raw": b64encode(letter.raw).decode(),
            "attempts": letter.attempts,
            "detail": letter.detail,
            "messageId": letter.message_id,
        }
    )


def decode(payload: bytes) -> DeadLetter:
    """Read a dead letter back. Raises MessageRefused (schema_violation) for a payload that is none."""
    try:
        fields = orjson.loads(payload)
        received = read_time(fields["receivedAt"])
        if received is None:
            raise _no_letter("receivedAt is no time")
        return DeadLetter(
            reason=str(fields["reason"]),
            stage=str(fields["stage"]),
            topic=str(fields["topic"]),
            source=str(fields["source"]),
            received_at=received.time,
            sha256=str(fields["sha256"]),
            size=int(fields["size"]),
            raw=b64decode(fields["raw"], validate=True),
            attempts=int(fields["attempts"]),
            detail=str(fields["detail"]),
            message_id=fields["messageId"],
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, binascii.Error) as error:
        raise _no_letter(type(error).__name__) from error


def printable(text: str) -> str:
    """The text with all that a terminal or a log would interpret escaped, cut to 500 characters."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:MAX_DETAIL_CHARACTERS])
    return shown[:MAX_DETAIL_CHARACTERS]


def _valid(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _no_letter(why: str) -> MessageRefused:
    return MessageRefused(f"the payload is no dead letter: {why}", code="schema_violation")
