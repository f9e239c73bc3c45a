"""Timers: what the passing of time asks for in the database, done again and again by every process that may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

EVERY_S: Final = 0.5


class Timers:
    """``tasks``: each does what is due now, and says how much that was. Doing it in two processes at once is safe."""

    def __init__(self, *tasks: Callable[[], Awaitable[int]], every: float = EVERY_S) -> None:
        self._tasks = tasks
        self._every = every
        self.done = 0

    async def run(self) -> None:
        """Look after all tasks for ever. Raises Unavailable."""
        while True:
            for task in self._tasks:
                self.done += await task()
            await asyncio.sleep(self._every)
