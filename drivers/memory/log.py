"""The log in this process's memory: for tests, and for trying things out; nothing outlives the process."""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

from ...adapters.record import pack
from ...entities.channel import ChannelSpec, Retention
from ...entities.errors import Fenced, LeaseHeld, RequestInvalid, UnknownDomain
from ...entities.message import Entry, Record
from ...entities.position import Bounds, Gap, Partition, Position
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.message_log import Appended, Lease, Progress, Slice, Tally
from ..lineage import Lineage

DEDUPE_WINDOW = 10 * 60 * 1000
KEPT_LOSSES = 1_000


class Shelf:
    """One partition: its retained entries, where they begin, and the message ids of the last ten minutes."""

    __slots__ = ("entries", "first", "lineage", "seen", "totals", "touched_at", "trimmed")

    def __init__(self, epoch: int) -> None:
        self.entries: list[Entry] = []
        self.totals: list[int] = []
        self.trimmed = 0
        self.first = 1
        self.lineage = Lineage([(epoch, 1)])
        self.seen: dict[str, tuple[int, int]] = {}
        self.touched_at = 0

    @property
    def last(self) -> int:
        """The offset of the newest entry; the number of messages ever accepted."""
        return self.first + len(self.entries) - 1

    @property
    def total(self) -> int:
        """The stored bytes of all messages ever accepted."""
        return self.totals[-1] if self.totals else self.trimmed

    def add(self, record: Record, size: int, now: int) -> tuple[Position, bool]:
        """Put a record of ``size`` stored bytes at the end, or find where it is already. ``now``: ms."""
        known = self.seen.get(record.message_id)
        if known is not None and known[1] >= now - DEDUPE_WINDOW:
            return self.lineage.position(known[0]), True
        self.touched_at = now = max(now, self.touched_at)
        position = Position(self.lineage.epoch, self.last + 1)
        self.totals.append(self.total + size)
        self.entries.append(Entry(position, now, record))
        self.seen.pop(record.message_id, None)
        self.seen[record.message_id] = (position.offset, now)
        while (oldest := next(iter(self.seen.items())))[1][1] < now - DEDUPE_WINDOW:
            del self.seen[oldest[0]]
        return position, False

    def due(self, age: int, size: int, now: int) -> int:
        """The last offset that is older than ``age`` (ms) or lies beyond the newest ``size`` bytes, as packed."""
        old = bisect_left(self.entries, now - age, key=lambda entry: entry.appended_at)
        surplus = self.total - size
        beyond = bisect_left(self.totals, surplus) + 1 if surplus > self.trimmed else 0
        return self.first - 1 + max(old, beyond)

    def trim(self, upto: int) -> None:
        """Forget everything up to an offset."""
        count = upto - self.first + 1
        self.trimmed = self.totals[count - 1]
        del self.entries[:count]
        del self.totals[:count]
        self.first = upto + 1


class MemoryLog:
    """A ``MessageLog`` of lists. ``holds`` are asked by ``retain`` for the next offset that a work queue needs."""

    durability = "memory"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.holds: list[Callable[[Partition], Mapping[str, int]]] = []
        self._shelves: dict[Partition, Shelf] = {}
        self._channels: dict[tuple[str, str], tuple[Partition, ...]] = {}
        self._readers: dict[str, dict[Partition, Progress]] = {}
        self._leases: dict[tuple[str, Partition], Lease] = {}
        self._losses: list[tuple[str, Gap]] = []
        self._followers: set[asyncio.Event] = set()

    async def ensure(self, domain: str, channels: Mapping[str, ChannelSpec]) -> None:
        """Make the channels that are missing."""
        for channel, spec in channels.items():
            if (domain, channel) not in self._channels:
                made = tuple(Partition(domain, channel, number) for number in range(spec.partitions))
                self._channels[domain, channel] = made
                self._shelves.update((partition, Shelf(self.clock.now() // 1000)) for partition in made)

    def domains(self) -> Sequence[str]:
        """All domains, sorted."""
        return sorted({domain for domain, _ in self._channels})

    def partitions(self, domain: str, channel: str) -> Sequence[Partition]:
        """The channel's partitions. Raises UnknownDomain."""
        try:
            return self._channels[domain, channel]
        except KeyError as error:
            raise UnknownDomain(f"there is no channel {channel!a} in a domain {domain!a}: make it first") from error

    def shelf(self, partition: Partition) -> Shelf:
        """A partition's entries. Raises UnknownDomain."""
        try:
            return self._shelves[partition]
        except KeyError as error:
            raise UnknownDomain(f"there is no partition {partition}: make its channel first") from error

    async def append(self, records: Sequence[Record]) -> Appended:
        """Append all, or nothing when a partition is unknown."""
        shelves = [self.shelf(record.partition) for record in records]
        now = self.clock.now()
        try:
            sizes = [len(pack(record, now)) for record in records]
        except (struct.error, UnicodeEncodeError) as error:
            raise RequestInvalid(f"a record cannot be stored ({error}): check its topic, id and times") from error
        positions = []
        duplicates = set()
        for index, (shelf, record, size) in enumerate(zip(shelves, records, sizes, strict=True)):
            position, known = shelf.add(record, size, now)
            positions.append(position)
            if known:
                duplicates.add(index)
        for follower in self._followers:
            follower.set()
        return Appended(positions, frozenset(duplicates))

    async def bounds(self, partition: Partition) -> Bounds:
        """What is retained."""
        shelf = self.shelf(partition)
        return Bounds(shelf.lineage.position(shelf.first), shelf.lineage.position(shelf.last))

    async def read(self, partition: Partition, after: Position, limit: int = 500, max_bytes: int = 1 << 20) -> Slice:
        """Entries after a position, and the gap before them."""
        shelf = self.shelf(partition)
        offset, gap = shelf.lineage.locate(partition, after, shelf.first, shelf.last)
        entries: list[Entry] = []
        if offset >= shelf.first - 1:
            start = offset - shelf.first + 1
            room = max_bytes
            for entry in shelf.entries[start : start + limit]:
                room -= len(entry.record.body)
                if room < 0 and entries:
                    break
                entries.append(entry)
        if not entries and gap is None:
            return Slice(partition, entries, after)
        return Slice(partition, entries, shelf.lineage.position(offset + len(entries)), gap)

    async def follow(self, after: Mapping[Partition, Position]) -> AsyncGenerator[Slice, None]:
        """Read each partition whenever something was appended."""
        places = {partition: self.settle(partition, position) for partition, position in after.items()}
        wake = asyncio.Event()
        self._followers.add(wake)
        try:
            while True:
                wake.clear()
                idle = True
                for partition, place in places.items():
                    piece = await self.read(partition, place)
                    if piece.end != place:
                        idle = False
                        places[partition] = piece.end
                        yield piece
                if idle:
                    await wake.wait()
        finally:
            self._followers.discard(wake)

    def settle(self, partition: Partition, position: Position) -> Position:
        """Turn "the beginning of what is retained" into the position that it means now."""
        if position != Position(0, 0):
            return position
        shelf = self.shelf(partition)
        return shelf.lineage.position(shelf.first - 1)

    async def at(self, partition: Partition, time: int) -> Position:
        """The position before the first entry that was appended at or after ``time`` (ms)."""
        shelf = self.shelf(partition)
        index = bisect_left(shelf.entries, time, key=lambda entry: entry.appended_at)
        return shelf.lineage.position(shelf.first + index - 1)

    async def find(self, domain: str, message_id: str) -> Entry | None:
        """Scan for a message id."""
        for partition, shelf in self._shelves.items():
            if partition.domain == domain:
                for entry in shelf.entries:
                    if entry.record.message_id == message_id:
                        return entry
        return None

    async def entries(self, places: Sequence[tuple[Partition, Position]]) -> Sequence[Entry | None]:
        """The entry at each place."""
        shelves = ((self.shelf(partition), position.offset) for partition, position in places)
        return [s.entries[at - s.first] if s.first <= at <= s.last else None for s, at in shelves]

    async def register(self, reader: str, positions: Mapping[Partition, Position]) -> None:
        """Make a reader known from what the positions mean now."""
        starts = {}
        for partition, position in positions.items():
            shelf = self.shelf(partition)
            offset, gap = shelf.lineage.locate(partition, position, shelf.first, shelf.last)
            kept = gap is not None and gap.reason == "retention"
            starts[partition] = position if kept else shelf.lineage.position(offset)
        mine = self._readers.setdefault(reader, {})
        for partition, start in starts.items():
            mine.setdefault(partition, Progress(start, start, Tally()))

    async def commit(
        self,
        reader: str,
        progress: Mapping[Partition, tuple[Position, Tally]],
        fences: Mapping[Partition, int] | None = None,
    ) -> None:
        """Move a reader on. Raises Fenced, RequestInvalid."""
        mine = self._readers.get(reader, {})
        for partition in progress:
            if partition not in mine:
                raise RequestInvalid(f"{reader!a} does not read {partition}: register it first")
        for partition, fence in (fences or {}).items():
            lease = self._leases.get((reader, partition))
            if lease is not None and lease.fence > fence:
                raise Fenced(f"{reader!a} lost {partition}: a newer owner has it; stop and take the lease again")
        for partition, (position, tally) in progress.items():
            known = mine[partition]
            if position > known.position:
                mine[partition] = Progress(known.start, position, known.tally.plus(tally))

    async def committed(self, reader: str) -> Mapping[Partition, Progress]:
        """The reader's progress."""
        return dict(self._readers.get(reader, {}))

    async def readers(self, domain: str) -> Sequence[str]:
        """The domain's readers, sorted."""
        return sorted(name for name in self._readers if name.startswith(domain + "/"))

    async def forget(self, reader: str) -> None:
        """Remove a reader."""
        self._readers.pop(reader, None)

    async def lease(self, reader: str, partition: Partition, owner: str, ttl: int) -> Lease:
        """Take or renew a lease. Raises LeaseHeld."""
        self.shelf(partition)
        now = self.clock.now()
        held = self._leases.get((reader, partition))
        if held is not None and held.owner not in ("", owner) and held.expires_at > now:
            raise LeaseHeld(f"{partition} is read for {reader!a} by {held.owner!a}: retry later", owner=held.owner)
        fence = held.fence if held is not None else 0
        if held is None or held.owner != owner:
            fence += 1
        lease = self._leases[reader, partition] = Lease(reader, partition, owner, fence, now + ttl)
        return lease

    async def release(self, lease: Lease) -> None:
        """Give a lease back; its fence is remembered."""
        held = self._leases.get((lease.reader, lease.partition))
        if held is not None and held.owner == lease.owner and held.fence == lease.fence:
            self._leases[lease.reader, lease.partition] = held._replace(owner="", expires_at=0)

    async def retain(self, partition: Partition, retention: Retention, now: int) -> Gap | None:
        """Trim, and announce what a reader or work queue lost."""
        shelf = self.shelf(partition)
        needs = [
            (name, mine[partition].position.offset + 1) for name, mine in self._readers.items() if partition in mine
        ]
        for hold in self.holds:
            needs += hold(partition).items()
        soft = shelf.due(retention.max_age, retention.max_bytes, now)
        hard = shelf.due(retention.hard_age, retention.hard_bytes, now)
        upto = max(min(soft, min((need for _, need in needs), default=soft + 1) - 1), hard)
        if upto < shelf.first:
            return None
        lost = [
            (name, Gap(partition, max(need, shelf.first), upto, "retention"))
            for name, need in sorted(needs)
            if need <= upto
        ]
        shelf.trim(upto)
        self._losses = [*self._losses, *lost][-KEPT_LOSSES:]
        return min((gap for _, gap in lost), default=None)

    async def losses(self, domain: str) -> Sequence[tuple[str, Gap]]:
        """The announced losses of the domain, oldest first."""
        return [(reader, gap) for reader, gap in self._losses if gap.partition.domain == domain]

    async def ready(self) -> None:
        """Memory is always ready."""
