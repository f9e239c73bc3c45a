"""A state machine that does the same random things to a driver and to memory, and expects to see the same.

Inherit from ``LogMachine``, say how to ``open`` a log and its work queue and how to ``shut`` them, and run it with
``run_state_machine_as_test``. ``clock`` is shared; a driver that goes by its server's clock sets ``turns_time = False``, and
one that counts bytes in its own way sets ``exact_bytes = False``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.drivers.memory.queue import MemoryWorkQueue
from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import IotSphereError
from iotsphere.entities.message import Record
from iotsphere.entities.position import Gap, Partition, Position
from iotsphere.use_cases.ports.message_log import Lease, MessageLog, Slice, Tally
from iotsphere.use_cases.ports.work_queue import Delivery, WorkQueue

from .records import CHANNELS, DOMAIN, P0, P1
from .times import take

T = TypeVar("T")
FOREVER = 1 << 50
READERS = ("iotsphere/one", "iotsphere/two")
GROUP = "iotsphere/workers"
partitions = st.sampled_from((P0, P1))
offsets = st.integers(0, 40)
drafts = st.tuples(partitions, st.integers(0, 25), st.sampled_from((0, 10, 300, 5_000)), st.booleans())
tallies = st.builds(Tally, *(st.integers(0, 3) for _ in Tally._fields))


class Side:
    """A log with its queue, and the positions that it gave, by partition and offset."""

    def __init__(self, log: MessageLog, queue: WorkQueue) -> None:
        self.log = log
        self.queue = queue
        self.given: dict[tuple[Partition, int], Position] = {}
        self.leases: dict[tuple[str, Partition, str], Lease] = {}

    async def position(self, partition: Partition, offset: int) -> Position:
        """This side's position of an offset; of an offset that was never given, in the present epoch."""
        known = self.given.get((partition, offset))
        if known is None and offset == 0:
            known = min(self.given.values(), default=Position(0, 0))._replace(offset=0)
        return known if known is not None else Position((await self.log.bounds(partition)).last.epoch, offset)

    async def given_position(self, partition: Partition, offset: int) -> Position:
        """As ``position``, but of the last entry where the offset lies beyond it."""
        return await self.position(partition, min(offset, (await self.log.bounds(partition)).last.offset))


class LogMachine(RuleBasedStateMachine):
    """The rules. Each does one thing to both sides and compares what can be seen."""

    turns_time: ClassVar[bool] = True
    exact_bytes: ClassVar[bool] = True

    async def open(self) -> tuple[MessageLog, WorkQueue]:
        """Open the driver's log and queue: an empty store at first, the same store later."""
        raise AssertionError("the subclass says how")

    async def shut(self) -> None:
        """Close what ``open`` opened."""
        raise AssertionError("the subclass says how")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.loop = asyncio.new_event_loop()
        self.is_open = False
        self.minted = 0

    def do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    @initialize()
    def start(self) -> None:
        memory = MemoryLog(self.clock)
        self.memory = Side(memory, MemoryWorkQueue(memory))
        self.driver = Side(*self.do(self.open()))
        self.is_open = True
        for side in (self.memory, self.driver):
            self.do(side.log.ensure(DOMAIN, CHANNELS))

    def teardown(self) -> None:
        if self.is_open:
            self.do(self.shut())
        self.do(self.loop.shutdown_default_executor())
        self.loop.close()

    def same(self, what: Callable[[Side], Awaitable[object]]) -> None:
        """Both sides answer the same; a refusal counts by its class and code."""

        async def ask(side: Side) -> object:
            try:
                return await what(side)
            except IotSphereError as error:
                return type(error), error.code

        async def ask_both() -> tuple[object, object]:
            return await ask(self.memory), await ask(self.driver)

        memory, driver = self.do(ask_both())
        assert driver == memory

    @rule(batch=st.lists(drafts, max_size=12), repeat=st.booleans())
    def append(self, batch: list[tuple[Partition, int, int, bool]], repeat: bool) -> None:
        records = []
        for partition, number, size, minted in batch:
            self.minted += minted
            name = f"minted-{self.minted}" if minted else f"id-{number}"
            body = b"x" * size
            records.append(
                Record(partition, f"{DOMAIN}/devices/d{number}/telemetry", name, body, number, 0, size == 10, minted)
            )

        async def append(side: Side) -> object:
            appended = await side.log.append(records)
            for record, position in zip(records, appended.positions, strict=True):
                assert side.given.setdefault((record.partition, position.offset), position) == position
            return [position.offset for position in appended.positions], appended.duplicates

        for _ in range(1 + repeat):
            self.same(append)

    @rule(
        partition=partitions, offset=offsets, limit=st.integers(1, 9), size=st.sampled_from((1, 700, 1 << 20)),
        foreign=st.booleans(),
    )  # fmt: skip
    def read(self, partition: Partition, offset: int, limit: int, size: int, foreign: bool) -> None:
        async def read(side: Side) -> object:
            place = Position(7, offset) if foreign else await side.position(partition, offset)
            seen: list[object] = []
            for _ in range(100):
                piece = await side.log.read(partition, place, limit, size)
                assert len(piece.entries) <= limit
                seen += seen_in(piece)
                if piece.end == place:
                    return seen
                place = piece.end
            raise AssertionError("the reader never comes to an end")

        self.same(read)

    @rule(offset=offsets)
    def follow(self, offset: int) -> None:
        async def follow(side: Side) -> object:
            places = {partition: await side.position(partition, offset) for partition in (P0, P1)}
            ends = {partition: (await side.log.bounds(partition)).last.offset for partition in (P0, P1)}
            seen: dict[Partition, list[object]] = {P0: [], P1: []}
            async with aclosing(side.log.follow(places)) as follower:
                while any(place.offset != ends[partition] for partition, place in places.items()):
                    piece = await take(follower)
                    seen[piece.partition] += seen_in(piece)
                    places[piece.partition] = piece.end
            return seen

        self.same(follow)

    @rule(number=st.integers(0, 25))
    def find(self, number: int) -> None:
        async def find(side: Side) -> object:
            entry = await side.log.find(DOMAIN, f"id-{number}")
            return entry is not None

        self.same(find)

    @rule(reader=st.sampled_from(READERS), places=st.dictionaries(partitions, st.integers(0, 20), min_size=1))
    def register(self, reader: str, places: dict[Partition, int]) -> None:
        async def register(side: Side) -> None:
            await side.log.register(reader, {p: await side.position(p, o) for p, o in places.items()})

        self.same(register)

    @rule(
        reader=st.sampled_from(READERS),
        moves=st.dictionaries(partitions, st.tuples(st.integers(0, 20), tallies), min_size=1),
        owner=st.sampled_from(("", "a", "b")),
    )
    def commit(self, reader: str, moves: dict[Partition, tuple[int, Tally]], owner: str) -> None:
        async def commit(side: Side) -> None:
            progress = {p: (await side.given_position(p, offset), tally) for p, (offset, tally) in moves.items()}
            fences = {
                partition: side.leases[reader, partition, owner].fence
                for partition in moves
                if (reader, partition, owner) in side.leases
            }
            await side.log.commit(reader, progress, fences)

        self.same(commit)

    @rule(reader=st.sampled_from(READERS))
    def forget(self, reader: str) -> None:
        self.same(lambda side: side.log.forget(reader))

    @rule(reader=st.sampled_from(READERS), partition=partitions, owner=st.sampled_from(("a", "b")), held=st.booleans())
    def lease(self, reader: str, partition: Partition, owner: str, held: bool) -> None:
        async def lease(side: Side) -> None:
            taken = await side.log.lease(reader, partition, owner, 60_000)
            side.leases[reader, partition, owner] = taken
            if not held:
                await side.log.release(taken)

        self.same(lease)

    @rule(partition=partitions, soft=st.integers(0, 12_000), hard=st.integers(0, 40_000))
    def retain(self, partition: Partition, soft: int, hard: int) -> None:
        if self.exact_bytes:
            rules = Retention(FOREVER, soft, FOREVER, soft + hard)
            self.same(lambda side: side.log.retain(partition, rules, 0))

    @precondition(lambda self: self.turns_time)
    @rule(partition=partitions, age=st.integers(0, 20), hard=st.integers(0, 20))
    def retain_by_age(self, partition: Partition, age: int, hard: int) -> None:
        rules = Retention(age * 1_000, FOREVER, (age + hard) * 1_000, FOREVER)
        self.same(lambda side: side.log.retain(partition, rules, self.clock.now()))

    @precondition(lambda self: self.turns_time)
    @rule(milliseconds=st.integers(1, 5_000))
    def time_passes(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    @precondition(lambda self: self.turns_time)
    @rule(partition=partitions, ago=st.integers(0, 30_000))
    def at(self, partition: Partition, ago: int) -> None:
        async def at(side: Side) -> object:
            return (await side.log.at(partition, self.clock.now() - ago)).offset

        self.same(at)

    @rule(offset=st.integers(0, 10))
    def create_group(self, offset: int) -> None:
        async def create(side: Side) -> None:
            # One partition only: with more of them, which one comes first is not promised.
            await side.queue.create(GROUP, [(P0, await side.position(P0, offset))])

        self.same(create)

    @rule(limit=st.integers(1, 6), consumer=st.sampled_from(("x", "y")), act=st.sampled_from(("ack", "nack", "keep")))
    def work(self, limit: int, consumer: str, act: str) -> None:
        async def work(side: Side) -> object:
            taken = await side.queue.take(GROUP, consumer, limit)
            places = [(delivery.partition, delivery.entry.position) for delivery in taken]
            if act == "ack":
                assert await side.queue.ack(GROUP, places) == len(places)
            for place in places if act == "nack" else ():
                await side.queue.nack(GROUP, place, 2_000)
            for place in places if act == "keep" else ():
                assert await side.queue.extend(GROUP, consumer, place, 9_000)
            return sorted(told(delivery) for delivery in taken)

        self.same(work)

    @rule()
    def reopen(self) -> None:
        self.do(self.shut())
        self.is_open = False
        self.driver.log, self.driver.queue = self.do(self.open())
        self.is_open = True
        self.do(self.driver.log.ensure(DOMAIN, CHANNELS))

    @invariant()
    def sees_the_same(self) -> None:
        if not self.is_open:
            return

        async def look(side: Side) -> object:
            backlog = [one._replace(start=None) for one in await side.queue.backlog(GROUP)]
            seen: list[object] = [list(await side.log.losses(DOMAIN)), backlog]
            for partition in (P0, P1):
                first, last = await side.log.bounds(partition)
                seen.append((first.offset, last.offset))
            for reader in await side.log.readers(DOMAIN):
                for partition, (start, position, tally) in sorted((await side.log.committed(reader)).items()):
                    seen.append((reader, partition, start.offset, position.offset, tally))
            return seen

        self.same(look)


def seen_in(piece: Slice) -> list[object]:
    """What a slice tells, without the times and epochs that differ between drivers."""
    gap: list[Gap] = [piece.gap] if piece.gap is not None else []
    return [*gap, *((entry.position.offset, entry.record) for entry in piece.entries)]


def told(delivery: Delivery) -> tuple[Partition, int, int]:
    """Which entry was handed out, and how often."""
    return delivery.partition, delivery.entry.position.offset, delivery.attempt
