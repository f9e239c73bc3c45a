"""Requests and answers about dead letters, devices and tokens."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from .models import LETTER_ID, MAX_PAGE, MESSAGE_ID, NOON, TOPIC, Model, Request, Text


class DeadLetterBody(Model):
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

    example: ClassVar[dict[str, Any]] = {
        "id": LETTER_ID, "reason": "json_duplicate_key", "stage": "ingress", "topic": TOPIC, "source": "pump-7",
        "received_at": NOON, "size": 15, "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "attempts": 1, "detail": "the key 't' stands twice in one object", "message_id": None, "state": "open",
        "decided_at": None, "redriven_as": None, "complete": True, "raw": "eyJ0IjoxLCJ0IjoyfQ==",
    }  # fmt: skip


class DeadLettersBody(Model):
    """Dead letters, newest first. ``before``: ask on with it; null at the end."""

    dead_letters: list[DeadLetterBody]
    before: int | None

    example: ClassVar[dict[str, Any]] = {"dead_letters": [{**DeadLetterBody.example, "raw": None}], "before": None}


class DeadLettersQuery(Model):
    """Which dead letters; ``state=any`` for all of them."""

    reason: str | None = Field(default=None, max_length=64)
    device: str | None = Field(default=None, max_length=64)
    state: Literal["open", "redriven", "discarded", "any"] = "open"
    before: int | None = Field(default=None, ge=0, le=2**63 - 1)
    limit: int = Field(default=50, ge=1, le=MAX_PAGE)


class RedrivenBody(Model):
    """Where the message went. ``duplicate``: it was in the log already."""

    message_id: str
    position: str
    duplicate: bool

    example: ClassVar[dict[str, Any]] = {
        "message_id": MESSAGE_ID,
        "position": "telemetry/2/1767225600-41",
        "duplicate": False,
    }


# -- devices and tokens -----------------------------------------------------------------------------------------------


class DeviceRequest(Request):
    """A device to admit."""

    device_id: Text
    labels: dict[str, str] = Field(default_factory=dict, max_length=50)

    example: ClassVar[dict[str, Any]] = {"device_id": "pump-7", "labels": {"site": "north"}}


class CredentialBody(Model):
    """What the device logs in with. The password is shown this once."""

    device_id: str
    username: str
    password: str

    example: ClassVar[dict[str, Any]] = {"device_id": "pump-7", "username": "pump-7", "password": "kq2mX0…"}


class DeviceBody(Model):
    """A registered device. ``since``: when its present secret was made."""

    device_id: str
    registered_at: str
    since: str

    example: ClassVar[dict[str, Any]] = {"device_id": "pump-7", "registered_at": NOON, "since": NOON}


class DevicesBody(Model):
    """Devices in the order of their ids. ``after``: ask on with it; null at the end."""

    devices: list[DeviceBody]
    after: str | None

    example: ClassVar[dict[str, Any]] = {"devices": [DeviceBody.example], "after": None}


class DevicesQuery(Model):
    """Which page of the devices."""

    after: str = Field(default="", max_length=64)
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)


class TokenRequest(Request):
    """A token to issue. ``lifetime`` in seconds. A device without grants gets those of every device."""

    subject: Text
    grants: list[Text] = Field(default_factory=list, max_length=256)
    roles: list[Annotated[str, Field(max_length=32)]] = Field(default_factory=list, max_length=32)
    lifetime: int = Field(default=24 * 3600, ge=1, le=400 * 24 * 3600)

    example: ClassVar[dict[str, Any]] = {
        "subject": "user:ann",
        "grants": ["subscribe:iotsphere/devices/+/telemetry/#"],
        "lifetime": 86_400,
    }


class TokenBody(Model):
    """A token. It is shown this once; ``token_id`` revokes it."""

    token: str
    token_id: str
    subject: str
    expires_at: str

    example: ClassVar[dict[str, Any]] = {
        "token": "eyJ0eXAi…",
        "token_id": "Zk3v0b1c2d3e4f5g6h7i8j",
        "subject": "user:ann",
        "expires_at": NOON,
    }


class RevokeQuery(Model):
    """Whose tokens shall count no longer."""

    subject: Text = Field(examples=["user:ann"])
