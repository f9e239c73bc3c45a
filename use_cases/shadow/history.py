"""What a shadow was: each of its versions as long as it is kept, by version or by time.

The versions are written by whoever reads the database's changes, a moment after they were made; who asks sooner waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ...entities.errors import NotFound, RequestInvalid, Unavailable
from ...entities.shadow import Shadow, ShadowKey
from ..ports.clock import Clock
from ..ports.database import Collection, Database, Index
from .writer import SHADOWS, ShadowFormat

HISTORY: Final = Collection(
    "shadow_history",
    (Index("by_shadow", ("shadow", "version")), Index("by_time", ("shadow", "at"))),
    expires="expires",
)
# How old the newest version is when it is no longer waited for, how often it is looked for, and how far apart.
WRITTEN_WITHIN_MS: Final = 60_000
LOOKS: Final = 40
LOOK_AGAIN_S: Final = 0.05


def history_key(key: ShadowKey, version: int) -> str:
    """The key of one version's document."""
    return f"{key.text}@{version:012d}"


class ShadowHistory:
    """The versions of shadows. ``updated_at`` never falls from one version to the next."""

    def __init__(self, database: Database, form: ShadowFormat, clock: Clock) -> None:
        self._database = database
        self._form = form
        self._clock = clock

    async def versions(self, key: ShadowKey, after: int = 0, limit: int = 100) -> Sequence[Shadow]:
        """Versions beyond ``after`` that are kept, in order; a deletion is one too. Raises Unavailable."""
        found = await self._database.find(HISTORY.name, "by_shadow", (key.text,), after=after, limit=limit)
        return [self._form.read(key, one.body) for one in found]

    async def at_version(self, key: ShadowKey, version: int) -> Shadow:
        """One version. Raises NotFound, RequestInvalid when it is not kept any more, and Unavailable."""
        now = await self._now(key)
        if version == now.version:
            return now
        if not 0 < version < now.version:
            raise NotFound
        return await self._written(now, lambda: self._version(key, version), f"version {version}")

    async def at_time(self, key: ShadowKey, time: int) -> Shadow:
        """The version that stood at a time (ms). Raises NotFound when there was none, RequestInvalid, Unavailable."""
        now = await self._now(key)
        if now.updated_at <= time:
            return now
        return await self._written(now, lambda: self._before(now, time), "that time")

    async def _before(self, now: Shadow, time: int) -> Shadow | None:
        """The version that stood at a time before the present one's; None where none is written that could be it."""
        key = now.key
        following = await self._database.find(HISTORY.name, "by_time", (key.text,), after=time, limit=1)
        if following:
            version = self._form.read(key, following[0].body).version - 1
            if version == 0:
                raise NotFound
            return await self._version(key, version)
        # All that is written is from before that time. Only the version right before the present one may be an answer:
        # where it is not written yet, it may be the one that stood then, and an older one would be a wrong past.
        if now.version == 1:
            raise NotFound
        before = await self._version(key, now.version - 1)
        return before if before is not None and before.updated_at <= time else None

    async def _written(self, now: Shadow, look: Callable[[], Awaitable[Shadow | None]], what: str) -> Shadow:
        """What a look at the versions finds, also where the newest ones are only being written."""
        found = await look()
        for _ in range(LOOKS):
            coming = found is None and await self._is_coming(now)
            found = found or await look()
            if found is not None:
                return found
            if not coming:
                raise await self._not_kept(now.key, what)
            await asyncio.sleep(LOOK_AGAIN_S)
        raise Unavailable(f"{what} of this shadow is being written: ask again in a moment")

    async def _is_coming(self, now: Shadow) -> bool:
        """Whether the versions up to this one are still to be written."""
        if self._clock.now() - now.updated_at > WRITTEN_WITHIN_MS:
            return False
        return await self._version(now.key, now.version) is None

    async def _version(self, key: ShadowKey, version: int) -> Shadow | None:
        stored = await self._database.get(HISTORY.name, history_key(key, version))
        return None if stored is None else self._form.read(key, stored.body)

    async def _now(self, key: ShadowKey) -> Shadow:
        stored = await self._database.get(SHADOWS.name, key.text)
        if stored is None:
            raise NotFound
        return self._form.read(key, stored.body)

    async def _not_kept(self, key: ShadowKey, what: str) -> RequestInvalid:
        kept = await self._database.find(HISTORY.name, "by_shadow", (key.text,), limit=1)
        since = f"from version {kept[0].body['version']} on" if kept else "in no earlier version than the present one"
        return RequestInvalid(f"{what} of this shadow is not kept: it can be had {since}")
