"""What the properties of an MQTT 5 PUBLISH state about its message, in the words of the edge."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from ...entities.errors import MessageRefused
from ..claims import is_traceparent
from ..extras import NO_EXTRAS, Extras, encode_extras
from .properties import NONE, Properties

MESSAGE_ID: Final = "messageId"
TRACEPARENT: Final = "traceparent"


class Stated(NamedTuple):
    """None, and 0 for ``expires_at`` (ms since 1970), where nothing is stated."""

    message_id: str | None
    expires_at: int
    correlation_id: str | None
    content_type: str | None
    traceparent: str | None = None
    extra: bytes = b""


NOTHING: Final = Stated(None, 0, None, None)


def stated(properties: Properties, now: int) -> Stated:
    """Read what has a place of its own in the metadata; all else travels along. Raises MessageRefused when it is too much.

    The user properties ``messageId`` and ``traceparent`` have one, and Correlation Data that is a UUID.
    """
    if properties is NONE:
        return NOTHING
    expiry = properties.message_expiry_interval
    correlation = properties.correlation_data
    correlation_id = _uuid(correlation)
    trace = properties.user_property(TRACEPARENT)
    trace = trace if trace is not None and is_traceparent(trace) else None
    own = {MESSAGE_ID} if trace is None else {MESSAGE_ID, TRACEPARENT}
    pairs = tuple(pair for pair in properties.user_properties if pair[0] not in own)
    extras = Extras(properties.response_topic, correlation if correlation_id is None else None, pairs)
    return Stated(
        properties.user_property(MESSAGE_ID),
        0 if expiry is None else now + expiry * 1000,
        correlation_id,
        properties.content_type,
        trace,
        encode_extras(extras) if extras != NO_EXTRAS else b"",
    )


def check_format(properties: Properties, payload: bytes) -> None:
    """Raise MessageRefused (payload_not_utf8) for a payload that is not the UTF-8 that it claims to be."""
    if properties.payload_format_indicator:
        try:
            payload.decode()
        except UnicodeDecodeError as error:
            raise MessageRefused(
                "the payload is not the UTF-8 that its format indicator claims: leave the indicator out",
                code="payload_not_utf8",
            ) from error


def _uuid(data: bytes | None) -> str | None:
    """Correlation data as a UUID, where it is one: its text, or its 16 bytes."""
    if data is None or len(data) not in (16, 36):
        return None
    try:
        return str(UUID(bytes=data) if len(data) == 16 else UUID(data.decode()))
    except ValueError:
        return None
