"""What an MQTT 5 subscriber gets as properties: what the metadata says, where MQTT has a word for it as well."""

from __future__ import annotations

from typing import Any, Final

import orjson

from ...entities.message import Record
from ..extras import read_extras
from .properties import NONE, Properties

_HEAD: Final = len(b'{"metadata":')
_SEAM: Final = b'},"payload":'
_PLAIN: Final = b'"correlationId":null,"messageType":"event","version":"1.0"},"payload":'
_REQUEST: Final = "/commands/request"
_RESPONSE: Final = "/commands/response"


def handed_on(record: Record) -> Properties:
    """Content Type, Correlation Data, Response Topic, and the sender's own properties.

    A command asks for its response under its message id, so a device can answer by MQTT's own means (section 4.10).
    """
    body = record.body
    if _PLAIN in body or not body:
        return NONE
    try:
        metadata: dict[str, Any] = orjson.loads(body[_HEAD : body.index(_SEAM) + 1])
    except (ValueError, orjson.JSONDecodeError):
        return NONE  # a guest's message, which is no envelope
    extras = read_extras(metadata)
    topic, correlation = extras.response_topic, extras.correlation_data
    pairs = extras.properties
    if metadata.get("correlationId") and correlation is None:
        correlation = metadata["correlationId"].encode()
    if metadata.get("traceparent"):
        pairs = (*pairs, ("traceparent", metadata["traceparent"]))
    if record.topic.endswith(_REQUEST):
        topic = record.topic.removesuffix(_REQUEST) + _RESPONSE
        correlation = record.message_id.encode()
    found = Properties(
        content_type=metadata.get("contentType"),
        response_topic=topic,
        correlation_data=correlation,
        user_properties=pairs,
    )
    return NONE if found == NONE else found
