"""What a sender may add to a message for its receivers, and nobody here reads: response topic, own properties."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from ..entities.errors import MessageRefused
from ..entities.topic import MAX_TOPIC_BYTES

MAX_PROPERTIES: Final = 32
MAX_PROPERTY_BYTES: Final = 4 * 1024
MAX_CORRELATION_BYTES: Final = 512
KEYS: Final = ("responseTopic", "correlationData", "properties")


class Extras(NamedTuple):
    """``properties``: (name, text) pairs in the sender's order; a name may come twice (MQTT 5 section 3.3.2.3.7)."""

    response_topic: str | None = None
    correlation_data: bytes | None = None
    properties: tuple[tuple[str, str], ...] = ()


NO_EXTRAS: Final = Extras()


def encode_extras(extras: Extras) -> bytes:
    """The extras as members of the metadata, with a comma in front. Raises MessageRefused (payload_too_large)."""
    topic, correlation, pairs = extras
    size = sum(len(name.encode()) + len(text.encode()) for name, text in pairs)
    if len(pairs) > MAX_PROPERTIES or size > MAX_PROPERTY_BYTES:
        raise _too_large(f"{len(pairs)} properties of {size} bytes, more than {MAX_PROPERTIES} of {MAX_PROPERTY_BYTES}")
    if topic is not None and len(topic.encode()) > MAX_TOPIC_BYTES:
        raise _too_large(f"a response topic of more than {MAX_TOPIC_BYTES} bytes")
    if correlation is not None and len(correlation) > MAX_CORRELATION_BYTES:
        raise _too_large(f"correlation data of more than {MAX_CORRELATION_BYTES} bytes")
    parts: list[bytes] = []
    if topic is not None:
        parts.append(b',"responseTopic":' + orjson.dumps(topic))
    if correlation is not None:
        parts.append(b',"correlationData":"%b"' % b64encode(correlation))
    if pairs:
        parts.append(b',"properties":' + orjson.dumps(pairs))
    return b"".join(parts)


def read_extras(metadata: Mapping[str, Any]) -> Extras:
    """The extras of an envelope's metadata. Raises ValueError for what is none."""
    topic, correlation = metadata.get("responseTopic"), metadata.get("correlationData")
    pairs = metadata.get("properties") or []
    if not isinstance(topic, str | None):
        raise ValueError("responseTopic must be a text")
    if not isinstance(correlation, str | None):
        raise ValueError("correlationData must be a text in base64")
    if not isinstance(pairs, list) or not all(_is_pair(each) for each in pairs):
        raise ValueError("properties must be a list of [name, text]")
    try:
        data = b64decode(correlation, validate=True) if correlation is not None else None
    except NotBase64 as error:
        raise ValueError("correlationData must be a text in base64") from error
    return Extras(topic, data, tuple((name, text) for name, text in pairs))


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(each, str) for each in value)


def _too_large(what: str) -> MessageRefused:
    return MessageRefused(f"the message has {what}: put it into the payload", code="payload_too_large")
