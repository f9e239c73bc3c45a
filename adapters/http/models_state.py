"""Answers about the ledger, one message's way, and the gateway's state."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from .models import MESSAGE_ID, NOON, TOPIC, Model
from .models_admin import DeadLetterBody


class ChannelBody(Model):
    """What a channel accepted, and what of it is still in the log."""

    channel: str
    partitions: int
    accepted: int
    retained: int

    example: ClassVar[dict[str, Any]] = {
        "channel": "telemetry",
        "partitions": 4,
        "accepted": 120_000,
        "retained": 90_000,
    }


class ReaderBody(Model):
    """accepted = applied + superseded + expired + dead_lettered + lost + pending, so imbalance is 0."""

    reader: str
    kind: str = Field(description="reader or group")
    channel: str
    accepted: int
    applied: int
    superseded: int
    expired: int
    dead_lettered: int
    lost: int
    pending: int
    imbalance: int

    example: ClassVar[dict[str, Any]] = {
        "reader": "iotsphere/last-values", "kind": "reader", "channel": "telemetry", "accepted": 120_000,
        "applied": 119_990, "superseded": 0, "expired": 0, "dead_lettered": 0, "lost": 0, "pending": 10, "imbalance": 0,
    }  # fmt: skip


class LedgerBody(Model):
    """The accounts of the caller's domain. ``dead_letters``: how many per reason."""

    domain: str
    imbalance: int
    channels: list[ChannelBody]
    readers: list[ReaderBody]
    dead_letters: dict[str, int]

    example: ClassVar[dict[str, Any]] = {
        "domain": "iotsphere", "imbalance": 0, "channels": [ChannelBody.example], "readers": [ReaderBody.example],
        "dead_letters": {"json_duplicate_key": 1},
    }  # fmt: skip


class PlaceBody(Model):
    """Where a message lies in the log."""

    topic: str
    position: str
    timestamp: str
    appended_at: str
    expires_at: str | None

    example: ClassVar[dict[str, Any]] = {
        "topic": TOPIC, "position": "telemetry/2/1767225600-41", "timestamp": NOON, "appended_at": NOON,
        "expires_at": None,
    }  # fmt: skip


class PassageBody(Model):
    """A registered reader of the message's partition, and whether it is past the message."""

    reader: str
    passed: bool

    example: ClassVar[dict[str, Any]] = {"reader": "iotsphere/last-values", "passed": True}


class TraceBody(Model):
    """What is known of one message."""

    message_id: str
    place: PlaceBody | None
    dead_letter: DeadLetterBody | None
    readers: list[PassageBody]

    example: ClassVar[dict[str, Any]] = {
        "message_id": MESSAGE_ID,
        "place": PlaceBody.example,
        "dead_letter": None,
        "readers": [PassageBody.example],
    }


class StatusBody(Model):
    """That the gateway lives, or can take messages."""

    status: Literal["alive", "ready"]

    example: ClassVar[dict[str, Any]] = {"status": "alive"}
