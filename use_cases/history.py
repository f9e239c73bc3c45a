"""History: what the log holds for some filters, page by page, and the last value of each topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Final, NamedTuple

from ..entities.message import Entry
from ..entities.position import Gap, Partition, Position, partition_index
from ..entities.principal import Principal
from ..entities.subscription import Start
from ..entities.topic import TopicFilter
from .feed import beginning
from .last_values import LastValues
from .ports.message_log import MessageLog

READ_ENTRIES: Final = 500
MAX_SCANNED: Final = 20_000
MAX_PAGE_BYTES: Final = 1024 * 1024


class Page(NamedTuple):
    """Entries, and where to read on. ``more``: the log holds more entries, though perhaps none that is selected."""

    entries: Sequence[Entry]
    positions: Mapping[Partition, Position]
    gaps: Sequence[Gap]
    more: bool


class LatestPage(NamedTuple):
    """Last values in the order of their topics; ``after``: the topic to go on after, None at the end."""

    entries: Sequence[Entry]
    after: str | None


class _Lane:
    """One partition that is being read: what was read ahead, and the position before it."""

    def __init__(self, partition: Partition, position: Position) -> None:
        self.partition = partition
        self.position = position
        self.ahead: deque[Entry] = deque()
        self._gap: Gap | None = None
        self._end = position

    async def fill(self, log: MessageLog, gaps: list[Gap]) -> bool:
        """Read on until there is an entry ahead (True), or the end (False)."""
        while not self.ahead:
            part = await log.read(self.partition, self._end, READ_ENTRIES)
            at_end = part.end == self._end
            self._end = part.end
            self.ahead.extend(part.entries)
            if self.ahead:
                self._gap = part.gap  # told with the first entry after it, so that each page tells what it covers
                return True
            self.position = part.end
            if part.gap is not None:
                gaps.append(part.gap)
            if at_end:
                return False
        return True

    def pop(self, gaps: list[Gap]) -> Entry:
        """Take the next entry."""
        if self._gap is not None:
            gaps.append(self._gap)
            self._gap = None
        entry = self.ahead.popleft()
        self.position = entry.position if self.ahead else self._end
        return entry

    @property
    def turn(self) -> tuple[int, Partition]:
        """What orders the lanes: when the next entry was accepted."""
        return self.ahead[0].appended_at, self.partition


class History:
    """Reads back what was accepted. The principal needs a subscribe grant for each filter (Forbidden)."""

    def __init__(self, log: MessageLog, last_values: LastValues) -> None:
        self._log = log
        self._last_values = last_values

    async def __call__(
        self, principal: Principal, filters: Sequence[TopicFilter], start: Start, limit: int = 100
    ) -> Page:
        """The next entries after a start (``earliest``, ``time`` or ``cursor``), oldest first.

        Order: that of the log within each key; across partitions by the time of acceptance. A page ends early past
        1 MiB of bodies, or after 20,000 entries that no filter selects.
        """
        principal.require("subscribe", filters)
        lanes = {part: _Lane(part, await self._after(part, start)) for part in self._partitions(filters)}
        entries: list[Entry] = []
        gaps: list[Gap] = []
        turns = [lane.turn for lane in lanes.values() if await lane.fill(self._log, gaps)]
        heapify(turns)
        size = scanned = 0
        while turns and len(entries) < limit and size < MAX_PAGE_BYTES and scanned < MAX_SCANNED:
            lane = lanes[turns[0][1]]
            entry = lane.pop(gaps)
            scanned += 1
            record = entry.record
            if record.body and any(wanted.matches(record.topic) for wanted in filters):
                entries.append(entry)
                size += len(record.body)
            if lane.ahead or await lane.fill(self._log, gaps):
                heapreplace(turns, lane.turn)
            else:
                heappop(turns)
        return Page(entries, {lane.partition: lane.position for lane in lanes.values()}, gaps, bool(turns))

    def latest(
        self, principal: Principal, filters: Sequence[TopicFilter], after: str = "", limit: int = 100
    ) -> LatestPage:
        """The last value of each topic that a filter selects, beyond the topic ``after``."""
        principal.require("subscribe", filters)
        found = sorted(
            (entry for entry in self._last_values.latest(filters) if entry.record.topic > after and entry.record.body),
            key=lambda entry: entry.record.topic,
        )
        page = found[:limit]
        return LatestPage(page, page[-1].record.topic if len(found) > limit else None)

    async def _after(self, partition: Partition, start: Start) -> Position:
        if start.at == "time":
            return await self._log.at(partition, start.time)
        if start.cursor is not None:
            return start.cursor.positions.get(partition) or await beginning(self._log, partition)
        return await beginning(self._log, partition)

    def _partitions(self, filters: Sequence[TopicFilter]) -> list[Partition]:
        """The partitions that can hold what the filters select; one per channel for a filter that names its key."""
        found: set[Partition] = set()
        for wanted in filters:
            key = _key(wanted)
            for channel in wanted.channels:
                all_of_them = self._log.partitions(wanted.domain, channel)
                if key is None:
                    found.update(all_of_them)
                else:
                    found.add(all_of_them[partition_index(key, len(all_of_them))])
        return sorted(found)


def _key(wanted: TopicFilter) -> str | None:
    """What FIFO is promised for by everything that the filter selects, where that is one key."""
    levels = wanted.levels
    if wanted.is_exact and (levels[1] == "system" or levels[1:3] == ("devices", "batch")):
        return wanted.text
    if len(levels) > 2 and levels[1] in ("devices", "users") and levels[2] not in ("+", "#", "batch"):
        return levels[2]
    return None
