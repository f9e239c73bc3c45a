"""Work queues over the log in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...entities.errors import RequestInvalid
from ...entities.message import Entry
from ...entities.position import Partition, Position
from ...use_cases.ports.work_queue import NEVER, Backlog, Delivery
from .log import MemoryLog


@dataclass(slots=True)
class Taken:
    """An entry that was handed out and is not yet acknowledged. ``hidden_until``: ms."""

    attempt: int
    consumer: str
    hidden_until: int


@dataclass(slots=True)
class Lane:
    """A group's work in one partition. ``cursor``: the last offset that was ever handed out."""

    start: int
    cursor: int
    acknowledged: int = 0
    lost: int = 0
    taken: dict[int, Taken] = field(default_factory=dict)

    def drop_trimmed(self, first: int) -> None:
        """Count what retention took before it was acknowledged, and go past it."""
        gone = [offset for offset in self.taken if offset < first]
        for offset in gone:
            del self.taken[offset]
        self.lost += len(gone) + max(0, first - 1 - self.cursor)
        self.cursor = max(self.cursor, first - 1)


class MemoryWorkQueue:
    """A ``WorkQueue`` of dicts; one per ``MemoryLog``."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._groups: dict[str, dict[Partition, Lane]] = {}
        self._turn = 0
        log.holds.append(self._needs)

    def _needs(self, partition: Partition) -> Mapping[str, int]:
        return {
            group: min(lanes[partition].taken, default=lanes[partition].cursor + 1)
            for group, lanes in self._groups.items()
            if partition in lanes
        }

    def _lanes(self, group: str) -> dict[Partition, Lane]:
        try:
            return self._groups[group]
        except KeyError as error:
            raise RequestInvalid(f"there is no work-queue group {group!a}: create it first") from error

    async def create(self, group: str, start: Sequence[tuple[Partition, Position]]) -> None:
        """Make the group from what the positions mean now."""
        lanes = {}
        for partition, position in start:
            shelf = self._log.shelf(partition)
            before, _ = shelf.lineage.locate(partition, position, shelf.first, shelf.last)
            lanes[partition] = Lane(before, before)
        self._groups[group] = lanes | self._groups.get(group, {})

    async def take(
        self, group: str, consumer: str, limit: int, visibility: int = 30_000, alone: int = NEVER
    ) -> Sequence[Delivery]:
        """Hand out what came back, then what is new."""
        now = self._log.clock.now()
        lanes = self._lanes(group)
        if alone <= 1:
            limit = min(limit, 1)
        deliveries: list[Delivery] = []
        for partition, offset, attempt in self._due(lanes, now):
            if len(deliveries) < limit and (attempt < alone or not deliveries):
                deliveries.append(self._hand_out(group, partition, offset, consumer, now + visibility))
                if attempt >= alone:
                    return deliveries
        # Each call begins with another partition, so that a busy one does not starve the rest.
        self._turn += 1
        order = list(lanes.items())
        turn = self._turn % max(len(order), 1)
        for partition, lane in order[turn:] + order[:turn]:
            last = min(self._log.shelf(partition).last, lane.cursor + limit - len(deliveries))
            fresh = range(lane.cursor + 1, last + 1)
            deliveries += (self._hand_out(group, partition, offset, consumer, now + visibility) for offset in fresh)
            lane.cursor = max(lane.cursor, last)
        return deliveries

    def _due(self, lanes: Mapping[Partition, Lane], now: int) -> list[tuple[Partition, int, int]]:
        """Partition, offset and next attempt of what came back, in order."""
        due = []
        for partition, lane in lanes.items():
            lane.drop_trimmed(self._log.shelf(partition).first)
            back = sorted(offset for offset, taken in lane.taken.items() if taken.hidden_until <= now)
            due += [(partition, offset, lane.taken[offset].attempt + 1) for offset in back]
        return due

    def _hand_out(self, group: str, partition: Partition, offset: int, consumer: str, until: int) -> Delivery:
        lane = self._groups[group][partition]
        before = lane.taken.get(offset)
        attempt = before.attempt + 1 if before is not None else 1
        lane.taken[offset] = Taken(attempt, consumer, until)
        return Delivery(group, partition, self._entry(partition, offset), attempt)

    def _entry(self, partition: Partition, offset: int) -> Entry:
        shelf = self._log.shelf(partition)
        return shelf.entries[offset - shelf.first]

    async def ack(self, group: str, deliveries: Sequence[tuple[Partition, Position]]) -> int:
        """Mark entries done."""
        lanes = self._lanes(group)
        done = 0
        for partition, position in deliveries:
            lane = lanes.get(partition)
            if lane is not None and lane.taken.pop(position.offset, None) is not None:
                lane.acknowledged += 1
                done += 1
        return done

    async def nack(
        self, group: str, delivery: tuple[Partition, Position], delay: int = 0, counted: bool = True
    ) -> None:
        """Give an entry back, to come again after ``delay`` ms."""
        taken = self._taken(group, delivery)
        if taken is not None:
            if taken.consumer and not counted:
                taken.attempt -= 1
            taken.consumer = ""
            taken.hidden_until = self._log.clock.now() + delay

    async def extend(self, group: str, consumer: str, delivery: tuple[Partition, Position], visibility: int) -> bool:
        """Keep an entry for ``visibility`` ms more, when it is still this consumer's."""
        taken = self._taken(group, delivery)
        if taken is None or taken.consumer != consumer:
            return False
        taken.hidden_until = self._log.clock.now() + visibility
        return True

    def _taken(self, group: str, delivery: tuple[Partition, Position]) -> Taken | None:
        lane = self._lanes(group).get(delivery[0])
        return lane.taken.get(delivery[1].offset) if lane is not None else None

    async def backlog(self, group: str) -> Sequence[Backlog]:
        """What is to do, by partition."""
        backlogs = []
        for partition, lane in sorted(self._groups.get(group, {}).items()):
            shelf = self._log.shelf(partition)
            lane.drop_trimmed(shelf.first)
            backlogs.append(
                Backlog(partition, shelf.last - lane.cursor, len(lane.taken), lane.acknowledged, lane.lost, lane.start)
            )
        return backlogs

    async def groups(self, domain: str) -> Sequence[str]:
        """The domain's groups, sorted."""
        return sorted(group for group in self._groups if group.startswith(domain + "/"))

    async def delete(self, group: str) -> None:
        """Remove the group."""
        self._groups.pop(group, None)
