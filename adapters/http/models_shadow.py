"""Requests and answers about shadows, commands, notifications and preferences; members are named as in messages."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from pydantic import ConfigDict, Field

from .models import MAX_PAGE, MESSAGE_ID, NOON, Model, Request, Text

SHADOW: Final[dict[str, Any]] = {
    "device": "pump-7", "name": "", "reported": {"interval": 60}, "desired": {"interval": 5},
    "delta": {"interval": 5}, "version": 12, "sequence": 4, "author": "console", "cause": MESSAGE_ID, "updatedAt": NOON,
    "wishes": {
        "/interval": {"status": "acknowledged", "since": NOON, "version": 12, "author": "console", "sequence": 4}
    },
    "superseded": {}, "marks": {"/interval": {"at": NOON, "version": 3, "author": "pump-7"}},
}  # fmt: skip
COMMAND: Final[dict[str, Any]] = {
    "commandId": MESSAGE_ID, "device": "pump-7", "state": "succeeded", "final": True, "payload": {"action": "open"},
    "caller": "iotsphere/user/ann", "createdAt": NOON, "expiresAt": "2026-02-01T12:00:00.000Z", "timeoutSeconds": 60.0,
    "steps": [{"state": "accepted", "at": NOON}, {"state": "succeeded", "at": NOON}], "result": {"opened": True},
}  # fmt: skip
NOTIFICATION: Final[dict[str, Any]] = {
    "id": MESSAGE_ID, "at": NOON, "source": "alarms", "content": {"title": "Pump 7 is dry"}, "read": False,
}  # fmt: skip


class Facts(Model):
    """An answer whose members are described in docs/reference."""

    model_config = ConfigDict(extra="allow", frozen=True)


class ShadowBody(Facts):
    """A shadow; see docs/reference/shadow.md."""

    example: ClassVar[dict[str, Any]] = SHADOW


class ShadowsBody(Model):
    """All shadows of a device."""

    shadows: list[dict[str, Any]]

    example: ClassVar[dict[str, Any]] = {"shadows": [SHADOW]}


class ShadowQuery(Model):
    """Which shadow, and when: as it is unless ``as_of`` or ``version`` is given. ``name``: empty for the main one."""

    name: Text = ""
    as_of: Text | None = None
    version: int | None = Field(default=None, ge=0)


class VersionsQuery(Model):
    """Which versions of a shadow."""

    name: Text = ""
    after: int = Field(default=0, ge=0)
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)


class ChangeShadowBody(Request):
    """What a shadow is to be: a merge patch (RFC 7396). With ``version``, only if it is still at that one."""

    desired: dict[str, Any]
    version: int | None = Field(default=None, ge=0)
    expires: dict[str, Text] | None = Field(default=None, description="Expiry of single wishes, by JSON Pointer")
    expires_at: Text | None = Field(default=None, description="Expiry of all wishes of this patch")
    message_id: Text | None = Field(default=None, description="A UUID; a repetition with it is answered as before")

    example: ClassVar[dict[str, Any]] = {"desired": {"interval": 5}, "version": 11}

    def request(self) -> dict[str, Any]:
        """The request as it is published on ``shadow/desired``."""
        facts = {"version": self.version, "expires": self.expires, "expiresAt": self.expires_at}
        return {"desired": self.desired, **{name: value for name, value in facts.items() if value is not None}}


class ShadowChangedBody(Facts):
    """What was decided."""

    example: ClassVar[dict[str, Any]] = {"messageId": MESSAGE_ID, "version": 12, "deltaSequence": 4, "changed": True}


class CommandRequestBody(Request):
    """What a device is asked to do. Times in seconds."""

    payload: dict[str, Any]
    message_id: Text | None = Field(default=None, description="A UUID: the command's id")
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=128)
    expires_at: Text | None = Field(default=None, description="When it is not to be handed over any more; 24 hours")
    timeout: float = Field(default=0.0, ge=0, le=86_400, description="What the device has for it; 0 = a minute")
    wait: float = Field(default=0.0, ge=0, le=300, description="How long to wait for its end before answering")

    example: ClassVar[dict[str, Any]] = {"payload": {"action": "open"}, "idempotency_key": "order-4711", "wait": 10}


class CommandBody(Facts):
    """A command; see docs/reference/commands.md."""

    example: ClassVar[dict[str, Any]] = COMMAND


class CommandsQuery(Model):
    """Which commands of a device: those made after a time."""

    after: Text | None = None
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)


class CommandsBody(Model):
    """Commands of a device, oldest first."""

    commands: list[dict[str, Any]]

    example: ClassVar[dict[str, Any]] = {"commands": [COMMAND]}


class NotificationsQuery(Model):
    """Which notifications: the unread ones, or (``all``) all that are kept."""

    all: bool = False
    after: Text | None = None
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)


class NotificationsBody(Model):
    """Notifications of a user, oldest first."""

    notifications: list[dict[str, Any]]

    example: ClassVar[dict[str, Any]] = {"notifications": [NOTIFICATION]}


class NotificationBody(Facts):
    """One notification."""

    example: ClassVar[dict[str, Any]] = {**NOTIFICATION, "read": True}


class PreferencesBody(Facts):
    """A user's preferences and their version."""

    example: ClassVar[dict[str, Any]] = {"preferences": {"theme": "dark"}, "version": 3}


class ChangePreferencesBody(Request):
    """A merge patch (RFC 7396). With ``version``, only if they are still at that one."""

    preferences: dict[str, Any]
    version: int | None = Field(default=None, ge=0)

    example: ClassVar[dict[str, Any]] = {"preferences": {"theme": "dark"}}
