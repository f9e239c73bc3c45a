"""What the gateway keeps for users: notifications until they are read, and preferences under an optimistic lock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import structlog

from ..entities.documents import at_schema, is_newer, whole
from ..entities.errors import Conflict, DocumentNewer, MessageRefused, NotFound, VersionConflict
from ..entities.merge_patch import merge, same
from ..entities.shadow import json_size
from .ports.clock import Clock
from .ports.database import Collection, Database, Index, Stored, Write

NOTIFICATIONS: Final = Collection(
    "notifications",
    (
        Index("unread", ("domain", "user", "unread", "at")),
        Index("of_user", ("domain", "user", "at")),
    ),
    watched=True,
    expires="removeAt",
)
PREFERENCES: Final = Collection("preferences", watched=True)
log = structlog.get_logger("iotsphere.users")

KEPT_MS: Final = 90 * 24 * 3600 * 1000
KEPT_AFTER_READING_MS: Final = 7 * 24 * 3600 * 1000
MAX_PREFERENCES_BYTES: Final = 64 * 1024
ATTEMPTS: Final = 20


class Fact(NamedTuple):
    """A notification as it came: ``id`` is its message id, ``at`` ms since 1970."""

    domain: str
    user: str
    id: str
    source: str
    at: int
    content: Mapping[str, Any]


class PreferenceChange(NamedTuple):
    """A merge patch (RFC 7396). ``expected``: the version it is for. ``cause``: its message id, which counts once."""

    domain: str
    user: str
    patch: Mapping[str, Any]
    expected: int | None = None
    cause: str = ""


class Notifications:
    """A notification is kept until it is read, and a week after; unread ones for 90 days."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def keep(self, facts: Sequence[Fact]) -> None:
        """Keep notifications that came through the log. Repeating is safe: what is there already stays as it is."""
        writes = [Write(f"{f.domain}/{f.user}/{f.id}", None, self._body(f)) for f in facts]
        await self._database.write(NOTIFICATIONS.name, list({write.key: write for write in writes}.values()))

    def _body(self, fact: Fact) -> dict[str, Any]:
        return {
            "schema": 1,
            "domain": fact.domain,
            "user": fact.user,
            "id": fact.id,
            "source": fact.source,
            "at": fact.at,
            "content": dict(fact.content),
            "unread": True,
            "logged": True,
            "removeAt": self._clock.now() + KEPT_MS,
        }

    async def unread(self, domain: str, user: str, after: int = 0, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        """What the user has not read, oldest first, from later than ``after`` (ms)."""
        found = await self._database.find(NOTIFICATIONS.name, "unread", (domain, user, True), after=after, limit=limit)
        return _readable_ones(found)

    async def all(self, domain: str, user: str, after: int = 0, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        """All that is kept for the user, oldest first."""
        found = await self._database.find(NOTIFICATIONS.name, "of_user", (domain, user), after=after, limit=limit)
        return _readable_ones(found)

    async def read(self, domain: str, user: str, notification_id: str) -> Mapping[str, Any]:
        """Mark one as read; its user's other sessions are told. Repeating is safe. Raises NotFound, DocumentNewer."""
        key = f"{domain}/{user}/{notification_id}"
        while True:
            stored = await self._database.get(NOTIFICATIONS.name, key)
            if stored is None:
                raise NotFound
            at_schema(stored.body, f"the notification {notification_id!a}")
            if not stored.body.get("unread"):
                return _readable(stored)
            now = self._clock.now()
            body = {name: value for name, value in stored.body.items() if name != "unread"}
            body |= {"readAt": now, "removeAt": now + KEPT_AFTER_READING_MS}
            (outcome,) = await self._database.write(NOTIFICATIONS.name, [Write(key, stored, body)])
            if outcome.done:
                return _readable(stored._replace(body=body))


def _readable_ones(found: Sequence[Stored]) -> list[Mapping[str, Any]]:
    """Without those that a newer gateway wrote, of which the log is told."""
    for stored in found:
        if is_newer(stored.body):
            log.warning("document_passed_over", document=stored.key, code=DocumentNewer.code)
    return [_readable(stored) for stored in found if not is_newer(stored.body)]


def _readable(stored: Stored) -> Mapping[str, Any]:
    """A notification as it is kept, or as somebody wrote it: with its id, and a time."""
    at = stored.body.get("at")
    return {**stored.body, "id": stored.key.rpartition("/")[2], "at": whole(at) or 0}


class Preferences:
    """One JSON object per user, changed by merge patches (RFC 7396); its version grows by one with each change."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def get(self, domain: str, user: str) -> Mapping[str, Any]:
        """``preferences``, ``version`` (0: never set) and the like. Raises DocumentNewer."""
        stored = await self._database.get(PREFERENCES.name, f"{domain}/{user}")
        body: Mapping[str, Any] = stored.body if stored is not None else {}
        preferences, version = _preferences(body)
        return {**body, "preferences": preferences, "version": version}

    async def update(self, change: PreferenceChange) -> Mapping[str, Any]:
        """Merge a patch in; equal values change nothing.

        Raises VersionConflict with what is there, MessageRefused (too large), and Unavailable.
        """
        key = f"{change.domain}/{change.user}"
        for attempt in range(ATTEMPTS):
            stored = await self._database.get(PREFERENCES.name, key)
            body = self._patched(stored, change)
            if stored is not None and body is stored.body:
                return body
            (outcome,) = await self._database.write(PREFERENCES.name, [Write(key, stored, body)])
            if outcome.done:
                return body
            await asyncio.sleep(random.uniform(0, 0.01) * attempt)
        raise Conflict(f"the preferences of {change.user!a} are changed by too many at once: repeat it")

    def _patched(self, stored: Stored | None, change: PreferenceChange) -> Mapping[str, Any]:
        expected, cause = change.expected, change.cause
        now: Mapping[str, Any] = stored.body if stored is not None else {}
        old, version = _preferences(now)
        if cause and now.get("cause") == cause:
            return now
        if expected is not None and expected != version:
            raise VersionConflict(
                f"the preferences are at version {version}, not {expected}: look at them and decide anew",
                version=version,
                state={"preferences": old, "version": version},
            )
        new = merge(old, change.patch)
        if stored is not None and same(old, new):
            return now
        if (size := json_size(new)) > MAX_PREFERENCES_BYTES:
            raise MessageRefused(
                f"the preferences would have {size} bytes, more than {MAX_PREFERENCES_BYTES}: keep less",
                code="payload_too_large",
            )
        return {
            "schema": 1,
            "domain": change.domain,
            "user": change.user,
            "preferences": new,
            "version": version + 1,
            "cause": cause,
            "updatedAt": self._clock.now(),
        }


def _preferences(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """What a document says; what people have written there in another form counts as nothing. Raises DocumentNewer."""
    body = at_schema(body, "this document of preferences")
    preferences, version = body.get("preferences"), body.get("version")
    return preferences if type(preferences) is dict else {}, whole(version) or 0
