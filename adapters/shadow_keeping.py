"""What follows from changes of shadows: their versions are kept, and what people changed by hand becomes a version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..entities.shadow import is_shadow_key, shadow_key
from ..use_cases.ports.clock import Clock
from ..use_cases.ports.database import Change, Database, Write
from ..use_cases.shadow_history import HISTORY, history_key
from ..use_cases.shadow_writer import SHADOWS
from ..use_cases.shadows import Shadows
from .shadow_body import history_body, versions

KEPT_MS: Final = 30 * 24 * 3600 * 1000


class ShadowKeeping:
    """Called with each batch of changes that were told. Repeating is safe."""

    def __init__(self, database: Database, shadows: Shadows, clock: Clock) -> None:
        self._database = database
        self._shadows = shadows
        self._clock = clock

    async def __call__(self, changes: Sequence[Change]) -> None:
        """Keep versions, and adopt. Raises Unavailable."""
        mine = [change for change in changes if change.collection == SHADOWS.name and is_shadow_key(change.key)]
        await self._keep(mine)
        for change in mine:
            if change.whole:
                await self._shadows.adopt(shadow_key(change.key), change.before, change.after)

    async def _keep(self, changes: Sequence[Change]) -> None:
        expires = self._clock.now() + KEPT_MS
        writes: dict[str, Write] = {}
        for change in changes:
            if change.after is None or not change.after.get("version"):
                continue
            key = shadow_key(change.key)
            known = 0 if change.before is None else change.before.get("version", 0)
            for version in versions(change.before, change.after):
                number = version.get("version")
                if type(number) is int and number > 0 and number != known:
                    place = history_key(key, number)
                    writes.setdefault(place, Write(place, None, history_body(key, version, expires)))
        await self._database.write(HISTORY.name, list(writes.values()))
