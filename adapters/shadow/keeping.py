"""What follows from changes of shadows: their versions are kept, and what people changed by hand becomes a version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from ...entities.documents import is_newer
from ...entities.errors import IotSphereError, RequestInvalid
from ...entities.shadow import is_shadow_key, shadow_key
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.database import Change, Database, Write
from ...use_cases.shadow.history import HISTORY, history_key
from ...use_cases.shadow.shadows import Shadows
from ...use_cases.shadow.writer import SHADOWS
from .body import history_body, versions

log = structlog.get_logger("iotsphere.changes")

Alarm = Callable[[Change, str], Awaitable[None]]
KEPT_MS: Final = 30 * 24 * 3600 * 1000


class ShadowKeeping:
    """Called with each batch of changes that were told. Repeating is safe.

    ``unkept`` counts versions that cannot be kept, and changes by hand that cannot become a version: what people have
    written there does not fit into a shadow, and must not keep the others waiting. ``alarm`` is told of each, and why.
    """

    def __init__(self, database: Database, shadows: Shadows, clock: Clock, alarm: Alarm) -> None:
        self._database = database
        self._shadows = shadows
        self._clock = clock
        self._alarm = alarm
        self.unkept = 0

    async def __call__(self, changes: Sequence[Change]) -> None:
        """Keep versions, and adopt. Raises Unavailable."""
        mine = [_known(change) for change in changes if change.collection == SHADOWS.name and is_shadow_key(change.key)]
        mine = [
            change for change in mine if not is_newer(change.after)
        ]  # it was told, and is the newer gateway's to keep
        await self._keep(mine)
        for change in mine:
            if change.whole:
                await self._adopt(change)

    async def _adopt(self, change: Change) -> None:
        try:
            await self._shadows.adopt(shadow_key(change.key), change.before, change.after)
        except IotSphereError as error:
            if error.retry:
                raise
            await self._pass_over(change, error)

    async def _keep(self, changes: Sequence[Change]) -> None:
        expires = self._clock.now() + KEPT_MS
        writes: dict[str, Write] = {}
        causes: dict[str, Change] = {}
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
                    causes.setdefault(place, change)
        try:
            await self._database.write(HISTORY.name, list(writes.values()))
        except RequestInvalid:  # nothing was written: see which of them it was
            for write in writes.values():
                await self._keep_one(write, causes[write.key])

    async def _keep_one(self, write: Write, cause: Change) -> None:
        try:
            await self._database.write(HISTORY.name, [write])
        except RequestInvalid as error:
            await self._pass_over(cause, error)

    async def _pass_over(self, change: Change, error: IotSphereError) -> None:
        self.unkept += 1
        log.warning("version_not_kept", key=change.key, code=error.code, message=error.message)
        await self._alarm(change, error.message)


def _known(change: Change) -> Change:
    """The change without what a newer gateway wrote before it."""
    return change._replace(before=None, whole=False) if is_newer(change.before) else change
