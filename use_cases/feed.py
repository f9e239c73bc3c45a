"""The feed: one reader of the whole log per process, which hands each entry to every subscription that wants it.

Subscriptions with equal filters form a group, so that an entry is matched and encoded once however many clients
listen. A reader is live in a partition as long as it takes what it is handed; one that does not leaves the partition
to read the log at its own pace (reader.py) and joins again where the feed stands.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..entities.errors import LeaseHeld
from ..entities.message import Entry
from ..entities.position import Gap, Partition, Position
from ..entities.topic import CHANNELS, TopicFilter
from .group import Group
from .last_values import LastValues
from .ports.clock import Clock
from .ports.message_log import MessageLog, Slice, Tally
from .topic_index import TopicIndex

if TYPE_CHECKING:
    from .reader import Reader

SAVE_EVERY_S: Final = 2.0
SAVER_LEASE_MS: Final = 10_000
READER_NAME: Final = "last-values"
REMEMBERED_GAPS: Final = 1_000

Tap: TypeAlias = Callable[[Slice, Position], None]


class Batch:
    """Entries of one partition on their way to the readers of a group.

    ``end``: the position after them. ``values``: they are last values of topics, from anywhere before ``end`` and in no
    order, so no position lies between two of them. ``encoded``: shared by all sinks of the batch, so that each form of
    the entries is made once.
    """

    __slots__ = ("encoded", "end", "entries", "partition", "values")

    def __init__(self, partition: Partition, entries: Sequence[Entry], end: Position, values: bool = False) -> None:
        self.partition = partition
        self.entries = entries
        self.end = end
        self.values = values
        self.encoded: dict[object, Any] = {}


async def beginning(log: MessageLog, partition: Partition) -> Position:
    """The place before what is retained now, as a position that stays where it is when more is trimmed."""
    first = (await log.bounds(partition)).first
    return Position(first.epoch, first.offset - 1)


class Feed:
    """Follows the log of every domain, keeps the last values current, and serves the live readers.

    ``positions``: how far it came, per partition; what lies at or before them has been handed out.
    """

    def __init__(self, log: MessageLog, last_values: LastValues, clock: Clock) -> None:
        self._log = log
        self.clock = clock
        self.last_values = last_values
        self.positions: dict[Partition, Position] = {}
        self.version = 0
        self.entries_seen = 0
        self.expired = 0
        self.gaps: deque[Gap] = deque(maxlen=REMEMBERED_GAPS)
        self._index: TopicIndex[Group] = TopicIndex()
        self._groups: dict[tuple[TopicFilter, ...], Group] = {}
        self._spans: dict[tuple[str, frozenset[str]], tuple[Partition, ...]] = {}
        self._listeners: set[Callable[[Partition], None]] = set()
        self._taps: dict[Partition, dict[Tap, None]] = {}
        self._changed = asyncio.Event()
        self._saved: dict[Partition, Position] = {}
        self._owner = secrets.token_hex(8)
        self._fault: Exception | None = None

    async def start(self) -> None:
        """Load the last values and read the log up to its present end, so that ``latest`` is true from the start."""
        for domain in self._log.domains():
            await self._open(domain)

    async def _open(self, domain: str) -> None:
        saved = await self.last_values.load(domain)
        for partition in self._all_partitions(domain):
            if partition in self.positions:
                continue
            position = saved.get(partition) or await beginning(self._log, partition)
            while True:
                part = await self._log.read(partition, position, limit=2_000, max_bytes=1 << 22)
                for entry in part.entries:
                    self.last_values.apply(entry)
                if part.end == position:
                    break
                position = part.end
            self.positions[partition] = position
        await self._register(domain)

    def _all_partitions(self, domain: str) -> list[Partition]:
        return [partition for channel in CHANNELS for partition in self._log.partitions(domain, channel)]

    async def _register(self, domain: str) -> None:
        positions = {p: position for p, position in self.positions.items() if p.domain == domain}
        await self._log.register(f"{domain}/{READER_NAME}", positions)

    async def domains_changed(self) -> None:
        """Take up domains that were made after ``start``."""
        known = {partition.domain for partition in self.positions}
        for domain in self._log.domains():
            if domain not in known:
                await self._open(domain)
        self._changed.set()

    async def run(self) -> None:
        """Follow the log until cancelled."""
        while self._fault is None:
            self._changed.clear()
            follower = asyncio.ensure_future(self._follow())
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait((follower, changed), return_when=asyncio.FIRST_COMPLETED)
                if follower.done():
                    await follower
            finally:
                changed.cancel()
                follower.cancel()
                await asyncio.wait((follower, changed))
        raise self._fault

    def fail(self, error: Exception) -> None:
        """End ``run`` with a fault that came up while a reader was handed something."""
        self._fault = self._fault or error
        self._changed.set()

    async def _follow(self) -> None:
        async with aclosing(self._log.follow(dict(self.positions))) as slices:
            async for part in slices:
                self.dispatch(part)

    def dispatch(self, part: Slice) -> None:
        """Hand one slice to everybody who is live in its partition."""
        partition = part.partition
        before = self.positions[partition]
        self.positions[partition] = part.end
        self.version += 1
        touched: dict[Group, list[Entry]] = {}
        apply = self.last_values.apply
        match = self._index.match
        now = 0
        for entry in part.entries:
            apply(entry)
            record = entry.record
            if record.expires_at:
                now = now or self.clock.now()
                if record.expires_at <= now:
                    self.expired += 1
                    for group in match(record.topic):
                        for reader in group.live(partition):
                            if reader.passed is not None:
                                reader.passed(entry)
                    continue
            for group in match(record.topic):
                entries = touched.get(group)
                if entries is None:
                    touched[group] = [entry]
                else:
                    entries.append(entry)
        self.entries_seen += len(part.entries)
        if part.gap is not None:
            self.gaps.append(part.gap)
            for group in self._groups.values():
                if partition in group.partitions:
                    for reader in group.live(partition):
                        reader.miss(part.gap, part.end)
        for group, entries in touched.items():
            if group.outlet is not None:
                group.outlet.add(Batch(partition, entries, part.end), before, len(group.readers))
                continue
            live = group.live(partition)
            if live:
                batch = Batch(partition, entries, part.end)
                for reader in live:
                    reader.take(batch, before)
        for tap in tuple(self._taps.get(partition, ())):
            tap(part, before)
        for listener in tuple(self._listeners):
            listener(partition)

    async def save(self) -> None:
        """Save the last values with their positions, and tell the log how far this reader is.

        Of several processes with a feed over one log, the one that holds the lease saves; the others keep their changes
        for the day that they take it over.
        """
        for domain in self._log.domains():
            positions = {p: position for p, position in self.positions.items() if p.domain == domain}
            moved = {p: position for p, position in positions.items() if self._saved.get(p) != position}
            if not moved:
                continue
            reader = f"{domain}/{READER_NAME}"
            try:
                await self._log.lease(reader, min(positions), self._owner, SAVER_LEASE_MS)
            except LeaseHeld:
                continue
            if not await self.last_values.save(domain, positions):
                continue
            progress = await self._log.committed(reader)
            await self._log.commit(
                reader,
                {
                    p: (position, Tally(applied=max(0, position.offset - progress[p].position.offset)))
                    for p, position in moved.items()
                    if p in progress
                },
            )
            self._saved.update(moved)

    async def keep_saving(self) -> None:
        """Save every two seconds until cancelled."""
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            await self.save()

    def listen(self, listener: Callable[[Partition], None]) -> Callable[[], None]:
        """Call ``listener`` with the partition after each slice; returns how to stop that."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def tap(self, partition: Partition, tap: Tap) -> Callable[[], None]:
        """Call ``tap`` with each slice of a partition, and where the feed stood before it; returns how to stop that."""
        taps = self._taps.setdefault(partition, {})
        taps[tap] = None
        return lambda: taps.pop(tap, None) and None

    def join(self, reader: Reader, filters: tuple[TopicFilter, ...]) -> Group:
        """Put a reader into the group of its filters; it is live in no partition yet. Raises UnknownDomain."""
        chosen = filters if len(filters) == 1 else tuple(sorted(set(filters)))
        group = self._groups.get(chosen)
        if group is None:
            group = self._groups[chosen] = Group(chosen, self._span(chosen))
            for wanted in chosen:
                self._index.add(wanted, group)
        group.readers[reader] = None
        group.fall_behind(reader, group.partitions)
        return group

    def _span(self, filters: tuple[TopicFilter, ...]) -> tuple[Partition, ...]:
        """The partitions that filters of one domain can select from; few combinations, so many groups share each."""
        domain, channels = filters[0].domain, frozenset().union(*(wanted.channels for wanted in filters))
        span = self._spans.get((domain, channels))
        if span is None:
            found = (partition for channel in sorted(channels) for partition in self._log.partitions(domain, channel))
            span = self._spans[domain, channels] = tuple(found)
        return span

    def leave(self, reader: Reader, group: Group) -> None:
        """Take a reader out of its group; the last one ends the group."""
        group.readers.pop(reader, None)
        group.go_live(reader, group.partitions)
        if not group.readers and self._groups.pop(group.filters, None) is not None:
            for wanted in group.filters:
                self._index.remove(wanted, group)

    def lag(self, positions: Mapping[Partition, Position]) -> int:
        """How many messages (of any topic) lie between these positions and the feed."""
        return sum(
            max(0, self.positions[partition].offset - position.offset) for partition, position in positions.items()
        )
