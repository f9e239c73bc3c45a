"""Dead letters: messages that could not be taken, each with its reason, kept until somebody decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REASONS: Final = frozenset(
    (
        "payload_not_json", "payload_not_utf8", "unknown_codec", "codec_error", "number_not_finite",
        "number_too_long", "int_out_of_range", "type_mismatch", "json_too_deep", "json_duplicate_key",
        "key_not_allowed", "schema_violation", "timestamp_invalid", "topic_invalid", "topic_too_long",
        "payload_too_large", "duplicate", "replayed", "expired", "acl_denied", "stale_session", "topic_mismatch",
        "invalid_string", "poison", "version_conflict", "unknown_command",
    )
)  # fmt: skip
STAGES: Final = ("ingress", "queue", "processor")
MAX_RAW_BYTES: Final = 4 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One refused message. ``raw`` holds its first 4 KiB; ``sha256`` and ``size`` are of the whole payload.

    ``received_at``: ms since 1970. ``detail``: what exactly was wrong, and what the sender can do.
    """

    reason: str
    stage: str
    topic: str
    source: str
    received_at: int
    sha256: str
    size: int
    raw: bytes
    attempts: int
    detail: str
    message_id: str | None = None
