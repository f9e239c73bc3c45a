"""Change propagation: every change of the watched collections becomes messages in the log, once, in order per document.

One process at a time does it, under a lease. The place in the change feed is saved after the append, so a crash repeats
changes rather than losing them; after a restart the messages that the log holds already are left out. When the database
no longer knows what followed the saved place, every document is compared with what was told last: what differs is
told, and the gap is announced once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from ...entities.errors import ChangesLost, Fenced, LeaseHeld, Unavailable
from ...entities.message import Record
from ..ports.clock import Clock
from ..ports.database import Change, Collection, Database
from ..ports.documents import Documents
from ..ports.message_log import MessageLog
from ..publish import MessagePublishUseCase
from .batches import BATCH, batches_of
from .hold import HEARTBEATS, Hold
from .place import Checkpoint
from .told import Told, digest_of, note_of, same_state

log = structlog.get_logger("iotsphere.changes")

RETRY_LEASE_S: Final = 0.5
SILENT_AFTER_S: Final = 30.0
SAVE_QUIET_EVERY_S: Final = 10.0


class Teller(Protocol):
    """Turns changes into messages. ``records`` gives the same ids for the same token."""

    @property
    def channels(self) -> frozenset[str]:
        """The channels of the log that its messages go to."""
        ...

    def may_be_own(self, message_id: str) -> bool:
        """False for ids that ``records`` and ``lost`` never give."""
        ...

    def records(self, change: Change) -> Sequence[Record]:
        """The messages of one change, in their order; none for what concerns nobody."""
        ...

    def lost(self, since: int, until: int, told: int) -> Record:
        """The alert that changes between two times (ms) were told as their outcome only; ``told``: how many differed."""
        ...


@dataclass(frozen=True, slots=True)
class ChangeStores:
    """``collections``: the watched ones whose changes are told, and what is in them at the first start too.

    ``further``: watched ones of which only changes are told, not what was there before.
    """

    database: Database
    log: MessageLog
    documents: Documents
    collections: Sequence[Collection]
    further: Sequence[Collection] = ()


Keep = Callable[[Sequence[Change]], Awaitable[None]]


class PropagateChanges:
    """``run`` never returns. ``keep`` is given each batch of changes after its messages are in the log, perhaps again.

    ``told``: messages appended; ``repeated``: those that the log held already; ``lag``: ms between a change and its
    message; ``gaps``: how often changes were lost.
    """

    def __init__(
        self, stores: ChangeStores, publish: MessagePublishUseCase, tell: Teller, keep: Keep, clock: Clock
    ) -> None:
        self._database = stores.database
        self._further = [each.name for each in stores.further]
        self._names = [*(each.name for each in stores.collections if each.watched), *self._further]
        self._place = Checkpoint(stores.documents, stores.log, clock, tell.channels)
        self._last = Told(stores.database, stores.documents, clock)
        self._publish = publish
        self._tell = tell
        self._keep = keep
        self._clock = clock
        self._hold = Hold(stores.log, stores.database, clock)
        self._already: set[str] = set()
        self._states: dict[str, Record] = {}  # by topic, what was told last and perhaps not noted
        self._left = 0  # changes until ``_already`` can hold none of them any more
        self._ahead: dict[tuple[str, str], tuple[int, str | None]] = {}
        self._heard_at: float | None = None
        self.told = self.repeated = self.lag = self.gaps = 0

    @property
    def is_listening(self) -> bool:
        """Whether this process is the one that listens."""
        return self._heard_at is not None

    async def ready(self) -> None:
        """Raise Unavailable when this process is the one that listens and has heard nothing for half a minute."""
        if self._heard_at is not None and asyncio.get_running_loop().time() - self._heard_at > SILENT_AFTER_S:
            raise Unavailable("the change feed of the database is silent; see the log of the process with role changes")

    async def run(self) -> None:
        """Propagate changes for ever, or wait until the process that does it gives way. Raises Unavailable."""
        while True:
            try:
                lease = await self._hold.take()
            except LeaseHeld:
                await asyncio.sleep(RETRY_LEASE_S)
                continue
            try:
                async with self._hold.kept(lease):
                    self._heard_at = asyncio.get_running_loop().time()
                    await self._propagate()
            except (LeaseHeld, Fenced) as error:
                log.warning("listener_gives_way", code=error.code)
            finally:
                self._heard_at = None

    # -- following ----------------------------------------------------------------------------------------------------

    async def _propagate(self) -> None:
        token = await self._place.load()
        new = [name for name in self._names if name not in self._place.names]
        if token is None:
            # Saved before anything is told: what a crash interrupts is found again, and what goes meanwhile is told.
            token = await self._database.now()
            await self._place.save(token, {})
        else:
            self._already, self._states = await self._place.appended_since(self._tell.may_be_own)
            self._left = 2 * BATCH
        if new:
            at = self._place.at if self._place.names else 0  # the same when a crash lets the first start be done again
            await self._last.reconcile([name for name in new if name in self._further], at, _tell_nobody)
            await self._last.reconcile([name for name in new if name not in self._further], at, self._tell_outcomes)
            self._place.names = frozenset(self._names)
            await self._place.save(token, {})
        while True:
            try:
                await self._follow(token)
            except ChangesLost as error:
                token = await self._begin_anew(error)

    async def _begin_anew(self, error: ChangesLost) -> str:
        """After a loss: tell what is different now, and once that something happened in between."""
        self.gaps += 1
        since = self._place.at
        log.error("change_history_lost", code=error.code, since=since, message=error.message)
        token = await self._database.now()
        told = await self._last.reconcile(self._names, since, self._tell_outcomes)
        await self._publish([self._tell.lost(since, self._clock.now(), told)])
        await self._place.save(token, {})
        return token

    async def _follow(self, token: str) -> None:
        loop = asyncio.get_running_loop()
        saved = loop.time()
        names = [*self._names, HEARTBEATS.name]
        async with aclosing(self._database.changes(token, names)) as changes, aclosing(batches_of(changes)) as batches:
            async for batch in batches:
                await self._hold.take()
                self._heard_at = loop.time()
                told = await self._carry_out(batch)
                if told or loop.time() - saved >= SAVE_QUIET_EVERY_S:
                    await self._place.save(batch[-1].token, told)
                    saved = loop.time()

    async def _carry_out(self, batch: Sequence[Change]) -> dict[str, bytes | None]:
        """Tell a batch; returns what was told last of each document that it touched."""
        changes: list[Change] = []
        told: dict[str, bytes | None] = {}
        for change in batch:
            if change.kind == "dropped":
                await self._append(changes)
                changes = []
                log.error("collection_dropped", collection=change.collection)
                await self._last.reconcile([change.collection], self._place.at, self._tell_outcomes)
            elif change.collection in self._names:
                whole = await self._completed(change)
                if not self._was_told(whole):
                    changes.append(whole)
                told.update((note_of(whole),))
            else:
                self.lag = max(0, self._clock.now() - change.at) if change.kind != "quiet" else 0
        await self._append(changes)
        return told

    async def _completed(self, change: Change) -> Change:
        """The change with the document as it is now, where the feed did not tell it: perhaps ahead of what follows."""
        if change.whole or change.kind == "delete":
            return change
        stored = await self._database.get(change.collection, change.key)
        if stored is None:  # it has gone meanwhile: its removal follows
            return change
        return change._replace(after=stored.body, revision=stored.revision)

    def _was_told(self, change: Change) -> bool:
        """Whether a look-up or a comparison has told this state, or a newer one, already."""
        place = change.collection, change.key
        if change.kind == "delete":
            self._ahead.pop(place, None)
            return False
        ahead = self._ahead.get(place)
        state = change.revision, digest_of(change.after)
        if not change.whole:
            self._ahead[place] = state
        elif ahead is not None and change.revision >= ahead[0]:
            del self._ahead[place]
        return ahead is not None and (state == ahead or change.revision < ahead[0])

    async def _tell_outcomes(self, changes: Sequence[Change]) -> int:
        """Tell documents as they are. What led there since the token was taken follows, and is not told again."""
        for change in changes:
            self._ahead[change.collection, change.key] = change.revision, digest_of(change.after)
        known = [change for change in changes if self._states and self._stands_told(change)]
        new = [change for change in changes if change not in known] if known else changes
        await self._append(new)
        await self._keep(known)
        return len(new)

    def _stands_told(self, change: Change) -> bool:
        """Whether this very state was told right before a crash, by the change that led there."""
        states = [record for record in self._tell.records(change) if record.retain]
        told = [self._states.get(record.topic) for record in states]
        return bool(states) and all(was and same_state(was, now) for was, now in zip(told, states, strict=True))

    async def _append(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        self.lag = max(0, self._clock.now() - changes[0].at)  # while it cannot be told, too
        records = [record for change in changes for record in self._tell.records(change)]
        new = [record for record in records if record.message_id not in self._already]
        self.repeated += len(records) - len(new)
        if new:
            appended = await self._publish(new)
            self.told += len(new) - len(appended.duplicates)
            self.repeated += len(appended.duplicates)
            self._place.passed(new, appended)
            for record in new if self._states else ():
                self._states.pop(record.topic, None)
        if self._already:
            self._left -= len(changes)
            if self._left <= 0:
                self._already = set()
        self.lag = max(0, self._clock.now() - changes[-1].at)
        await self._keep(changes)


async def _tell_nobody(_: Sequence[Change]) -> int:
    """What was there before anybody asked for it is no news."""
    return 0
