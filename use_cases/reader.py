"""Readers: how a subscription catches up from the log, and how it joins the live feed without a gap.

A reader stands, per partition, either live (the feed hands it each batch) or behind (it reads the log by itself). It
changes over in one step of the event loop: when what it has read reaches the feed's position, so nothing falls in
between and nothing comes twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ..entities.message import Entry, StoredEntries
from ..entities.position import Gap, Partition, Position
from ..entities.subscription import Subscription
from .catch_up import CatchUp
from .feed import Batch, Feed, beginning
from .flow_control import MessageFlowControlUseCase
from .playback import Playback
from .ports.message_log import MessageLog
from .round import Round
from .sink import Sink

NOWHERE: Final = Position(0, 0)
NOTHING_DUE: Final[dict[Partition, Position]] = {}  # shared by all, never written to


class Reader:
    """One running subscription.

    ``held``: where a client must begin again that is lost while last values go out. ``behind``: where it stands in the
    partitions in which it is not live. ``playback``: what plays the past to it, until it has reached the present.
    ``take_whole``: takes a round at once, or nothing of it (False), where the sink can.
    """

    def __init__(
        self, subscription: Subscription, sink: Sink, feed: Feed, log: MessageLog, flow: MessageFlowControlUseCase
    ) -> None:
        self.subscription = subscription
        self.sink = sink
        self.pace = flow.pace(subscription.max_rate)
        self.stale: dict[str, Entry] = {}
        self.held: Mapping[Partition, Position] | None = None
        self.superseded = 0
        self.playback: Playback | None = None
        self.passed: Callable[[Entry], None] | None = None  # told what had expired, perhaps more than once
        self.missed_at_start: list[Gap] = []
        self.take_whole: Callable[[Reader, Round], bool] | None = None
        self._feed = feed
        self._log = log
        self._flow = flow
        self.behind: dict[Partition, Position] = {}
        self._ahead: dict[Partition, Position] = {}
        self._due = NOTHING_DUE
        self.group = feed.join(self, subscription.filters)
        self._partitions = self.group.partitions
        self._room: asyncio.Event | None = None
        self._pump: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lagging = self.closed = False

    def positions(self) -> Mapping[Partition, Position] | None:
        """Where it stands in each of its partitions, everything delivered so far included.

        None while the first last values are still to be sent: a client that is lost then has to begin again.
        """
        if self.stale:
            return self.held
        stands = self._stands()
        return {p: self.behind.get(p) or max(stands[p], self._ahead.get(p, NOWHERE)) for p in self._partitions}

    def _stands(self) -> Mapping[Partition, Position]:
        """Where the feed stands, less what the group has yet to hand out, and of a round what is still due to it."""
        pending = self.group.pending
        if pending is None and not self._due:
            return self._feed.positions
        return {**self._feed.positions, **(pending.before if pending is not None else NOTHING_DUE), **self._due}

    @property
    def is_live(self) -> bool:
        """True when it stands exactly where the feed stands, in every partition, with nothing pending."""
        if self.behind or self.stale or self._due or self.group.pending is not None:
            return False
        return all(self._feed.positions[partition] >= ahead for partition, ahead in self._ahead.items())

    @property
    def lag(self) -> int:
        """About how many messages of the log lie between this reader and the feed."""
        return self._feed.lag(self.behind)

    # -- starting -----------------------------------------------------------------------------------------------------

    def start_live(self) -> None:
        """Begin where the feed stands."""
        self.group.go_live(self, self._partitions)

    def start_latest(self) -> None:
        """Begin where the feed stands, with every last value still to be sent."""
        self.stale = {entry.record.topic: entry for entry in self._last_values()}
        if self.subscription.policy == "complete" and self.stale:
            self.behind = {partition: self._feed.positions[partition] for partition in self._partitions}
            self._wake()
            return
        self.start_live()
        if self.stale:
            self._wake()

    def start_conflated(self, positions: Mapping[Partition, Position]) -> None:
        """Begin where the feed stands, with the last value of each topic that has changed since the positions."""
        self.held = {p: positions.get(p, NOWHERE) for p in self._partitions}
        self.stale = {
            entry.record.topic: entry
            for entry in self._last_values()
            if entry.position > positions.get(entry.record.partition, NOWHERE)
        }
        self.start_live()
        if self.stale:
            self._wake()

    async def start_after(self, positions: Mapping[Partition, Position]) -> None:
        """Begin after the given positions; learns at once what is missing."""
        for partition in self._partitions:
            after = positions.get(partition, NOWHERE)
            if after == NOWHERE:
                after = await beginning(self._log, partition)
            first = await self._log.read(partition, after, 1)
            if first.gap is not None:
                self.missed_at_start.append(first.gap)
                after = first.entries[0].position.before if first.entries else first.end
            self.behind[partition] = after
        self._wake()

    # -- live ---------------------------------------------------------------------------------------------------------

    def take(self, batch: Batch, before: Position) -> None:
        """Get a batch from the feed, which stood at ``before`` in this partition."""
        partition = batch.partition
        if self._ahead:
            ahead = self._ahead.get(partition)
            if ahead is not None:
                if batch.end >= ahead:
                    del self._ahead[partition]
                before = max(before, ahead)
                entries = [entry for entry in batch.entries if entry.position > ahead]
                if not entries:
                    return
                batch = Batch(partition, entries, batch.end)
        if self.stale:
            self._flow.conflate(self, batch)
            return
        if self._flow.offer(self, batch):
            return
        if self.subscription.policy == "latest":
            stands = self._stands()
            self.held = {**{p: stands[p] for p in self._partitions}, partition: before}
            self._flow.conflate(self, batch)
            self._fell_behind()
        else:
            self.group.fall_behind(self, (partition,))
            self.behind[partition] = before
            self._fell_behind()

    def in_rounds(self, take_whole: Callable[[Reader, Round], bool]) -> None:
        """From now on have ``take_whole`` called with whole rounds, wherever the reader is live and without a pace."""
        self.take_whole = take_whole
        self.group.in_rounds(self._feed.fail)

    def take_round(self, whole: Round, lagging: bool) -> None:
        """Get a round from the group. ``lagging``: the reader is not live in all partitions of the group."""
        if self.closed:
            return
        if self._ahead:
            feed = self._feed.positions
            self._ahead = {p: ahead for p, ahead in self._ahead.items() if p in whole.before or feed[p] < ahead}
        take_whole = self.take_whole
        if lagging or self.stale or self._ahead or self.pace is not None:
            take_whole = None
        if take_whole is not None and take_whole(self, whole):
            self._flow.delivered += whole.count
            return
        last = {batch.partition: place for place, batch in enumerate(whole.batches)}
        self._due = dict(whole.before)
        try:
            for place, batch in enumerate(whole.batches):
                before = self._due.pop(batch.partition)
                if place < last[batch.partition]:
                    self._due[batch.partition] = batch.end
                if self.group.is_live(self, batch.partition) and not self.closed:
                    self.take(batch, before)
        finally:
            self._due = NOTHING_DUE

    def miss(self, gap: Gap, end: Position) -> None:
        """Get told by the feed that entries are gone, before a slice that ends at ``end``."""
        ahead = self._ahead.get(gap.partition)
        if ahead is None or ahead.epoch != end.epoch or ahead.offset < gap.last:
            self.sink.missed(self, gap)

    def _fell_behind(self) -> None:
        if not self._lagging:
            self._lagging = True
            self.sink.lagging(self, max(1, self.lag or len(self.stale)))
        self._wake()

    # -- catching up --------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """The sink has room again."""
        if self._room is not None:
            self._room.set()
        if self.behind or self.stale:
            self._wake()

    def resume_in(self, seconds: float) -> None:
        """Try again after a while, because of the pace."""
        if self._timer is None and not self.closed:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.resume()

    def _wake(self) -> None:
        if self._pump is None and not self.closed:
            self._pump = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        try:
            await CatchUp(self, self._feed, self._log).run()
            if self._lagging and not self.closed:
                self._lagging = False
                self.sink.lagging(self, 0)
        finally:
            self._pump = None

    def join(self, partition: Partition, end: Position) -> None:
        """Be live in a partition of which everything up to ``end`` has been read, which the feed has reached or will."""
        self.group.flush()  # what waits there has been read from the log
        del self.behind[partition]
        if end > self._feed.positions[partition]:
            self._ahead[partition] = end
        self.group.go_live(self, (partition,))

    def offer(self, batch: Batch) -> bool:
        """Deliver a batch if the sink and the pace allow it now; False: try again after ``until_room``."""
        return self._flow.offer(self, batch)

    def supersede(self, count: int) -> None:
        """Count values that newer ones replaced."""
        self.superseded += count
        self._flow.superseded += count

    async def until_room(self) -> None:
        """Wait until it may be tried again."""
        room = self._room = self._room or asyncio.Event()
        room.clear()
        await room.wait()

    def _last_values(self) -> list[Entry]:
        known, now = self._feed.last_values.latest(self.subscription.filters), self._feed.clock.now()
        return [entry for entry in known if not 0 < entry.record.expires_at <= now]

    def wanted(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Those that it selects and that have not expired."""
        now, selects = self._feed.clock.now(), self.group.selects
        if isinstance(entries, StoredEntries):
            wanted: Sequence[Entry]
            wanted, expired = entries.select(selects, now)
        else:
            chosen = [entry for entry in entries if selects(entry.record.topic)]
            wanted = [entry for entry in chosen if not 0 < entry.record.expires_at <= now]
            expired = [entry for entry in chosen if 0 < entry.record.expires_at <= now]
        self._feed.expired += len(expired)
        if self.passed is not None:
            for entry in expired:
                self.passed(entry)
        return wanted

    def close(self) -> None:
        """End the subscription. Nothing is delivered afterwards."""
        if self.closed:
            return
        self.closed = True
        self._feed.leave(self, self.group)
        if self._timer is not None:
            self._timer.cancel()
        if self._pump is not None:
            self._pump.cancel()
        self.stale.clear()
