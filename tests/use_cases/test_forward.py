"""Forwarding: in order, nothing skipped, one owner at a time, and a place that only moves behind what went out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import LogUnavailable
from iotsphere.entities.message import Entry
from iotsphere.entities.position import Gap
from iotsphere.use_cases.forward import ForwardUseCase, Handed
from iotsphere.use_cases.ports.message_log import Tally
from tests.support.rooms import Rooms, open_rooms
from tests.support.waiting import until

READER = "iotsphere/bridge/b"


class Sink:
    """Takes entries, or does not."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.failure: Exception | None = None

    async def __call__(self, entries: Sequence[Entry]) -> Handed:
        await self.open.wait()
        if self.failure is not None:
            raise self.failure
        self.got += [entry.record.message_id for entry in entries]
        return Handed(Tally(applied=len(entries)), len(entries))


class Stage:
    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms
        self.gaps: list[Gap] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.partitions = rooms.log.partitions("iotsphere", "commands")

    def forward(self, sink: Callable[[Sequence[Entry]], Awaitable[Handed]]) -> ForwardUseCase:
        return ForwardUseCase(self.rooms.log, READER, self.partitions, sink, self.gaps.append)

    def run(self, forward: ForwardUseCase) -> asyncio.Task[None]:
        task = asyncio.create_task(forward())
        self.tasks.append(task)
        return task

    async def running(self, sink: Any) -> ForwardUseCase:
        forward = self.forward(sink)
        self.run(forward)
        await until(lambda: forward.lease is not None, "it holds the lease")
        return forward

    async def say(self, number: int) -> str:
        topic = f"iotsphere/devices/d{number % 3}/commands/request"
        principal_record = self.rooms.record(topic.replace("request", "status"), {"n": number})
        await self.rooms.publish([principal_record])
        return principal_record.message_id

    async def passed(self) -> int:
        progress = await self.rooms.log.committed(READER)
        return sum(each.position.offset - each.start.offset for each in progress.values())

    async def tally(self) -> Tally:
        total = Tally()
        for each in (await self.rooms.log.committed(READER)).values():
            total = total.plus(each.tally)
        return total


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_rooms() as rooms:
        made = Stage(rooms)
        yield made
        for task in made.tasks:
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_a_new_reader_begins_with_what_comes_and_gets_all_of_it(stage: Stage) -> None:
    await stage.say(0)
    sink = Sink()
    await stage.running(sink)
    sent = [await stage.say(number) for number in range(200)]
    await until(lambda: len(sink.got) == 200, "all came")
    assert sorted(sink.got) == sorted(sent)
    for key in range(3):
        mine = sent[key::3]
        assert [each for each in sink.got if each in mine] == mine
    await until_passed(stage, 200)
    assert await stage.tally() == Tally(applied=200)


async def until_passed(stage: Stage, count: int) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while await stage.passed() < count:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


async def test_nothing_is_committed_before_it_went_out(stage: Stage) -> None:
    sink = Sink()
    sink.open.clear()
    await stage.running(sink)
    for number in range(10):
        await stage.say(number)
    await asyncio.sleep(0.1)
    assert await stage.passed() == 0
    sink.open.set()
    await until_passed(stage, 10)


async def test_a_sink_that_fails_gets_the_same_entries_again(stage: Stage) -> None:
    sink = Sink()
    sink.failure = LogUnavailable("away")
    forward = stage.forward(sink)
    first = stage.run(forward)
    await until(lambda: forward.lease is not None, "it runs")
    sent = [await stage.say(number) for number in range(5)]
    with pytest.raises(LogUnavailable):
        await first
    assert forward.lease is None
    sink.failure = None
    await stage.running(sink)
    await until(lambda: len(sink.got) == 5, "they came")
    assert sorted(sink.got) == sorted(sent)


async def test_the_second_owner_waits_and_takes_over_without_a_hole(stage: Stage) -> None:
    one, two = Sink(), Sink()
    first = stage.forward(one)
    running = stage.run(first)
    await until(lambda: first.lease is not None, "the first one owns it")
    second = stage.forward(two)
    stage.run(second)
    sent = [await stage.say(number) for number in range(20)]
    await until(lambda: len(one.got) == 20, "the first one gets all")
    assert second.lease is None
    await first.drain(60)
    running.cancel()
    sent += [await stage.say(number) for number in range(20, 40)]
    await until(lambda: len(two.got) == 20, "the second one gets the rest")
    assert sorted(one.got + two.got) == sorted(sent)
    await until_passed(stage, 40)
    assert await stage.tally() == Tally(applied=40)


async def test_an_owner_that_lost_its_lease_commits_nothing(stage: Stage) -> None:
    slow, fresh = Sink(), Sink()
    slow.open.clear()
    await stage.running(slow)
    sent = [await stage.say(number) for number in range(6)]
    stage.rooms.clock.advance(60_000)  # the lease has run out: its owner was asleep
    await stage.running(fresh)
    await until(lambda: sorted(fresh.got) == sorted(sent), "the new owner sends all")
    await until_passed(stage, 6)
    slow.open.set()
    await asyncio.sleep(0.1)
    assert await stage.tally() == Tally(applied=6)  # what the old one sent again counts once


async def test_what_retention_took_is_told_and_accounted_for(stage: Stage) -> None:
    sink = Sink()
    forward = stage.forward(sink)
    task = stage.run(forward)
    await until(lambda: forward.lease is not None, "it is registered")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for number in range(9):
        await stage.say(number)
    stage.rooms.clock.advance(3_600_000)
    gone = Retention(max_age=1_000, hard_age=1_000)
    for partition in stage.partitions:
        await stage.rooms.log.retain(partition, gone, stage.rooms.clock.now())
    last = await stage.say(9)
    await stage.running(sink)
    await until(lambda: last in sink.got, "what is left comes")
    await until_passed(stage, 10)
    lost = sum(gap.missing for gap in stage.gaps)
    assert lost > 0
    assert lost + len(sink.got) == 10
    assert await stage.tally() == Tally(applied=len(sink.got), lost=lost)
