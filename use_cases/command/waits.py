"""Callers that wait for the end of a command: woken by what this process does, and looking by themselves for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ...entities.command import Command
from ...entities.errors import Conflict

MAX_WAITERS: Final = 10_000
POLL_S: Final = (0.02, 0.5)


class CommandWaits:
    """``count``: how many wait."""

    def __init__(self) -> None:
        self._wakers: dict[str, set[asyncio.Event]] = {}
        self.count = 0

    def moved(self, key: str) -> None:
        """Let those look again who wait for this command."""
        for waker in self._wakers.get(key, ()):
            waker.set()

    async def __call__(self, key: str, look: Callable[[], Awaitable[Command]], seconds: float) -> Command:
        """The command once it is over, or as it is when the time has passed. Raises Conflict when too many wait."""
        if self.count >= MAX_WAITERS:
            raise Conflict(f"{MAX_WAITERS} callers wait already: follow commands/status instead")
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        pause, longest = POLL_S
        moved = asyncio.Event()
        self._wakers.setdefault(key, set()).add(moved)
        self.count += 1
        try:
            while True:
                moved.clear()
                command = await look()
                left = end - loop.time()
                if command.is_final or left <= 0:
                    return command
                try:
                    async with asyncio.timeout(min(pause, left)):
                        await moved.wait()
                except TimeoutError:
                    pause = min(pause * 2, longest)
        finally:
            self.count -= 1
            wakers = self._wakers[key]
            wakers.discard(moved)
            if not wakers:
                del self._wakers[key]
