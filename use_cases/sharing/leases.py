"""Which partitions of a shared subscription this process reads: leases, a fair part, and committed progress.

A partition is read by one process at a time. A lease that is not renewed lapses within a second; then any process with
members goes on from the committed position. A partition is given to another process only when nothing of it is under
way, so the order of each key outlives the move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from ...entities.errors import Fenced, LeaseHeld, RequestInvalid
from ...entities.position import Partition, Position
from ..feed import Feed
from ..ports.clock import Clock
from ..ports.documents import Documents
from ..ports.message_log import Lease, MessageLog, Tally
from .lane import Lane
from .marks import Marks

MARKS: Final = "share-marks"
REMEMBER_EVERY_S: Final = 5.0
SURPLUS_FOR: Final = 1_500
GIVE_UP_WITHIN: Final = 5_000
COOL_DOWN: Final = 2_000
CONTESTED_FOR: Final = 3_000


@dataclass(frozen=True, slots=True)
class ShareTools:
    """What a group works with. ``owner``: this process, as leases name it. ``monotonic``: seconds. ``ttl``: ms."""

    log: MessageLog
    documents: Documents
    feed: Feed
    clock: Clock
    owner: str
    monotonic: Callable[[], float]
    ttl: int = 1_000


class ShareLeases:
    """The partitions that are held here, as lanes. All coroutines raise LogUnavailable; await one at a time.

    ``others``: the processes that want a part of this group now; set from outside. ``contested``: until when (ms) this
    process has to say that it is one of them. ``opened`` makes the lane of a partition, ``dropped`` hears of its end.
    """

    def __init__(
        self,
        reader: str,
        partitions: Sequence[Partition],
        tools: ShareTools,
        opened: Callable[[Partition, Position], Lane],
        dropped: Callable[[Lane], None],
    ) -> None:
        self.lanes: dict[Partition, Lane] = {}
        self.others: set[str] = set()
        self.contested = 0
        self._reader = reader
        self._partitions = partitions
        self._tools = tools
        self._opened = opened
        self._dropped = dropped
        self._leases: dict[Lane, Lease] = {}
        self._remembered: dict[Lane, float] = {}
        self._stored: set[str] = set()
        self._surplus_since = 0
        self._closing_since = 0
        self._not_before: dict[Partition, int] = {}

    async def renew(self) -> None:
        """Keep what is held, unless it is broken, or free to go."""
        now = self._tools.clock.now()
        for lane in list(self.lanes.values()):
            if lane.broken or (lane.closing and not lane.under_way):
                await self.commit()
                await self._let_go(lane)
                self._not_before[lane.partition] = now if lane.broken else now + COOL_DOWN
        held = list(self.lanes.values())
        results = await asyncio.gather(*(self._try(lane.partition) for lane in held), return_exceptions=True)
        for lane, lease in zip(held, results, strict=True):
            if isinstance(lease, LeaseHeld):
                self._drop(lane)
                self.contested = now + CONTESTED_FOR
            elif isinstance(lease, BaseException):
                raise lease
            else:
                await self._hold(lease)

    async def acquire(self) -> None:
        """Take free partitions, up to this process's part."""
        now = self._tools.clock.now()
        for partition in self._partitions:
            if len(self.lanes) >= self.quota:
                return
            if partition not in self.lanes and self._not_before.get(partition, 0) <= now:
                try:
                    await self._hold(await self._try(partition))
                except LeaseHeld:
                    self.contested = now + CONTESTED_FOR

    async def give_all(self) -> None:
        """Commit, and let everything go."""
        try:
            await self.commit()
        finally:
            for lane in list(self.lanes.values()):
                await self._let_go(lane)

    # -- fairness -----------------------------------------------------------------------------------------------------

    @property
    def quota(self) -> int:
        """How many partitions are this process's part."""
        owners = sorted({self._tools.owner, *self.others})
        count = len(owners)
        turn = (owners.index(self._tools.owner) + crc32(self._reader.encode())) % count
        return len(self._partitions) // count + (turn < len(self._partitions) % count)

    def share_fairly(self) -> None:
        """Begin to give up what is more than the fair part, or stop where it cannot be given up."""
        now = self._tools.clock.now()
        closing = [lane for lane in self.lanes.values() if lane.closing]
        if closing and now - self._closing_since > GIVE_UP_WITHIN:
            for lane in closing:  # a member still has some of it, and order forbids to leave that behind
                lane.closing = False
            closing = []
            self._surplus_since = now
        surplus = len(self.lanes) - len(closing) - self.quota
        if surplus <= 0:
            self._surplus_since = 0
        elif not self._surplus_since:
            self._surplus_since = now
        elif now - self._surplus_since >= SURPLUS_FOR:
            self._closing_since = now
            for lane in [lane for lane in self.lanes.values() if not lane.closing][-surplus:]:
                lane.close()

    # -- one lease ----------------------------------------------------------------------------------------------------

    async def _try(self, partition: Partition) -> Lease:
        return await self._tools.log.lease(self._reader, partition, self._tools.owner, self._tools.ttl)

    async def _hold(self, lease: Lease) -> None:
        lane = self.lanes.get(lease.partition)
        if lane is not None and lane.fence != lease.fence:
            self._drop(lane)  # somebody else had it in between
            lane = None
        if lane is None:
            progress = (await self._tools.log.committed(self._reader)).get(lease.partition)
            if progress is None:
                await self._tools.log.release(lease)
                return
            known = await self._tools.documents.get(MARKS, self._place(lease.partition))
            lane = self._opened(lease.partition, progress.position)
            if known is not None:
                lane.past = Marks.read(known.value)
                self._stored.add(known.key)
            lane.fence = lease.fence
            self.lanes[lease.partition] = lane
        lane.until = lease.expires_at
        self._leases[lane] = lease

    def _drop(self, lane: Lane) -> None:
        """The right to read it is lost."""
        lane.end()
        self.lanes.pop(lane.partition, None)
        self._leases.pop(lane, None)
        self._remembered.pop(lane, None)
        self._dropped(lane)

    async def _let_go(self, lane: Lane) -> None:
        lease = self._leases.get(lane)
        if not lane.broken:
            await self._remember(lane)
        self._drop(lane)
        if lease is not None:
            await self._tools.log.release(lease)

    # -- progress -----------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Make durable what is settled."""
        moved = {lane: settled for lane in self.lanes.values() if (settled := lane.settled()) is not None}
        if not moved:
            return
        try:
            await self._commit(moved)
        except Fenced:
            for lane, settled in moved.items():
                try:
                    await self._commit({lane: settled})
                except Fenced:
                    self._drop(lane)
        except RequestInvalid:  # the reader was removed by hand: its members are here, so it begins where they are
            await self._tools.log.register(self._reader, {lane.partition: at for lane, (at, _) in moved.items()})

    async def remember(self) -> None:
        """Make durable, every few seconds, what is settled behind a message that nobody acknowledges.

        What else was settled than the committed position tells does not come again after a crash then. These are facts
        that stay true, so they need no fence.
        """
        now = self._tools.monotonic()
        for lane in list(self.lanes.values()):
            if now - self._remembered.setdefault(lane, now) >= REMEMBER_EVERY_S:
                self._remembered[lane] = now
                await self._remember(lane)

    async def _remember(self, lane: Lane) -> None:
        place, stored = self._place(lane.partition), lane.scattered()
        if stored is not None:
            await self._tools.documents.put(MARKS, place, stored)
            self._stored.add(place)
        elif place in self._stored:
            await self._tools.documents.delete(MARKS, place)
            self._stored.discard(place)

    def _place(self, partition: Partition) -> str:
        return f"{self._reader}|{partition.channel}/{partition.number}"

    async def _commit(self, moved: dict[Lane, tuple[Position, Tally]]) -> None:
        progress = {lane.partition: settled for lane, settled in moved.items()}
        await self._tools.log.commit(self._reader, progress, {lane.partition: lane.fence for lane in moved})
        for lane, (position, _) in moved.items():
            lane.committed(position)
