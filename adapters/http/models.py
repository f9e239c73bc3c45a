"""Requests and answers about messages, and what all models of the HTTP API share: each has an example for the docs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_FILTERS: Final = 100
MAX_PAGE: Final = 1_000
MAX_TEXT: Final = 512

MESSAGE_ID: Final = "0197f3c2-6d1e-7a52-9b0c-3f1f4d2e8a01"
LETTER_ID: Final = "0197f3c2-70aa-7f00-8c11-5b6a7c8d9e02"
NOON: Final = "2026-01-31T12:00:00.000Z"
TOPIC: Final = "iotsphere/devices/pump-7/telemetry"

Text = Annotated[str, Field(max_length=MAX_TEXT)]


class Model(BaseModel):
    """``example`` is shown in the OpenAPI document and checked by a test."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    example: ClassVar[dict[str, Any]]


class Failure(Model):
    """Why a request was refused. ``retry``: whether the same request can succeed later."""

    code: str
    message: str
    retry: bool

    example: ClassVar[dict[str, Any]] = {
        "code": "not_found",
        "message": "nothing is here: it does not exist, or this credential does not reach it",
        "retry": False,
    }


class FailureBody(Model):
    """The body of every answer that is no success."""

    error: Failure

    example: ClassVar[dict[str, Any]] = {"error": Failure.example}


class Request(Model):
    """A body; nothing in it is taken for another type than it has."""

    model_config = ConfigDict(strict=True)


class PlainMessage(Model):
    """A payload for a topic. ``payload`` is any JSON; ``expires_at`` ISO-8601."""

    topic: Text
    payload: Any
    message_id: str | None = Field(default=None, description="A UUID; sending it again does not publish it again")
    correlation_id: str | None = Field(default=None, description="A UUID")
    expires_at: str | None = None
    retain: bool = False

    example: ClassVar[dict[str, Any]] = {"topic": TOPIC, "payload": {"temperature": 21.5}, "message_id": MESSAGE_ID}


class PublishBody(Model):
    """One to 1,000 messages; each may also be a whole envelope (``metadata`` and ``payload``)."""

    messages: list[PlainMessage] = Field(min_length=1, max_length=MAX_PAGE)

    example: ClassVar[dict[str, Any]] = {"messages": [PlainMessage.example]}


class Published(Model):
    """What became of one message: its place in the log, or the error and the id of its dead letter."""

    message_id: str | None = None
    position: str | None = Field(default=None, description="channel/partition/epoch-offset")
    duplicate: bool = Field(default=False, description="It was in the log already")
    dead_letter: str | None = None
    error: Failure | None = None

    example: ClassVar[dict[str, Any]] = {
        "message_id": MESSAGE_ID,
        "position": "telemetry/2/1767225600-41",
        "duplicate": False,
    }


class PublishedBody(Model):
    """One result for each message, in their order. 200 only when all of them are in the log."""

    results: list[Published]

    example: ClassVar[dict[str, Any]] = {"results": [Published.example]}


class RefusedBody(Model):
    """At least one message was refused and is now a dead letter; the others are in the log."""

    error: Failure
    results: list[Published]

    example: ClassVar[dict[str, Any]] = {
        "error": {
            "code": "json_duplicate_key",
            "message": "the key 't' stands twice in one object, again at byte 8: send each key once",
            "retry": False,
        },
        "results": [
            {
                "dead_letter": LETTER_ID,
                "error": {
                    "code": "json_duplicate_key",
                    "message": "the key 't' stands twice in one object, again at byte 8: send each key once",
                    "retry": False,
                },
            }
        ],
    }


class GapBody(Model):
    """Messages of one partition that can no longer be had: the offsets first to last."""

    partition: str
    first: int
    last: int
    count: int
    reason: Literal["retention", "corrupt", "rebuilt"]

    example: ClassVar[dict[str, Any]] = {
        "partition": "telemetry/2",
        "first": 1,
        "last": 40,
        "count": 40,
        "reason": "retention",
    }


class HistoryBody(Model):
    """Envelopes, oldest first. ``cursor`` goes on right after them, here or over WebSocket."""

    messages: list[dict[str, Any]]
    cursor: str
    gaps: list[GapBody]
    more: bool = Field(description="The log holds more entries, though perhaps none that is selected")

    example: ClassVar[dict[str, Any]] = {
        "messages": [
            {
                "metadata": {
                    "messageId": MESSAGE_ID, "timestamp": NOON, "topic": TOPIC, "source": "pump-7", "correlationId": None,
                    "messageType": "event", "version": "1.0",
                },
                "payload": {"temperature": 21.5},
            }
        ],
        "cursor": "dGhlIGN1cnNvcg",
        "gaps": [],
        "more": False,
    }  # fmt: skip


class LatestBody(Model):
    """The last envelope of each topic, in the order of their topics. ``after``: ask on with it; null at the end."""

    messages: list[dict[str, Any]]
    after: str | None

    example: ClassVar[dict[str, Any]] = {"messages": HistoryBody.example["messages"], "after": None}


class HistoryQuery(Model):
    """``from`` is ``earliest`` or a time (ISO-8601, or ms since 1970); a ``cursor`` wins over it."""

    filter: list[Text] = Field(min_length=1, max_length=MAX_FILTERS, examples=["iotsphere/devices/+/telemetry/#"])
    cursor: str | None = Field(default=None, max_length=8_192)
    start: str = Field(default="earliest", alias="from", max_length=64)
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)


class LatestQuery(Model):
    """Which topics' last values."""

    filter: list[Text] = Field(min_length=1, max_length=MAX_FILTERS, examples=["iotsphere/devices/+/telemetry/#"])
    after: Text = ""
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)
