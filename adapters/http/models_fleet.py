"""Requests and answers about fleets: labels and rollouts."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from .models import MAX_PAGE, MESSAGE_ID, NOON, Model, Request, Text
from .models_shadow import Facts


class LabelsBody(Request):
    """Labels by name; in a change, null takes one away."""

    labels: dict[str, str | None] = Field(max_length=50)

    example: ClassVar[dict[str, Any]] = {"labels": {"site": "north", "model": "p2"}}


class RolloutRequestBody(Request):
    """What to roll out, to whom, and how fast."""

    kind: Literal["command", "desired"]
    payload: dict[str, Any] = Field(description="The command's payload, or the merge patch of what is desired")
    filter: dict[str, Any] = Field(
        description='Which devices: `{"ids": [...]}`, `{"glob": "pump-*"}`, `{"labels": {...}}`, `{"where": [...]}`'
    )
    rate: float = Field(default=60.0, gt=0, le=60_000, description="Devices per minute")
    growth: float = Field(default=1.0, ge=1, le=10, description="By what the rate is multiplied each minute")
    abort_percent: float = Field(default=0.0, ge=0, le=100, description="Share of failures that ends it; 0 = never")
    abort_minimum: int = Field(default=1, ge=1, description="How many must be over before that counts")
    timeout: float = Field(default=0.0, ge=0, le=86_400, description="Seconds that a device has for its command")
    expires_in: float = Field(default=0.0, ge=0, le=30 * 86_400, description="Seconds that it waits for a device")
    id: Text | None = Field(default=None, description="A UUID; the same one again is the same rollout")

    example: ClassVar[dict[str, Any]] = {
        "kind": "command", "payload": {"action": "update"}, "filter": {"labels": {"model": "p2"}},
        "rate": 100, "abort_percent": 5, "abort_minimum": 20,
    }  # fmt: skip


class RolloutBody(Facts):
    """A rollout with its progress."""

    example: ClassVar[dict[str, Any]] = {
        "rolloutId": MESSAGE_ID, "kind": "command", "state": "running", "payload": {"action": "update"},
        "filter": {"labels": {"model": "p2"}}, "ratePerMinute": 100.0, "growth": 1.0,
        "abort": {"percent": 5.0, "minimum": 20}, "caller": "iotsphere/user/ann", "createdAt": NOON, "total": 400,
        "issued": 120, "counts": {"queued": 20, "succeeded": 100}, "refusals": 0, "refused": {},
    }  # fmt: skip


class RolloutsQuery(Model):
    """Which rollouts: those begun after a time."""

    after: Text | None = None
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)


class RolloutsBody(Model):
    """Rollouts, oldest first."""

    rollouts: list[dict[str, Any]]

    example: ClassVar[dict[str, Any]] = {"rollouts": [RolloutBody.example]}
