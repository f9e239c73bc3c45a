"""Changes of the database as messages: what happened to shadows, commands, notifications, preferences and more.

Each message's id follows from the change's token, so that a change which is told again is recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import orjson

from ..entities.command import command_of
from ..entities.errors import IotSphereError
from ..entities.message import Record
from ..entities.shadow import shadow_key
from ..entities.shadow_changes import DATABASE
from ..entities.topic import DEFAULT_DOMAIN, is_user_id
from ..use_cases.ports.clock import Clock
from ..use_cases.ports.database import Change
from .alerts import gateway_principal
from .command_messages import facts_of
from .edge import Edge
from .message_id import derived, is_message_id
from .shadow_body import ShadowDocument, versions
from .shadow_messages import tell
from .timestamps import iso

Rows = list[tuple[str, dict[str, Any], str | None]]  # topic, payload, correlation id


class DatabaseChangeAdapter:
    """A ``Teller``. ``mapped``: for further collections, what makes rows of a change. ``failed`` counts what cannot be told."""

    def __init__(self, edge: Edge, clock: Clock, mapped: Mapping[str, Callable[[Change], Rows]] | None = None) -> None:
        self._edge = edge
        self._clock = clock
        self._rows: dict[str, Callable[[Change], Rows]] = {
            "shadows": _shadow_rows,
            "commands": _command_rows,
            "notifications": _notification_rows,
            "preferences": _preference_rows,
            **(mapped or {}),
        }
        self.failed = 0

    def records(self, change: Change) -> Sequence[Record]:
        """The messages of a change, in order. What a stranger wrote and cannot be told becomes an alert instead."""
        try:
            rows = self._rows[change.collection](change)
            return [
                self._record(change, number, topic, payload, correlation)
                for number, (topic, payload, correlation) in enumerate(rows)
            ]
        except (IotSphereError, KeyError, TypeError, ValueError, AttributeError) as error:
            self.failed += 1
            domain = self._domain(change)
            alert = {
                "alert": "change_not_told",
                "collection": change.collection,
                "document": change.key,
                "reason": str(error)[:500],
                "remedy": "the document does not have the form that its collection has; mend or remove it",
            }
            return [self._record(change, 0, f"{domain}/system/alerts", alert, None)]

    def lost(self, since: int, until: int, told: int) -> Record:
        """The alert on the first domain's ``system/alerts``."""
        alert = {
            "alert": "history_lost",
            "since": iso(since) if since else None,
            "until": iso(until),
            "reconciled": told,
            "detail": "the database no longer knew what had changed; documents that differ were told as they are now",
        }
        change = Change(f"lost/{since}/{until}", until, "quiet")
        return self._record(change, 0, f"{self._domain(change)}/system/alerts", alert, None)

    def _domain(self, change: Change) -> str:
        return change.key.partition("/")[0] if "/" in change.key else DEFAULT_DOMAIN

    def _record(
        self, change: Change, number: int, topic: str, payload: Mapping[str, Any], correlation: str | None
    ) -> Record:
        sender = gateway_principal(topic.partition("/")[0])
        author = payload.get("author")
        if isinstance(author, str) and author:
            sender = replace(sender, name=author.rpartition("/")[2])
        route = self._edge.route(sender, topic)
        digest = sha256(f"{change.token}\n{change.collection}\n{change.key}\n{number}".encode()).digest()
        return self._edge.admit(
            route,
            orjson.dumps(payload),
            self._clock.now(),
            retain=topic.endswith(("/document", "/preferences")),
            message_id=derived(digest[:16]),
            correlation_id=correlation if correlation and is_message_id(correlation) else None,
        )


def _shadow_rows(change: Change) -> Rows:
    """The messages of each version. What was changed by hand is told once it has become a version."""
    key = shadow_key(change.key)
    if change.after is None:
        return []
    form = ShadowDocument()
    before = form.read(key, change.before)
    rows: Rows = []
    for version in versions(change.before, change.after):
        after = form.read(key, version)
        told = tell(before, after)
        if told and after.author == DATABASE and told[0][0] != "desired":
            # The hand has changed what is desired before this version was made of it.
            told.insert(0, ("desired", {"desired": after.desired, "version": after.version}))
        rows += [(key.topic(kind), payload, after.cause or None) for kind, payload in told]
        before = after
    return rows


def _command_rows(change: Change) -> Rows:
    """A step in the life of a command; its removal after its time tells nobody anything."""
    if change.after is None:
        return []
    command = command_of(change.after)
    if change.before is not None and command_of(change.before) == command:
        return []
    return [(f"{command.domain}/devices/{command.device}/commands/status", facts_of(command), command.id)]


def _notification_rows(change: Change) -> Rows:
    """What came through the log has been heard; what somebody wrote into the database, and what was read, is told."""
    before, after = change.before, change.after
    if after is None:
        return []
    domain, user, notification_id = change.key.split("/", 2)
    topic = f"{domain}/users/{_user(user)}/notifications"
    if before is not None and before.get("unread") and not after.get("unread"):
        read_at = after.get("readAt")
        return [(topic, {"id": notification_id, "read": True, "readAt": iso(read_at) if read_at else None}, None)]
    if after.get("logged"):
        return []
    return [(topic, {"id": notification_id, **dict(after.get("content") or {})}, None)]


def _preference_rows(change: Change) -> Rows:
    domain, user = change.key.split("/", 1)
    topic = f"{domain}/users/{_user(user)}/preferences"
    if change.after is None:
        return [(topic, {"preferences": {}, "version": 0, "deleted": True}, None)]
    facts = {"preferences": change.after["preferences"], "version": change.after.get("version", 0)}
    return [(topic, facts, change.after.get("cause") or None)]


def _user(user: str) -> str:
    if not is_user_id(user):
        raise ValueError(f"{user[:80]!a} is no user id")
    return user
