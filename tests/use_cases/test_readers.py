"""Many readers with any filter, start, policy and speed, on a log that keeps growing: nobody misses or repeats a thing."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.cursor import Cursor
from iotsphere.entities.message import Entry
from iotsphere.entities.position import Partition, Position
from iotsphere.entities.subscription import Start
from iotsphere.entities.topic import parse_filter
from iotsphere.use_cases.ports.message_log import Slice
from iotsphere.use_cases.reader import Reader
from iotsphere.use_cases.round import LINGERS_FULLY
from tests.use_cases.stage import RecordingSink, Stage, by_partition, open_stage, soon

TOPICS = [
    *(f"iotsphere/devices/d{d}/telemetry/{m}" for d in range(5) for m in ("temperature", "pressure")),
    *(f"iotsphere/devices/d{d}/presence" for d in range(3)),
    "iotsphere/system/alerts",
]
FILTERS = [
    ("iotsphere/#",),
    ("iotsphere/devices/+/telemetry/#",),
    ("iotsphere/devices/d1/#",),
    ("iotsphere/devices/+/telemetry/pressure", "iotsphere/devices/d2/#"),
    ("iotsphere/devices/d3/telemetry/temperature",),
    ("iotsphere/system/+", "iotsphere/devices/+/presence"),
]
Places = dict[Partition, Position]


class HesitantLog(MemoryLog):
    """A log whose answers take a random number of turns of the event loop, and come in small slices."""

    def __init__(self, rng: random.Random, clock: ManualClock) -> None:
        super().__init__(clock)
        self.rng = rng

    async def read(self, partition: Partition, after: Position, limit: int = 500, max_bytes: int = 1 << 20) -> Slice:
        piece = await super().read(partition, after, min(limit, self.rng.randint(1, 7)), max_bytes)
        for _ in range(self.rng.randint(0, 3)):
            await asyncio.sleep(0)
        return piece


def linger(reader: Reader) -> None:
    """Have the rounds of the reader's group wait for each other, as at a high rate."""
    outlet = reader.group.outlet
    assert outlet is not None
    outlet._rate, outlet._since = LINGERS_FULLY, math.inf


def is_live(reader: Reader) -> bool:
    return reader.is_live


class Opened(NamedTuple):
    """A reader as a test opened it. ``start``: where it stood then; ``known``: the last values at that moment."""

    sink: RecordingSink
    filters: Sequence[str]
    at: str
    policy: str
    start: Places
    known: dict[str, Entry]


class Crowd:
    """Readers that come, stall, wake and go by a seeded die."""

    def __init__(self, stage: Stage, rng: random.Random, rounds: str | None) -> None:
        self.stage = stage
        self.rounds = rounds
        self.rng = rng
        self.opened: list[Opened] = []
        self.marks: list[tuple[Opened, int, Places]] = []

    async def append(self, count: int) -> None:
        rng, stage = self.rng, self.stage
        stage.clock.advance(rng.randint(0, 3))
        now = stage.clock.now()
        await stage.log.append(
            [stage.record(rng.choice(TOPICS), timestamp=now - rng.choice((0, 0, 0, 500))) for _ in range(count)]
        )

    async def open(self) -> None:
        rng, stage = self.rng, self.stage
        filters = rng.choice(FILTERS)
        policy = rng.choice(("complete", "complete", "latest"))
        at = rng.choice(("live", "latest", "earliest", "time", "cursor"))
        start = Start(at)
        if at == "time":
            start = Start("time", time=stage.clock.now() - rng.randint(0, 30))
        elif at == "cursor":
            usable = [mark for mark in self.marks if mark[0].filters == filters]
            if not usable:
                return
            start = Start("cursor", cursor=Cursor("", rng.choice(usable)[2]))
        sink = RecordingSink(rng.choice((None, 0, 1, 3)))
        await stage.open(sink, *filters, start=start, policy=policy, max_rate=rng.choice((0, 0, 0, 5)))
        assert sink.reader is not None
        if self.rounds is not None and rng.random() < 0.7:
            sink.reader.in_rounds(sink.take_whole)
            if self.rounds == "lingering":
                linger(sink.reader)
        known = {entry.record.topic: entry for entry in stage.feed.last_values.latest(map(parse_filter, filters))}
        places = sink.reader.held if at != "latest" and policy == "latest" else None
        if at == "latest":
            wanted = sink.reader.subscription.channels
            places = {p: place for p, place in stage.feed.positions.items() if p.channel in wanted}
        self.opened.append(Opened(sink, filters, at, policy, dict(places or sink.reader.positions() or {}), known))

    def mark(self) -> None:
        """Note somebody's cursor, as a client would keep it."""
        if self.opened:
            one = self.rng.choice(self.opened)
            assert one.sink.reader is not None
            positions = one.sink.reader.positions()
            if positions is not None and not one.sink.reader.closed:
                self.marks.append((one, len(one.sink.batches), dict(positions)))

    async def step(self) -> None:
        rng = self.rng
        match rng.randint(0, 6):
            case 0:
                await self.open()
            case 1 | 2:
                await self.append(rng.randint(1, 6))
            case 3 if self.opened:
                one = rng.choice(self.opened)
                if one.sink.reader is not None and not one.sink.reader.closed:
                    one.sink.make_room(rng.choice((0, 1, 2, None)))
            case 4:
                self.mark()
            case _:
                for _ in range(rng.randint(0, 5)):
                    await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let everybody take everything."""
        await self.stage.handed_out()
        for one in self.opened:
            one.sink.make_room(None)

        def live() -> bool:
            self.stage.monotonic += 1_000
            for one in self.opened:
                assert one.sink.reader is not None
                one.sink.reader.resume()
            return all(one.sink.reader is not None and one.sink.reader.is_live for one in self.opened)

        await soon(live, "every reader is live")


def after(stage: Stage, filters: Sequence[str], start: Places) -> list[Entry]:
    """What the log holds after these places for these filters, by brute force."""
    wanted = [parse_filter(text) for text in filters]
    return [
        entry
        for entry in stage.entries(lambda topic: any(each.matches(topic) for each in wanted))
        if entry.record.partition in start and entry.position > start[entry.record.partition]
    ]


def check_complete(stage: Stage, one: Opened) -> None:
    first = [entry.record.message_id for batch in one.sink.batches if batch.values for entry in batch.entries]
    rest = [entry for batch in one.sink.batches if not batch.values for entry in batch.entries]
    assert sorted(first) == sorted(entry.record.message_id for entry in one.known.values() if one.at == "latest")
    assert one.sink.ids[: len(first)] == first
    assert by_partition(rest) == by_partition(after(stage, one.filters, one.start))


def check_latest(stage: Stage, one: Opened) -> None:
    delivered = {entry.record.message_id for entry in one.sink.entries}
    for topic in TOPICS:
        newest = next(iter(stage.feed.last_values.latest([parse_filter(topic)])), None)
        if newest is None or not any(parse_filter(text).matches(topic) for text in one.filters):
            continue
        news = newest.position > one.start[newest.record.partition]
        if news or (one.at == "latest" and topic in one.known):
            assert newest.record.message_id in delivered, topic
    reached = {entry.record.topic for entry in one.sink.entries}
    allowed = {entry.record.topic for entry in after(stage, one.filters, one.start)}
    assert reached <= allowed | (set(one.known) if one.at != "live" else set())


@pytest.mark.parametrize("rounds", [None, "at once", "lingering"])
@pytest.mark.parametrize("seed", range(15))
async def test_each_reader_gets_exactly_its_messages(seed: int, rounds: str | None) -> None:
    rng = random.Random(seed)
    clock = ManualClock()
    async with open_stage(2, clock, HesitantLog(rng, clock)) as stage:
        crowd = Crowd(stage, rng, rounds)
        await crowd.append(rng.randint(0, 30))
        for _ in range(120):
            await crowd.step()
        await crowd.settle()
        assert crowd.opened
        for one in crowd.opened:
            assert one.sink.gaps == []
            if one.policy == "complete":
                check_complete(stage, one)
            else:
                check_latest(stage, one)
        await check_resuming(stage, crowd)


async def check_resuming(stage: Stage, crowd: Crowd) -> None:
    """Whatever cursor a complete reader had at any moment, and after any batch, leads to exactly the rest."""
    moments = [mark for mark in crowd.marks if mark[0].policy == "complete"]
    for one in crowd.opened:
        if one.policy == "complete" and one.sink.batches:
            number = crowd.rng.randrange(len(one.sink.batches))
            cursor = one.sink.cursors[number]
            if cursor is not None:
                moments.append((one, number + 1, cursor))
    for one, taken, cursor in moments:
        again = RecordingSink()
        reader = await stage.open(again, *one.filters, start=Start("cursor", cursor=Cursor("", cursor)))
        await soon(partial(is_live, reader), "the resumed reader is live")
        rest = [entry for batch in one.sink.batches[taken:] for entry in batch.entries]
        assert by_partition(again.entries) == by_partition(rest)
        reader.close()
