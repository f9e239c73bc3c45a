"""What a shadow was: each of its versions as long as it is kept, by version or by time.

The versions are written by whoever reads the database's changes, a moment after they were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...entities.errors import NotFound, RequestInvalid
from ...entities.shadow import Shadow, ShadowKey
from ..ports.database import Collection, Database, Index
from .writer import SHADOWS, ShadowFormat

HISTORY: Final = Collection(
    "shadow_history",
    (Index("by_shadow", ("shadow", "version")), Index("by_time", ("shadow", "at"))),
    expires="expires",
)
CHUNK: Final = 64


def history_key(key: ShadowKey, version: int) -> str:
    """The key of one version's document."""
    return f"{key.text}@{version:012d}"


class ShadowHistory:
    """The versions of shadows. ``updated_at`` never falls from one version to the next."""

    def __init__(self, database: Database, form: ShadowFormat) -> None:
        self._database = database
        self._form = form

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
        stored = await self._database.get(HISTORY.name, history_key(key, version))
        if stored is None:
            raise await self._not_kept(key, f"version {version}")
        return self._form.read(key, stored.body)

    async def at_time(self, key: ShadowKey, time: int) -> Shadow:
        """The version that stood at a time (ms). Raises NotFound when there was none, RequestInvalid, Unavailable."""
        now = await self._now(key)
        if now.updated_at <= time:
            return now
        following = await self._database.find(HISTORY.name, "by_time", (key.text,), after=time, limit=1)
        if following:
            version = self._form.read(key, following[0].body).version - 1
            if version == 0:
                raise NotFound
            return await self.at_version(key, version)
        # The versions after that time are not written yet: they are the latest few.
        last = now.version - 1
        while last > 0:
            versions = range(last, max(0, last - CHUNK), -1)
            keys = [history_key(key, version) for version in versions]
            stored = await self._database.get_many(HISTORY.name, keys)
            for name in keys:
                if name in stored and (shadow := self._form.read(key, stored[name].body)).updated_at <= time:
                    return shadow
            if stored:
                break
            last -= CHUNK
        raise await self._not_kept(key, "that time")

    async def _now(self, key: ShadowKey) -> Shadow:
        stored = await self._database.get(SHADOWS.name, key.text)
        if stored is None:
            raise NotFound
        return self._form.read(key, stored.body)

    async def _not_kept(self, key: ShadowKey, what: str) -> RequestInvalid:
        kept = await self._database.find(HISTORY.name, "by_shadow", (key.text,), limit=1)
        since = f"from version {kept[0].body['version']} on" if kept else "in no earlier version than the present one"
        return RequestInvalid(f"{what} of this shadow is not kept: it can be had {since}")
