"""Timers: what the passing of time asks for in the database, done again and again by every process that may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from ..entities.errors import IotSphereError, Unavailable

log = structlog.get_logger("iotsphere.timers")

EVERY_S: Final = 0.5


class Timers:
    """``tasks``: each does what is due now, and says how much that was. Doing it in two processes at once is safe.

    ``done``: how much was done; ``failed``: how often a task could not do its part.
    """

    def __init__(self, *tasks: Callable[[], Awaitable[int]], every: float = EVERY_S) -> None:
        self._tasks = tasks
        self._every = every
        self.done = 0
        self.failed = 0

    async def run(self) -> None:
        """Look after all tasks for ever; one that fails keeps no other from its turn. Raises Unavailable."""
        while True:
            away: Unavailable | None = None
            for task in self._tasks:
                try:
                    self.done += await task()
                except Unavailable as error:
                    self.failed += 1
                    away = error
                except IotSphereError as error:
                    self.failed += 1
                    log.error("timer_failed", code=error.code, message=error.message)
                except Exception:  # on what people have written in the database, one task must not end all others
                    self.failed += 1
                    log.exception("timer_failed")
            if away is not None:
                raise away
            await asyncio.sleep(self._every)
