"""Processors: fold the facts of a channel into something else, in order, with a place in the log that outlives crashes.

Each partition is read by one process at a time, under a lease. What was handled is committed with its tally, so the
ledger accounts for each message, and a crash repeats at most what was handled since: handlers are idempotent.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from ...entities.errors import Fenced, IotSphereError, LeaseHeld, Unavailable
from ...entities.position import Partition
from ..feed import beginning
from ..ports.facts import FactHandler
from ..ports.message_log import Lease
from .lane import FactLane
from .tools import Claim, LaneTools

LEASE_MS: Final = 6_000
LAPSES_EARLY: Final = 0.8  # a lease counts as lapsed here before it does in the log, whose clock may differ a little

logger = structlog.get_logger("iotsphere.processor")


@dataclass(slots=True)
class Held:
    """A partition that is read here. ``good_until``: when its lease counts as lapsed (loop seconds)."""

    lease: Lease
    lane: FactLane
    task: asyncio.Task[None]


class Processor:
    """Hands the messages of ``channel`` in every domain to ``handler``, as the reader ``{domain}/{name}``.

    ``lease_ms``: how long a partition stays unread after the process that read it was killed; another one, or the same
    one started anew, then goes on.
    """

    def __init__(
        self, tools: LaneTools, name: str, channel: str, handler: FactHandler, lease_ms: int = LEASE_MS
    ) -> None:
        self.name = name
        self.channel = channel
        self.outcomes: Counter[str] = Counter()
        self._tools = tools
        self._log = tools.log
        self._handler = handler
        self._lease_ms = lease_ms
        self._owner = secrets.token_hex(8)
        self._held: dict[Partition, Held] = {}
        self._good_until: dict[Partition, float] = {}
        self._registered: set[Partition] = set()

    async def __call__(self) -> None:
        """Work until cancelled; then what was handled is committed, and other processes may go on at once."""
        try:
            while True:
                try:
                    await self._look_after(self._partitions())
                except Unavailable as error:
                    logger.warning("processor_waits", reader=self.name, error=error)
                await asyncio.sleep(self._lease_ms / 4_000)
        finally:
            await asyncio.gather(*(self._let_go(held) for held in list(self._held.values())))

    @property
    def halted(self) -> Mapping[Partition, IotSphereError]:
        """The partitions whose handler or log is unavailable, with the error."""
        return {p: held.lane.halted for p, held in self._held.items() if held.lane.halted is not None}

    @property
    def waiting(self) -> int:
        """How many entries wait here behind one of their key that is to be tried again."""
        return sum(held.lane.parking.count for held in self._held.values())

    @property
    def partitions(self) -> Sequence[Partition]:
        """The partitions that are read here."""
        return sorted(self._held)

    async def lag(self) -> Mapping[str, int]:
        """How many messages each reader has still to handle, by the name of the reader, whichever process it is in."""
        lags: dict[str, int] = {}
        for domain in self._log.domains():
            reader = f"{domain}/{self.name}"
            for partition, progress in (await self._log.committed(reader)).items():
                last = (await self._log.bounds(partition)).last.offset
                lags[reader] = lags.get(reader, 0) + last - progress.position.offset
        return lags

    def _partitions(self) -> Sequence[Partition]:
        return [p for domain in self._log.domains() for p in self._log.partitions(domain, self.channel)]

    def _reader(self, partition: Partition) -> str:
        return f"{partition.domain}/{self.name}"

    async def _look_after(self, partitions: Sequence[Partition]) -> None:
        for partition in set(partitions) - self._registered:
            # A reader that is new begins with all that is retained: facts count, however old they are.
            await self._log.register(self._reader(partition), {partition: await beginning(self._log, partition)})
            self._registered.add(partition)
        await asyncio.gather(*map(self._hold, partitions))

    async def _hold(self, partition: Partition) -> None:
        """Take or renew a lease, and see to it that its partition is read exactly as long as it is held."""
        asked_at = asyncio.get_running_loop().time()
        held = self._held.get(partition)
        if held is not None and held.task.done():
            self._note_end(held)
            held = None
        try:
            lease = await self._log.lease(self._reader(partition), partition, self._owner, self._lease_ms)
        except LeaseHeld:
            if held is not None:
                await self._let_go(held)
            return
        except Unavailable:
            return  # it is held until it lapses, and the lane checks that
        if held is not None and held.lease.fence != lease.fence:
            await self._let_go(held, give_back=False)
            held = None
        self._good_until[partition] = asked_at + self._lease_ms / 1_000 * LAPSES_EARLY
        if held is not None:
            held.lease = lease
            return
        claim = Claim(lease.reader, partition, lease.fence, lambda: self._check(partition))
        lane = FactLane(claim, self._handler, self._tools)
        lane.outcomes = self.outcomes
        self._held[partition] = Held(lease, lane, asyncio.create_task(lane()))

    def _check(self, partition: Partition) -> None:
        if asyncio.get_running_loop().time() > self._good_until[partition]:
            raise Fenced(f"the lease on {partition} may have lapsed: nothing is done there before it is held again")

    def _note_end(self, held: Held) -> None:
        """A lane has ended by itself: it is fenced, or it has a fault. It begins anew where its place was committed."""
        error = held.task.exception()
        self._registered.discard(held.lease.partition)  # somebody may have removed the reader
        if not isinstance(error, Fenced):
            logger.error("lane_failed", reader=held.lease.reader, partition=str(held.lease.partition), exc_info=error)
        self._held.pop(held.lease.partition, None)

    async def _let_go(self, held: Held, give_back: bool = True) -> None:
        """Stop reading a partition; what was handled is committed if it still can be."""
        self._held.pop(held.lease.partition, None)
        held.task.cancel()
        await asyncio.gather(held.task, return_exceptions=True)
        try:
            async with asyncio.timeout(self._lease_ms / 4_000):
                await held.lane.commit()
                if give_back:
                    await self._log.release(held.lease)
        except (IotSphereError, TimeoutError) as error:
            logger.info("lease_not_given_back", reader=held.lease.reader, error=str(error))
