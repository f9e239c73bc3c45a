"""Learning that the state file was changed: at once from this process, and by a glance now and then from others."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ...entities.errors import Unavailable
from .snapshots import Snapshots


class Watch:
    """Lets followers wait for changes. The file is looked at every ``poll`` seconds, and only while somebody follows.

    ``moved``: an event that is set at the next change; take it before reading, and wait for it after.
    """

    def __init__(self, path: Path, poll: float) -> None:
        self.moved = asyncio.Event()
        self._snapshots = Snapshots(path, 1)  # one connection, for its data_version counts what others commit
        self._poll = poll
        self._followers = 0
        self._polling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the file."""
        await self._snapshots.open()

    async def close(self) -> None:
        """Wake everybody, and close the file."""
        await self._stop()
        self.wake()
        await self._snapshots.close()

    def wake(self) -> None:
        """Something was changed, or followers have to look again for another reason."""
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()

    def follow(self) -> None:
        """One follower more."""
        self._followers += 1
        if self._polling is None:
            self._polling = asyncio.get_running_loop().create_task(self._look())

    async def leave(self) -> None:
        """One follower less."""
        self._followers -= 1
        if not self._followers:
            await self._stop()

    async def _stop(self) -> None:
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)

    async def _look(self) -> None:
        known = (-1, -1)
        while True:
            try:
                number = await self._snapshots.run(lambda c: int(c.execute("PRAGMA data_version").fetchone()[0]))
            except Unavailable:
                self.wake()  # followers read by themselves, and tell their callers what is wrong
            else:
                if (self._snapshots.opened, number) != known:
                    known = self._snapshots.opened, number
                    self.wake()
            await asyncio.sleep(self._poll)
