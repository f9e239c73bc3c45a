"""Forwarding: one owner at a time reads some channels of the log in order, and remembers what it has handed over.

The reader is registered, so retention waits for it and the ledger accounts for it. Its place moves on only behind what
was handed over, so a crash repeats the last few messages and skips none. Of several processes the one that holds the
lease forwards; another takes over when the lease runs out.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Final, NamedTuple

import structlog

from ..entities.errors import Fenced, LeaseHeld, Unavailable
from ..entities.message import Entry
from ..entities.position import Gap, Partition, Position
from .ports.message_log import Lease, MessageLog, Slice, Tally

LEASE_MS: Final = 10_000
KEEP_EVERY_S: Final = 1.0
CHUNK_ENTRIES: Final = 64


class Handed(NamedTuple):
    """What became of some entries, and how many of them really went out."""

    tally: Tally
    sent: int


Send = Callable[[Sequence[Entry]], Awaitable[Handed]]
logger = structlog.get_logger("iotsphere.forward")


class ForwardUseCase:
    """Forwards ``partitions`` as the reader named ``reader``.

    ``send`` gets consecutive entries of one partition, and returns once they are handed over.
    ``missed`` is told what retention took away before it could be forwarded.
    """

    def __init__(
        self,
        log: MessageLog,
        reader: str,
        partitions: Sequence[Partition],
        send: Send,
        missed: Callable[[Gap], None],
    ) -> None:
        self._log = log
        self._reader = reader
        self._partitions = sorted(partitions)
        self._send = send
        self._missed = missed
        self._owner = secrets.token_hex(8)
        self._progress: dict[Partition, tuple[Position, Tally]] = {}
        self._committing = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self.lease: Lease | None = None

    async def __call__(self) -> None:
        """Forward until cancelled. A new reader begins with what comes from now on. Raises LogUnavailable."""
        bounds = {partition: (await self._log.bounds(partition)).last for partition in self._partitions}
        await self._log.register(self._reader, bounds)
        while True:
            try:
                self.lease = await self._log.lease(self._reader, self._partitions[0], self._owner, LEASE_MS)
            except LeaseHeld:
                await asyncio.sleep(KEEP_EVERY_S)
                continue
            try:
                await self._own(self.lease)
            except (LeaseHeld, Fenced) as error:
                logger.warning("lease_lost", reader=self._reader, code=error.code)
            finally:
                lease, self.lease = self.lease, None
                self._progress.clear()
                with suppress(Unavailable):
                    await self._log.release(lease)

    async def drain(self, timeout: float) -> None:
        """Begin nothing new, and commit what was handed over; gives up after ``timeout`` seconds."""
        self._stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        if self.lease is not None:
            with suppress(Unavailable):
                await self._commit(self.lease)

    async def _own(self, lease: Lease) -> None:
        loop = asyncio.get_running_loop()
        tasks = (loop.create_task(self._follow(lease)), loop.create_task(self._keep(lease)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, lease: Lease) -> None:
        """Keep the lease, and commit what was passed without anything to hand over."""
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            await self._log.lease(self._reader, lease.partition, self._owner, LEASE_MS)
            await self._commit(lease)

    async def _follow(self, lease: Lease) -> None:
        progress = await self._log.committed(self._reader)
        after = {partition: progress[partition].position for partition in self._partitions}
        async with aclosing(self._log.follow(after)) as slices:
            async for part in slices:
                await self._pass_on(part, lease)

    async def _pass_on(self, part: Slice, lease: Lease) -> None:
        partition, entries = part.partition, part.entries
        if part.gap is not None:
            before = entries[0].position if entries else None
            place = part.end if before is None else Position(before.epoch, before.offset - 1)
            self._note(partition, place, Tally(lost=part.gap.missing))
            self._missed(part.gap)
        for start in range(0, len(entries), CHUNK_ENTRIES):
            if self._stopping:
                await asyncio.Event().wait()  # until cancelled: the rest is for the next owner
            chunk = entries[start : start + CHUNK_ENTRIES]
            self._idle.clear()
            try:
                handed = await self._send(chunk)
                self._note(partition, chunk[-1].position, handed.tally)
                if handed.sent:
                    await self._commit(lease)
            finally:
                self._idle.set()
        self._note(partition, part.end, Tally())

    def _note(self, partition: Partition, position: Position, tally: Tally) -> None:
        _, known = self._progress.get(partition, (position, Tally()))
        self._progress[partition] = position, known.plus(tally)

    async def _commit(self, lease: Lease) -> None:
        # One at a time: the log ignores a tally whose position lies below one that was committed meanwhile.
        async with self._committing:
            progress, self._progress = self._progress, {}
            if progress:
                await self._log.commit(self._reader, progress, {lease.partition: lease.fence})
