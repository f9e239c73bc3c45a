"""Answers about who is signed in, and about a fleet at a glance."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from .models import MAX_PAGE, NOON, Model


class SessionBody(Model):
    """Who the token of a request stands for. ``grants``: ``ACTION:FILTER`` each. ``expires_at``: null for never."""

    kind: str = Field(description="user, service or device")
    name: str
    domain: str
    grants: list[str]
    roles: list[str]
    expires_at: str | None

    example: ClassVar[dict[str, Any]] = {
        "kind": "user", "name": "ann", "domain": "iotsphere", "grants": ["subscribe:iotsphere/devices/#"], "roles": [],
        "expires_at": NOON,
    }  # fmt: skip


class PresenceBody(Model):
    """What is known of a device's connection."""

    state: str
    since: str | None
    reason: str | None

    example: ClassVar[dict[str, Any]] = {"state": "online", "since": NOON, "reason": None}


class NewestBody(Model):
    """The last telemetry of a device. ``value``: its number or short text where the payload has one."""

    metric: str = Field(description="The topic below `telemetry/`; empty for a payload with many metrics")
    at: str = Field(description="When the gateway accepted it")
    value: float | str | bool | None
    unit: str | None

    example: ClassVar[dict[str, Any]] = {"metric": "temperature", "at": NOON, "value": 21.5, "unit": "Cel"}


class StandingBody(Model):
    """A device at a glance; null for what was never heard."""

    device_id: str
    registered_at: str
    labels: dict[str, str]
    presence: PresenceBody | None
    newest: NewestBody | None

    example: ClassVar[dict[str, Any]] = {
        "device_id": "pump-7", "registered_at": NOON, "labels": {"site": "north"}, "presence": PresenceBody.example,
        "newest": NewestBody.example,
    }  # fmt: skip


class OverviewBody(Model):
    """Devices in the order of their ids. ``after``: ask on with it; null at the end."""

    devices: list[StandingBody]
    after: str | None

    example: ClassVar[dict[str, Any]] = {"devices": [StandingBody.example], "after": None}


class OverviewQuery(Model):
    """Which page of the devices, or which one of them."""

    device: str = Field(default="", max_length=64)
    after: str = Field(default="", max_length=64)
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)
