"""What the properties of an MQTT 5 PUBLISH state about its message, in the words of the edge."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from .properties import Properties

MESSAGE_ID: Final = "messageId"


class Stated(NamedTuple):
    """None, and 0 for ``expires_at`` (ms since 1970), where nothing is stated."""

    message_id: str | None
    expires_at: int
    correlation_id: str | None
    content_type: str | None


def stated(properties: Properties, now: int) -> Stated:
    """Read the user property ``messageId``, the expiry interval, a correlation that is a UUID, and the content type."""
    expiry = properties.message_expiry_interval
    return Stated(
        properties.user_property(MESSAGE_ID),
        0 if expiry is None else now + expiry * 1000,
        _uuid(properties.correlation_data),
        properties.content_type,
    )


def _uuid(data: bytes | None) -> str | None:
    """Correlation data as a UUID, where it is one: its text, or its 16 bytes."""
    if data is None or len(data) not in (16, 36):
        return None
    try:
        return str(UUID(bytes=data) if len(data) == 16 else UUID(data.decode()))
    except ValueError:
        return None
