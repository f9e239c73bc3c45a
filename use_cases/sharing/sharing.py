"""Shared subscriptions: each message of a filter goes to one member of a group, and again to another if it was not taken.

The group's place is a registered reader's, so it outlives every member and every crash: retention waits for it, and the
ledger says what became of each message. Order is kept per key (device, user, else topic).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

import structlog

from ...entities.errors import Unavailable
from ...entities.message import Entry
from ...entities.principal import Principal
from ...entities.share import Share
from ..feed import Feed
from ..ports.clock import Clock
from ..ports.documents import Documents
from ..ports.message_log import MessageLog
from .crew import Handout, Seat
from .group import ShareGroup, ShareSettings
from .leases import ShareTools
from .register import ShareRegister

logger = structlog.get_logger("iotsphere.sharing")

TICK_S: Final = 0.3
SLOW_EVERY: Final = 100


class ShareMember:
    """One client's part in a group, as its door sees it. All methods return at once."""

    def __init__(self, sharing: Sharing, group: ShareGroup, seat: Seat) -> None:
        self._sharing = sharing
        self._group = group
        self._seat = seat

    @property
    def share(self) -> Share:
        """What it is a part of."""
        return self._group.share

    def pull(self, now: int) -> tuple[Handout, Entry] | None:
        """The next message to send, under way from now on. Call it only when it can be sent. ``now``: ms."""
        return self._seat.pull(now)

    @staticmethod
    def settle(handout: Handout) -> None:
        """The client has acknowledged or refused it, or (QoS 0) its socket has it. Safe to repeat."""
        handout.lane.settle(handout)

    @property
    def under_way(self) -> bool:
        """Whether something is sent and not settled."""
        return bool(self._seat.flying)

    def leave(self) -> None:
        """Take no more; what is under way may still be settled. Safe to repeat."""
        self._group.leave(self._seat, gone=False)

    def end(self) -> None:
        """The client is gone: what is under way goes to others at once. Safe to repeat."""
        self._group.leave(self._seat, gone=True)


class Sharing:
    """The groups that have members in this process. Its clockwork is ``run``.

    ``monotonic``: seconds that never go back; the event loop's by default.
    """

    def __init__(
        self, log: MessageLog, documents: Documents, feed: Feed, settings: ShareSettings | None = None, *,
        monotonic: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings or ShareSettings()
        self.failures = 0
        owner = secrets.token_hex(8)
        self._clock: Clock = feed.clock
        self._tools = ShareTools(
            log, documents, feed, feed.clock, owner, monotonic or (lambda: asyncio.get_running_loop().time())
        )
        self._register = ShareRegister(log, documents, feed.clock, self.settings.expiry, self.settings.groups)
        self._groups: dict[str, ShareGroup] = {}
        self._sought: set[str] = set()
        self._joining = asyncio.Lock()
        self._ticks = 0

    @property
    def groups(self) -> int:
        """How many groups have members here."""
        return len(self._groups)

    async def join(self, principal: Principal, share: Share, name: str, ready: Callable[[], None]) -> ShareMember:
        """Take part in a group, which begins at the present end when it is new.

        ``name`` is the member's among all; the same one again needs the earlier membership to have left. ``ready`` is
        called when there is something to pull. Raises Forbidden, TooManyGroups, Conflict and LogUnavailable.
        """
        principal.require("subscribe", (share.filter,))
        async with self._joining:
            group = self._groups.get(share.reader)
            if group is None:
                await self._register.open(share)
                group = ShareGroup(share, self._register.partitions(share), self._tools, self.settings)
                self._groups[share.reader] = group
            seat = group.seat(name, ready)
        try:
            await group.acquire()
        except Unavailable as error:
            logger.warning("leases_postponed", code=error.code)  # the next tick tries again
        return ShareMember(self, group, seat)

    # -- the clockwork ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew leases, look for what other processes left, commit; until cancelled. A log that is away is waited for."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self.tick()
            except Unavailable as error:
                self.failures += 1
                logger.warning("sharing_waits", code=error.code)

    async def tick(self) -> None:
        """Do what is due now. Raises LogUnavailable."""
        self._ticks += 1
        groups = list(self._groups.values())
        if groups:
            await self._look_around(groups)
        results = await asyncio.gather(*(group.tick() for group in groups), return_exceptions=True)
        for group in groups:
            if group.idle:
                await self._close(group)
        for error in results:
            if isinstance(error, BaseException):
                raise error
        if self._ticks % SLOW_EVERY == 1:
            for group in groups:
                await self._register.seen(group.share.reader)
            await self._register.expire()

    async def _look_around(self, groups: list[ShareGroup]) -> None:
        """Say for which groups this process wants its part, and see who else does."""
        now, owner = self._clock.now(), self._tools.owner
        seekers = await self._register.seekers()
        contested = set()
        for group in groups:
            group.leases.others = seekers.get(group.share.reader, set()) - {owner}
            if len(group.crew) and (group.leases.others or group.leases.contested > now):
                contested.add(group.share.reader)
        if contested:
            await self._register.seek(owner, contested, now + self._tools.ttl)
        if gone := self._sought - contested:
            await self._register.unseek(owner, gone)
        self._sought = contested

    async def _close(self, group: ShareGroup) -> None:
        async with self._joining:
            if not group.idle:
                return
            del self._groups[group.share.reader]
            await group.close()
            await self._register.left(group.share.reader)
            if group.share.reader in self._sought:
                self._sought.discard(group.share.reader)
                await self._register.unseek(self._tools.owner, [group.share.reader])

    async def close(self) -> None:
        """Commit everything and give all partitions back. Raises LogUnavailable."""
        for group in list(self._groups.values()):
            for seat in group.crew:
                group.leave(seat, gone=True)
            await self._close(group)
