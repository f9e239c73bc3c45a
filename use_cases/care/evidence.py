"""Evidence of what devices got, on its way into the database: kept while the database is away, and bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from ...entities.errors import IotSphereError

log = structlog.get_logger("iotsphere.care")

MAX_EVIDENCE: Final = 10_000
CHUNK: Final = 100
RETRY_S: Final = (0.1, 5.0)
LAST_WORDS_S: Final = 2.0

T = TypeVar("T")
Write = Callable[[], Awaitable[object]]


class Evidence:
    """A bounded queue of writes. ``dropped`` counts what found no room: a device's answer tells more in the end."""

    def __init__(self, limit: int = MAX_EVIDENCE) -> None:
        self._limit = limit
        self._waiting: deque[Write] = deque()
        self._told = asyncio.Event()
        self.dropped = 0

    def note(self, write: Write) -> bool:
        """Write something down later; in the order of noting, up to what one round takes at once. False: no room."""
        if len(self._waiting) >= self._limit:
            self.dropped += 1
            return False
        self._waiting.append(write)
        self._told.set()
        return True

    async def run(self) -> None:
        """Write evidence down for ever; what the database does not take now is tried again. At the end, once more."""
        chunk: list[Write] = []
        try:
            while True:
                while self._waiting:
                    chunk = [self._waiting.popleft() for _ in range(min(CHUNK, len(self._waiting)))]
                    await asyncio.gather(*map(_until_taken, chunk))
                    chunk = []
                self._told.clear()
                await self._told.wait()
        except asyncio.CancelledError:
            self._waiting.extendleft(reversed(chunk))  # writing it twice is harmless
            await self._last_words()
            raise

    async def _last_words(self) -> None:
        waiting, self._waiting = list(self._waiting), deque()
        if not waiting:
            return
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                answers = await asyncio.gather(*(write() for write in waiting), return_exceptions=True)
        except TimeoutError:
            self.dropped += len(waiting)
            log.warning("evidence_lost", count=len(waiting), remedy="devices get what they had not confirmed again")
            return
        self.dropped += sum(isinstance(answer, IotSphereError) and answer.retry for answer in answers)


async def patiently(call: Callable[[], Awaitable[T]], event: str) -> T:
    """Repeat a call until it does not fail with an error that a retry can help; raises any other."""
    pause, longest = RETRY_S
    while True:
        try:
            return await call()
        except IotSphereError as error:
            if not error.retry:
                raise
            log.warning(event, code=error.code)
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)


async def _until_taken(write: Write) -> None:
    try:
        await patiently(write, "evidence_waits")
    except IotSphereError as error:
        log.info("evidence_of_nothing", code=error.code)  # what it was about has been removed
