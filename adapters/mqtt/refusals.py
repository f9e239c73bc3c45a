"""Our errors in MQTT's words: which reason code a client sees for what was refused."""

from __future__ import annotations

from typing import Final

from ...entities.dead_letter import REASONS
from ...entities.errors import IotSphereError
from .reasons import Reason

_DENIED: Final = frozenset(("forbidden", "unauthenticated", "unknown_domain", "not_found"))
_PUBLISH: Final = {
    **dict.fromkeys(_DENIED, Reason.NOT_AUTHORIZED),
    "topic_invalid": Reason.TOPIC_NAME_INVALID,
    "topic_too_long": Reason.TOPIC_NAME_INVALID,
    "topic_mismatch": Reason.TOPIC_NAME_INVALID,
    "payload_too_large": Reason.QUOTA_EXCEEDED,
    "log_full": Reason.QUOTA_EXCEEDED,
    "expired": Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    "duplicate": Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    "replayed": Reason.IMPLEMENTATION_SPECIFIC_ERROR,
}
_CONNECT: Final = {
    **dict.fromkeys(_DENIED, Reason.NOT_AUTHORIZED),
    "unauthenticated": Reason.BAD_USER_NAME_OR_PASSWORD,
    "topic_invalid": Reason.TOPIC_NAME_INVALID,
    "topic_too_long": Reason.TOPIC_NAME_INVALID,
    "rate_limited": Reason.CONNECTION_RATE_EXCEEDED,
    "too_many_connections": Reason.QUOTA_EXCEEDED,
    "shutting_down": Reason.SERVER_UNAVAILABLE,
    "log_unavailable": Reason.SERVER_UNAVAILABLE,
    "log_full": Reason.SERVER_UNAVAILABLE,
    "conflict": Reason.SERVER_BUSY,
    "payload_too_large": Reason.QUOTA_EXCEEDED,  # of a will, as of a publication
    "schema_violation": Reason.PAYLOAD_FORMAT_INVALID,
}


def is_denial(error: IotSphereError) -> bool:
    """Whether the sender's rights are at fault, not its message."""
    return error.code in _DENIED


def publish_reason(error: IotSphereError) -> Reason:
    """The reason of a PUBACK (MQTT 5 section 3.4.2.1): a reason for a dead letter that is not listed is the payload's."""
    other = Reason.PAYLOAD_FORMAT_INVALID if error.code in REASONS else Reason.IMPLEMENTATION_SPECIFIC_ERROR
    return _PUBLISH.get(error.code, other)


def connect_reason(error: IotSphereError) -> Reason:
    """The reason of a CONNACK (MQTT 5 section 3.2.2.2)."""
    return _CONNECT.get(error.code, Reason.UNSPECIFIED_ERROR)
