"""Work queues on Redis consumer groups: one group per partition, with the delivery count that the server keeps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from ...adapters.record import CorruptRecord, unpack
from ...entities.errors import RequestInvalid
from ...entities.position import Partition, Position
from ...use_cases.ports.work_queue import NEVER, Backlog, Delivery
from .keys import domain_of, parse_partition
from .log import RedisMessagingDriver
from .queue_scripts import ACK, BACKLOG, CREATE, DELETE, EXTEND, NACK, TAKE
from .wire import Command

BEGINNING: Final = Position(0, 0)
LANES_FRESH_S: Final = 5.0
_ACKS: Final = 1_000


class RedisWorkQueue:
    """A ``WorkQueue`` beside the log of a ``RedisMessagingDriver``, whose connections it uses.

    A group that this object made is made again, from the beginning, when the server was emptied.
    """

    def __init__(self, log: RedisMessagingDriver) -> None:
        self._log = log
        self._links = log.links
        self._lanes: dict[str, tuple[float, tuple[Partition, ...]]] = {}
        self._made: dict[str, dict[Partition, Position]] = {}
        self._turn = 0

    async def create(self, group: str, start: Sequence[tuple[Partition, Position]]) -> None:
        """Make the group from what the positions mean now."""
        commands = []
        for partition, position in start:
            keys = self._log.shelves[partition].keys
            state = await self._log.shelves.state(partition)
            offset, _ = state.lineage.locate(partition, position, state.first, state.last)
            begin = state.lineage.position(offset)
            names = (keys.log, keys.group(group), keys.due(group))
            commands.append(CREATE(names, group, f"{begin.epoch}-{offset}", offset))
            self._made.setdefault(group, {})[partition] = begin
        # Its name first: a group that retention waits for must not be one that nobody can list.
        await self._links.write(
            ("SADD", self._log.keys.groups(domain_of(group)), group),
            *(("SADD", self._log.keys.lanes(group), str(partition)) for partition, _ in start),
            *commands,
        )
        self._lanes.pop(group, None)

    async def _of(self, group: str) -> tuple[Partition, ...]:
        """The group's partitions, sorted. Raises RequestInvalid."""
        seen_at, lanes = self._lanes.get(group, (float("-inf"), ()))
        if time.monotonic() - seen_at < LANES_FRESH_S:
            return lanes
        known, names = await self._links.call(
            ("SISMEMBER", self._log.keys.groups(domain_of(group)), group), ("SMEMBERS", self._log.keys.lanes(group))
        )
        if not known and await self._emptied(group):
            return await self._of(group)
        if not known:
            raise RequestInvalid(f"there is no work-queue group {group!a}: create it first")
        lanes = tuple(sorted(parse_partition(name.decode()) for name in names))
        self._log.shelves.add(lanes)
        self._lanes[group] = (time.monotonic(), lanes)
        return lanes

    async def take(
        self, group: str, consumer: str, limit: int, visibility: int = 30_000, alone: int = NEVER
    ) -> Sequence[Delivery]:
        """Hand out what came back, then what is new."""
        lanes = await self._of(group)
        if alone <= 1:
            limit = min(limit, 1)
        deliveries: list[Delivery] = []
        if not lanes or limit < 1:
            return deliveries
        # Each call begins with another partition, so that a busy one does not starve the rest.
        self._turn += 1
        turn = self._turn % len(lanes)
        order = lanes[turn:] + lanes[:turn]
        for fresh, busy in enumerate(await self._look(group, order)):
            for partition in busy:
                if (left := limit - len(deliveries)) > 0:
                    # An entry that is to come alone can only come first.
                    rule = (visibility, fresh, NEVER if fresh else alone, len(deliveries))
                    deliveries += await self._take(group, partition, consumer, left, rule)
                    if deliveries and deliveries[-1].attempt >= alone:
                        return deliveries
        return deliveries

    async def _look(self, group: str, lanes: Sequence[Partition]) -> tuple[list[Partition], list[Partition]]:
        """The lanes where something came back, and those where something is new; lanes that are gone are made again."""
        commands: list[Command] = []
        for partition in lanes:
            keys = self._log.shelves[partition].keys
            commands.append(("ZCOUNT", keys.due(group), "-inf", self._log.clock.now()))
            commands.append(("HGET", keys.group(group), "delivered"))
            commands.append(("HGET", keys.meta, "last"))
        answers = await self._links.call(*commands)
        back, new = [], []
        for partition, due, delivered, last in zip(lanes, answers[::3], answers[1::3], answers[2::3], strict=True):
            if delivered is None:
                await self._missing(group, partition)
                continue
            if due:
                back.append(partition)
            if int(last or 0) != int(delivered):
                new.append(partition)
        return back, new

    async def _take(
        self, group: str, partition: Partition, consumer: str, limit: int, rule: tuple[int, int, int, int]
    ) -> list[Delivery]:
        visibility, *rest = rule
        keys = self._log.shelves[partition].keys
        now = self._log.clock.now()
        names = (keys.log, keys.meta, keys.group(group), keys.due(group))
        (answer,) = await self._links.write(TAKE(names, group, consumer, limit, now, now + visibility, *rest))
        if answer is None:
            await self._missing(group, partition)
            return []
        deliveries = []
        for stored_id, attempt, stored in zip(answer[::3], answer[1::3], answer[2::3], strict=True):
            position = Position(*map(int, stored_id.split(b"-")))
            try:
                entry = unpack(stored, partition, position)
            except CorruptRecord:
                await self._lose(group, partition, position)
                continue
            deliveries.append(Delivery(group, partition, entry, attempt))
        deliveries.sort(key=lambda delivery: delivery.entry.position)
        return deliveries

    async def _emptied(self, group: str) -> bool:
        """Make a group of ours again if the server was emptied since; one that was deleted stays so."""
        made = self._made.pop(group, {})
        for partition, position in made.items():
            state = await self._log.shelves.state(partition)
            _, gap = state.lineage.locate(partition, position, state.first, state.last)
            if gap is not None and gap.reason == "rebuilt":
                await self.create(group, [(one, BEGINNING) for one in sorted(made)])
                return True
        return False

    async def _missing(self, group: str, partition: Partition) -> None:
        """Make a lane again that its stream no longer has. Raises RequestInvalid when the group was deleted."""
        self._lanes.pop(group, None)
        if partition in await self._of(group):
            await self.create(group, [(partition, BEGINNING)])

    async def _lose(self, group: str, partition: Partition, position: Position) -> None:
        keys = self._log.shelves[partition].keys
        await self._ack(group, partition, [position])
        await self._links.write(
            ("HINCRBY", keys.group(group), "acknowledged", -1), ("HINCRBY", keys.group(group), "lost", 1)
        )

    async def ack(self, group: str, deliveries: Sequence[tuple[Partition, Position]]) -> int:
        """Mark entries done."""
        lanes: dict[Partition, list[Position]] = {partition: [] for partition in await self._of(group)}
        for partition, position in deliveries:
            if partition in lanes:
                lanes[partition].append(position)
        done = 0
        for partition, positions in lanes.items():
            for start in range(0, len(positions), _ACKS):
                done += await self._ack(group, partition, positions[start : start + _ACKS])
        return done

    async def _ack(self, group: str, partition: Partition, positions: Sequence[Position]) -> int:
        keys = self._log.shelves[partition].keys
        names = (keys.log, keys.group(group), keys.due(group))
        (done,) = await self._links.write(ACK(names, group, *map(_stored_id, positions)))
        return int(done or 0)

    async def nack(
        self, group: str, delivery: tuple[Partition, Position], delay: int = 0, counted: bool = True
    ) -> None:
        """Give an entry back, to come again after ``delay`` ms."""
        partition, position = delivery
        if partition in await self._of(group):
            keys = self._log.shelves[partition].keys
            names = (keys.log, keys.group(group), keys.due(group))
            due = self._log.clock.now() + delay
            await self._links.write(NACK(names, group, _stored_id(position), due, int(counted)))

    async def extend(self, group: str, consumer: str, delivery: tuple[Partition, Position], visibility: int) -> bool:
        """Keep an entry for ``visibility`` ms more, when it is still this consumer's."""
        partition, position = delivery
        if partition not in await self._of(group):
            return False
        keys = self._log.shelves[partition].keys
        names = (keys.log, keys.group(group), keys.due(group))
        until = self._log.clock.now() + visibility
        (kept,) = await self._links.write(EXTEND(names, group, _stored_id(position), consumer, until))
        return bool(kept)

    async def backlog(self, group: str) -> Sequence[Backlog]:
        """What is to do, by partition."""
        try:
            lanes = await self._of(group)
        except RequestInvalid:
            return []
        commands = []
        for partition in lanes:
            keys = self._log.shelves[partition].keys
            commands.append(BACKLOG((keys.log, keys.meta, keys.group(group), keys.due(group)), group))
        answers: Sequence[Any] = await self._links.write(*commands)
        return [
            Backlog(partition, *answer) for partition, answer in zip(lanes, answers, strict=True) if answer is not None
        ]

    async def groups(self, domain: str) -> Sequence[str]:
        """The domain's groups, sorted."""
        (names,) = await self._links.call(("SMEMBERS", self._log.keys.groups(domain)))
        return sorted(name.decode() for name in names)

    async def delete(self, group: str) -> None:
        """Remove the group."""
        self._made.pop(group, None)
        self._lanes.pop(group, None)
        (names,) = await self._links.call(("SMEMBERS", self._log.keys.lanes(group)))
        commands = []
        for name in names:
            keys = self._log.keys.partition(parse_partition(name.decode()))
            commands.append(DELETE((keys.log, keys.group(group), keys.due(group)), group))
        await self._links.write(
            *commands, ("DEL", self._log.keys.lanes(group)), ("SREM", self._log.keys.groups(domain_of(group)), group)
        )


def _stored_id(position: Position) -> str:
    return f"{position.epoch}-{position.offset}"
