"""Rounds: what comes in one turn leaves at once, and waits only where many deliveries are due."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import pytest

from iotsphere.entities.message import Entry
from iotsphere.entities.position import Partition, Position
from iotsphere.use_cases.feed import Batch
from iotsphere.use_cases.reader import Reader
from iotsphere.use_cases.round import LINGER_S, LINGERS_FROM, LINGERS_FULLY, ROUND_ENTRIES, WINDOW_S, Outlet, Round
from tests.use_cases.stage import DOMAIN, RecordingSink, Stage, open_stage, soon

TELEMETRY = f"{DOMAIN}/devices/+/telemetry/#"
ONE, TWO = Partition(DOMAIN, "telemetry", 0), Partition(DOMAIN, "telemetry", 1)
START = Position(1, 0)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_stage(partitions=2) as opened:
        yield opened


def batch(stage: Stage, partition: Partition, count: int, end: int) -> Batch:
    entry = Entry(Position(1, end), 0, stage.record(f"{DOMAIN}/devices/d1/telemetry"))
    return Batch(partition, [entry] * count, Position(1, end))


def outlet() -> tuple[Outlet, list[Round]]:
    rounds: list[Round] = []
    return Outlet(rounds.append), rounds


async def test_a_round_takes_what_comes_in_one_turn() -> None:
    way, rounds = outlet()
    for partition, before, end in ((ONE, 0, 2), (TWO, 0, 5), (ONE, 2, 3)):
        way.add(Batch(partition, [], Position(1, end)), Position(1, before), 1)
    assert rounds == []
    assert way.pending is not None
    await asyncio.sleep(0)
    (whole,) = rounds
    assert [(one.partition, one.end.offset) for one in whole.batches] == [(ONE, 2), (TWO, 5), (ONE, 3)]
    assert whole.before == {ONE: START, TWO: START}
    assert way.pending is None


async def test_below_the_threshold_nothing_waits() -> None:
    way, _ = outlet()
    way._count = int(LINGERS_FROM * WINDOW_S)
    assert way.linger(WINDOW_S) == 0.0
    way._count = int((LINGERS_FROM + LINGERS_FULLY) / 2 * WINDOW_S)
    assert way.linger(2 * WINDOW_S) == pytest.approx(LINGER_S / 2)
    way._count = int(10 * LINGERS_FULLY * WINDOW_S)
    assert way.linger(3 * WINDOW_S) == LINGER_S
    assert way.linger(3.5 * WINDOW_S) == LINGER_S, "within the same tenth of a second"
    assert way.linger(100.0) == 0.0, "it was quiet for long"


async def test_at_a_high_rate_a_round_waits_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iotsphere.use_cases.round.LINGER_S", 3_600.0)  # a machine may stand still for 8 ms
    way, rounds = outlet()
    way._rate, way._since = LINGERS_FULLY, math.inf
    way.add(Batch(ONE, [], Position(1, 1)), START, 100)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert rounds == []
    way.add(Batch(TWO, [], Position(1, 1)), START, 100)
    way.flush()
    assert [[one.partition for one in whole.batches] for whole in rounds] == [[ONE, TWO]]


async def test_a_round_that_waits_leaves_by_itself() -> None:
    way, rounds = outlet()
    way._rate, way._since = LINGERS_FULLY, math.inf
    began = asyncio.get_running_loop().time()
    way.add(Batch(ONE, [], Position(1, 1)), START, 100)
    await soon(lambda: rounds, "the round left")
    assert rounds[0].at - began >= LINGER_S - 0.002, "the loop's clock has a grain of a millisecond"


async def test_a_full_round_does_not_wait(stage: Stage) -> None:
    way, rounds = outlet()
    way.add(batch(stage, ONE, ROUND_ENTRIES - 1, ROUND_ENTRIES - 1), START, 1)
    assert rounds == []
    way.add(batch(stage, ONE, 1, ROUND_ENTRIES), Position(1, ROUND_ENTRIES - 1), 1)
    assert [whole.count for whole in rounds] == [ROUND_ENTRIES]
    await asyncio.sleep(0)
    assert len(rounds) == 1


async def test_a_fault_with_one_reader_ends_the_feed_and_the_others_get_theirs(stage: Stage) -> None:
    def fail(_: Reader, __: Round) -> bool:
        raise ZeroDivisionError

    sinks = [RecordingSink() for _ in range(3)]
    readers = [await stage.open(sink, TELEMETRY) for sink in sinks]
    for reader, take in zip(readers, (sinks[0].take_whole, fail, sinks[2].take_whole), strict=True):
        reader.in_rounds(take)
    await stage.log.append([stage.record(f"{DOMAIN}/devices/d1/telemetry")])
    await soon(lambda: sinks[2].entries, "the last one has it")
    with pytest.raises(ZeroDivisionError):
        await stage.feed.run()
    assert [len(sink.entries) for sink in sinks] == [1, 0, 1]
