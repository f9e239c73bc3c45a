"""What requests to the HTTP API may hold, and what its answers look like; each model with an example for the docs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_FILTERS: Final = 100
MAX_PAGE: Final = 1_000
MAX_TEXT: Final = 512

_ID: Final = "0197f3c2-6d1e-7a52-9b0c-3f1f4d2e8a01"
_LETTER_ID: Final = "0197f3c2-70aa-7f00-8c11-5b6a7c8d9e02"
_NOON: Final = "2026-01-31T12:00:00.000Z"
_TOPIC: Final = "iotsphere/devices/pump-7/telemetry"

Text = Annotated[str, Field(max_length=MAX_TEXT)]


class _Model(BaseModel):
    """``example`` is shown in the OpenAPI document and checked by a test."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    example: ClassVar[dict[str, Any]]


class Failure(_Model):
    """Why a request was refused. ``retry``: whether the same request can succeed later."""

    code: str
    message: str
    retry: bool

    example = {
        "code": "not_found",
        "message": "nothing is here: it does not exist, or this credential does not reach it",
        "retry": False,
    }


class FailureBody(_Model):
    """The body of every answer that is no success."""

    error: Failure

    example = {"error": Failure.example}


class _Request(_Model):
    """A body; nothing in it is taken for another type than it has."""

    model_config = ConfigDict(strict=True)


# -- messages ---------------------------------------------------------------------------------------------------------


class PlainMessage(_Model):
    """A payload for a topic. ``payload`` is any JSON; ``expires_at`` ISO-8601."""

    topic: Text
    payload: Any
    message_id: str | None = Field(default=None, description="A UUID; sending it again does not publish it again")
    correlation_id: str | None = Field(default=None, description="A UUID")
    expires_at: str | None = None
    retain: bool = False

    example = {"topic": _TOPIC, "payload": {"temperature": 21.5}, "message_id": _ID}


class PublishBody(_Model):
    """One to 1,000 messages; each may also be a whole envelope (``metadata`` and ``payload``)."""

    messages: list[PlainMessage] = Field(min_length=1, max_length=MAX_PAGE)

    example = {"messages": [PlainMessage.example]}


class Published(_Model):
    """What became of one message: its place in the log, or the error and the id of its dead letter."""

    message_id: str | None = None
    position: str | None = Field(default=None, description="channel/partition/epoch-offset")
    duplicate: bool = Field(default=False, description="It was in the log already")
    dead_letter: str | None = None
    error: Failure | None = None

    example = {"message_id": _ID, "position": "telemetry/2/1767225600-41", "duplicate": False}


class PublishedBody(_Model):
    """One result for each message, in their order. 200 only when all of them are in the log."""

    results: list[Published]

    example = {"results": [Published.example]}


class RefusedBody(_Model):
    """At least one message was refused and is now a dead letter; the others are in the log."""

    error: Failure
    results: list[Published]

    example = {
        "error": {
            "code": "json_duplicate_key",
            "message": "the key 't' stands twice in one object, again at byte 8: send each key once",
            "retry": False,
        },
        "results": [
            {
                "dead_letter": _LETTER_ID,
                "error": {
                    "code": "json_duplicate_key",
                    "message": "the key 't' stands twice in one object, again at byte 8: send each key once",
                    "retry": False,
                },
            }
        ],
    }


class GapBody(_Model):
    """Messages of one partition that can no longer be had: the offsets first to last."""

    partition: str
    first: int
    last: int
    count: int
    reason: Literal["retention", "corrupt", "rebuilt"]

    example = {"partition": "telemetry/2", "first": 1, "last": 40, "count": 40, "reason": "retention"}


class HistoryBody(_Model):
    """Envelopes, oldest first. ``cursor`` goes on right after them, here or over WebSocket."""

    messages: list[dict[str, Any]]
    cursor: str
    gaps: list[GapBody]
    more: bool = Field(description="The log holds more entries, though perhaps none that is selected")

    example = {
        "messages": [
            {
                "metadata": {
                    "messageId": _ID, "timestamp": _NOON, "topic": _TOPIC, "source": "pump-7", "correlationId": None,
                    "messageType": "event", "version": "1.0",
                },
                "payload": {"temperature": 21.5},
            }
        ],
        "cursor": "dGhlIGN1cnNvcg",
        "gaps": [],
        "more": False,
    }  # fmt: skip


class LatestBody(_Model):
    """The last envelope of each topic, in the order of their topics. ``after``: ask on with it; null at the end."""

    messages: list[dict[str, Any]]
    after: str | None

    example = {"messages": HistoryBody.example["messages"], "after": None}


class HistoryQuery(_Model):
    """``from`` is ``earliest`` or a time (ISO-8601, or ms since 1970); a ``cursor`` wins over it."""

    filter: list[Text] = Field(min_length=1, max_length=MAX_FILTERS, examples=["iotsphere/devices/+/telemetry/#"])
    cursor: str | None = Field(default=None, max_length=8_192)
    start: str = Field(default="earliest", alias="from", max_length=64)
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)


class LatestQuery(_Model):
    """Which topics' last values."""

    filter: list[Text] = Field(min_length=1, max_length=MAX_FILTERS, examples=["iotsphere/devices/+/telemetry/#"])
    after: Text = ""
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)


# -- dead letters -----------------------------------------------------------------------------------------------------


class DeadLetterBody(_Model):
    """A refused message. ``raw``: its first 4 KiB in base64, only where one letter is asked for."""

    id: str
    reason: str
    stage: str
    topic: str
    source: str
    received_at: str
    size: int
    sha256: str
    attempts: int
    detail: str
    message_id: str | None
    state: str = Field(description="open, redriven or discarded")
    decided_at: str | None
    redriven_as: str | None
    complete: bool = Field(description="All of it was kept, so it can be redriven")
    raw: str | None = None

    example = {
        "id": _LETTER_ID, "reason": "json_duplicate_key", "stage": "ingress", "topic": _TOPIC, "source": "pump-7",
        "received_at": _NOON, "size": 15, "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "attempts": 1, "detail": "the key 't' stands twice in one object", "message_id": None, "state": "open",
        "decided_at": None, "redriven_as": None, "complete": True, "raw": "eyJ0IjoxLCJ0IjoyfQ==",
    }  # fmt: skip


class DeadLettersBody(_Model):
    """Dead letters, newest first. ``before``: ask on with it; null at the end."""

    dead_letters: list[DeadLetterBody]
    before: int | None

    example = {"dead_letters": [{**DeadLetterBody.example, "raw": None}], "before": None}


class DeadLettersQuery(_Model):
    """Which dead letters; ``state=any`` for all of them."""

    reason: str | None = Field(default=None, max_length=64)
    device: str | None = Field(default=None, max_length=64)
    state: Literal["open", "redriven", "discarded", "any"] = "open"
    before: int | None = Field(default=None, ge=0, le=2**63 - 1)
    limit: int = Field(default=50, ge=1, le=MAX_PAGE)


class RedrivenBody(_Model):
    """Where the message went. ``duplicate``: it was in the log already."""

    message_id: str
    position: str
    duplicate: bool

    example = {"message_id": _ID, "position": "telemetry/2/1767225600-41", "duplicate": False}


# -- devices and tokens -----------------------------------------------------------------------------------------------


class DeviceRequest(_Request):
    """A device to admit."""

    device_id: Text

    example = {"device_id": "pump-7"}


class CredentialBody(_Model):
    """What the device logs in with. The password is shown this once."""

    device_id: str
    username: str
    password: str

    example = {"device_id": "pump-7", "username": "pump-7", "password": "kq2mX0…"}


class DeviceBody(_Model):
    """A registered device. ``since``: when its present secret was made."""

    device_id: str
    registered_at: str
    since: str

    example = {"device_id": "pump-7", "registered_at": _NOON, "since": _NOON}


class DevicesBody(_Model):
    """Devices in the order of their ids. ``after``: ask on with it; null at the end."""

    devices: list[DeviceBody]
    after: str | None

    example = {"devices": [DeviceBody.example], "after": None}


class DevicesQuery(_Model):
    """Which page of the devices."""

    after: str = Field(default="", max_length=64)
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)


class TokenRequest(_Request):
    """A token to issue. ``lifetime`` in seconds. A device without grants gets those of every device."""

    subject: Text
    grants: list[Text] = Field(default_factory=list, max_length=256)
    roles: list[Annotated[str, Field(max_length=32)]] = Field(default_factory=list, max_length=32)
    lifetime: int = Field(default=24 * 3600, ge=1, le=400 * 24 * 3600)

    example = {"subject": "user:ann", "grants": ["subscribe:iotsphere/devices/+/telemetry/#"], "lifetime": 86_400}


class TokenBody(_Model):
    """A token. It is shown this once; ``token_id`` revokes it."""

    token: str
    token_id: str
    subject: str
    expires_at: str

    example = {"token": "eyJ0eXAi…", "token_id": "Zk3v0b1c2d3e4f5g6h7i8j", "subject": "user:ann", "expires_at": _NOON}


class RevokeQuery(_Model):
    """Whose tokens shall count no longer."""

    subject: Text = Field(examples=["user:ann"])


# -- ledger, trace, state ---------------------------------------------------------------------------------------------


class ChannelBody(_Model):
    """What a channel accepted, and what of it is still in the log."""

    channel: str
    partitions: int
    accepted: int
    retained: int

    example = {"channel": "telemetry", "partitions": 4, "accepted": 120_000, "retained": 90_000}


class ReaderBody(_Model):
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

    example = {
        "reader": "iotsphere/last-values", "kind": "reader", "channel": "telemetry", "accepted": 120_000,
        "applied": 119_990, "superseded": 0, "expired": 0, "dead_lettered": 0, "lost": 0, "pending": 10, "imbalance": 0,
    }  # fmt: skip


class LedgerBody(_Model):
    """The accounts of the caller's domain. ``dead_letters``: how many per reason."""

    domain: str
    imbalance: int
    channels: list[ChannelBody]
    readers: list[ReaderBody]
    dead_letters: dict[str, int]

    example = {
        "domain": "iotsphere", "imbalance": 0, "channels": [ChannelBody.example], "readers": [ReaderBody.example],
        "dead_letters": {"json_duplicate_key": 1},
    }  # fmt: skip


class PlaceBody(_Model):
    """Where a message lies in the log."""

    topic: str
    position: str
    timestamp: str
    appended_at: str
    expires_at: str | None

    example = {
        "topic": _TOPIC, "position": "telemetry/2/1767225600-41", "timestamp": _NOON, "appended_at": _NOON,
        "expires_at": None,
    }  # fmt: skip


class PassageBody(_Model):
    """A registered reader of the message's partition, and whether it is past the message."""

    reader: str
    passed: bool

    example = {"reader": "iotsphere/last-values", "passed": True}


class TraceBody(_Model):
    """What is known of one message."""

    message_id: str
    place: PlaceBody | None
    dead_letter: DeadLetterBody | None
    readers: list[PassageBody]

    example = {"message_id": _ID, "place": PlaceBody.example, "dead_letter": None, "readers": [PassageBody.example]}


class StatusBody(_Model):
    """That the gateway lives, or can take messages."""

    status: Literal["alive", "ready"]

    example = {"status": "alive"}
