"""One shared subscription in this process: its members, and the reading of the partitions that are held here.

Entries come live from the feed as long as the members take them; a partition that has fallen behind is read from the
log. There is one reader per partition, never one per member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...entities.errors import Unavailable
from ...entities.position import Partition, Position
from ...entities.share import Share
from ...entities.topic import key_of
from ..ports.message_log import Slice
from .crew import Crew, Seat
from .lane import Lane
from .leases import ShareLeases, ShareTools

READ_ENTRIES: Final = 500
READ_BYTES: Final = 256 * 1024
RETRY_S: Final = 0.25
KNOWN_TOPICS: Final = 65_536


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """Bounds of shared subscriptions.

    ``queue_bytes``: what may wait for one member. ``patience``: seconds until others take over what a member does not
    pull. ``linger``: seconds that a member which has left has for what it had pulled. ``expiry``: ms that a group
    outlives its last member. ``groups``: at most in a domain.
    """

    queue_bytes: int = 256 * 1024
    patience: float = 5.0
    linger: float = 10.0
    expiry: int = 7 * 24 * 3_600_000
    groups: int = 1_000


class ShareGroup:
    """A group with members here. ``failed``: a fault of the reading, raised by the next ``tick``."""

    def __init__(self, share: Share, partitions: list[Partition], tools: ShareTools, settings: ShareSettings) -> None:
        self.share = share
        self.crew = Crew()
        self.leases = ShareLeases(share.reader, partitions, tools, self._opened, self._dropped)
        self.failed: BaseException | None = None
        self._tools = tools
        self._settings = settings
        self._keys: dict[str, str | None] = {}
        self._pumps: dict[Lane, asyncio.Task[None]] = {}
        self._taps: dict[Lane, Callable[[], None]] = {}
        self._left: dict[Seat, float] = {}
        self._turn = asyncio.Lock()

    # -- members ------------------------------------------------------------------------------------------------------

    def seat(self, name: str, ready: Callable[[], None]) -> Seat:
        """Let a member take part; an earlier one of this name is gone then."""
        for former in self.crew:
            if former.name == name:
                self.leave(former, gone=True)
        seat = Seat(name, ready, self._wake_all, self._settings.queue_bytes)
        self.crew.join(seat)
        self._wake_all()
        return seat

    def leave(self, seat: Seat, *, gone: bool) -> None:
        """Give a member nothing more; when it is ``gone``, what it had pulled goes to others at once."""
        self.crew.leave(seat)
        self._take_back(seat)
        if gone or not seat.flying:
            for handout in seat.ground():
                handout.lane.take_back(handout)
            self.crew.forget(seat)
            self._left.pop(seat, None)
        else:
            self._left.setdefault(seat, self._tools.monotonic())
        self._wake_all()

    def _take_back(self, seat: Seat) -> None:
        for handout in seat.withdraw():
            handout.lane.take_back(handout)

    @property
    def idle(self) -> bool:
        """Whether it has no members, and nothing that former ones may still settle."""
        return not len(self.crew) and not self._left

    # -- the clock ----------------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Look after members and leases, commit. Raises LogUnavailable."""
        if self.failed is not None:
            raise self.failed
        now = self._tools.monotonic()
        for seat in self.crew:
            if seat.look(now, self._settings.patience):
                self._take_back(seat)
        for seat, since in list(self._left.items()):
            if not seat.flying or now - since >= self._settings.linger:
                self.leave(seat, gone=True)
        async with self._turn:
            await self.leases.commit()
            await self.leases.remember()
            self.leases.share_fairly()
            await self.leases.renew()
            await self._acquire()
        self._wake_all()
        self.crew.tell([seat for seat in self.crew if seat.waiting])  # they wait where a lease was renewed late

    async def acquire(self) -> None:
        """Take what may be taken now, without waiting for the next tick. Raises LogUnavailable."""
        async with self._turn:
            await self._acquire()

    async def _acquire(self) -> None:
        if len(self.crew):
            await self.leases.acquire()

    async def close(self) -> None:
        """Commit, and let the partitions go. Raises LogUnavailable."""
        try:
            async with self._turn:
                await self.leases.give_all()
        finally:
            pumps = list(self._pumps.values())
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _opened(self, partition: Partition, start: Position) -> Lane:
        lane = Lane(partition, start, self.crew, self._key_of, self._wake)
        self._taps[lane] = self._tools.feed.tap(partition, self._tap(lane))
        self._wake(lane)
        return lane

    def _dropped(self, lane: Lane) -> None:
        self._taps.pop(lane)()

    def _key_of(self, topic: str) -> str | None:
        try:
            return self._keys[topic]
        except KeyError:
            if len(self._keys) >= KNOWN_TOPICS:
                self._keys.clear()
            key = self._keys[topic] = key_of(topic) if self.share.filter.matches(topic) else None
            return key

    def _tap(self, lane: Lane) -> Callable[[Slice, Position], None]:
        def live(piece: Slice, before: Position) -> None:
            if lane.read == before and lane.wants_more:
                lane.take(piece, self._tools.clock.now())
            else:
                self._wake(lane)

        return live

    def _wake_all(self) -> None:
        for lane in self.leases.lanes.values():
            self._wake(lane)

    def _wake(self, lane: Lane) -> None:
        if lane.held and lane not in self._pumps:
            pump = self._pumps[lane] = asyncio.get_running_loop().create_task(self._pump(lane))
            pump.add_done_callback(self._ended)

    def _ended(self, pump: asyncio.Task[None]) -> None:
        if not pump.cancelled() and (error := pump.exception()) is not None:
            self.failed = error

    async def _pump(self, lane: Lane) -> None:
        try:
            while lane.held and not lane.broken:
                try:
                    if not await self._step(lane):
                        return
                except Unavailable:
                    await asyncio.sleep(RETRY_S)  # the publisher counts and reports the log's absence
        finally:
            del self._pumps[lane]

    async def _step(self, lane: Lane) -> bool:
        """Read once for who was held back, and once further on; tells whether there may be more to do."""
        log, now = self._tools.log, self._tools.clock.now
        moved = False
        after = lane.again()
        if after is not None:
            piece = await log.read(lane.partition, after, READ_ENTRIES, READ_BYTES)
            if lane.held:
                lane.retake(after, piece, now())
            moved = True
        after = lane.read
        if lane.wants_more and self._tools.feed.positions[lane.partition] > after:
            piece = await log.read(lane.partition, after, READ_ENTRIES, READ_BYTES)
            if lane.held and lane.read == after:
                lane.take(piece, now())
            moved = moved or lane.read != after
        return moved
