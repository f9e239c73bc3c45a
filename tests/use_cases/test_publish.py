"""Publishing in self-clocked batches: what waits together is appended together, in order, and answered afterwards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.errors import IotSphereError, LogFull, LogUnavailable, ShuttingDown
from iotsphere.entities.message import Record
from iotsphere.use_cases.ports.message_log import Appended
from iotsphere.use_cases.publish import BATCH_RECORDS, MessagePublishUseCase, renamed
from tests.contracts.records import CHANNELS, DOMAIN, P0, offsets, read_all, record, records
from tests.support.waiting import until


class GatedLog(MemoryLog):
    """A log whose appends wait for the gate, and fail as they are told to; ``batches`` holds what each was given."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures: list[Exception] = []
        self.batches: list[list[str]] = []
        self.fails_at = 0

    async def append(self, records: Sequence[Record]) -> Appended:
        self.batches.append([record.message_id for record in records])
        await self.gate.wait()
        if len(self.batches) == self.fails_at:
            raise LogUnavailable("away")
        if self.failures:
            raise self.failures.pop(0)
        return await super().append(records)


@pytest.fixture
async def log() -> GatedLog:
    log = GatedLog()
    await log.ensure(DOMAIN, CHANNELS)
    return log


def ids(records: Sequence[Record]) -> list[str]:
    return [each.message_id for each in records]


async def test_what_arrives_during_an_append_is_the_next_batch(log: GatedLog) -> None:
    publish = MessagePublishUseCase(log)
    log.gate.clear()
    wanted = records(6)
    answered: list[int] = []
    publish.submit(wanted[:1], lambda _: answered.append(0))
    await until(lambda: len(log.batches) == 1, "the first append is under way")
    for number, each in enumerate(wanted[1:], 1):
        publish.submit([each], lambda _, number=number: answered.append(number))  # type: ignore[misc]  # number is bound
    assert answered == []
    log.gate.set()
    await until(lambda: len(answered) == 6, "all are answered")
    assert log.batches == [ids(wanted[:1]), ids(wanted[1:])]
    assert answered == list(range(6))
    assert publish.batches == 2
    assert publish.accepted == 6
    assert publish.pending_bytes == 0


async def test_each_submitter_gets_its_own_positions_and_duplicates(log: GatedLog) -> None:
    publish = MessagePublishUseCase(log)
    known, fresh, more = records(1)[0], records(2), records(1)
    await publish([known])
    log.gate.clear()
    opening = asyncio.ensure_future(publish([record()]))
    await until(lambda: len(log.batches) == 2, "an append is under way")
    both = asyncio.gather(publish([fresh[0], known, fresh[1]]), publish([known]), publish(more))
    await asyncio.sleep(0)
    log.gate.set()
    first, second, third = await both
    await opening
    assert len(log.batches) == 3
    assert (offsets(first.positions), first.duplicates) == ([3, 1, 4], frozenset((1,)))
    assert (offsets(second.positions), second.duplicates) == ([1], frozenset((0,)))
    assert (offsets(third.positions), third.duplicates) == ([5], frozenset())
    assert (publish.accepted, publish.duplicates) == (5, 2)


async def test_large_queue_is_cut_into_batches_between_submissions(log: GatedLog) -> None:
    publish = MessagePublishUseCase(log)
    log.gate.clear()
    first = asyncio.ensure_future(publish([record()]))
    await until(lambda: len(log.batches) == 1, "an append is under way")
    rest = [asyncio.ensure_future(publish(records(300))) for _ in range(7)]
    await asyncio.sleep(0)
    log.gate.set()
    await asyncio.gather(first, *rest)
    assert [len(batch) for batch in log.batches] == [1, 1_200, 900]
    assert BATCH_RECORDS <= 1_200


async def test_order_is_kept_while_the_log_comes_and_goes(log: GatedLog) -> None:
    publish = MessagePublishUseCase(log)
    log.failures = [LogUnavailable("away"), LogUnavailable("still away")]
    wanted = records(5)
    waiting = [asyncio.ensure_future(publish([each])) for each in wanted]
    await until(lambda: publish.stalled is not None, "the log is away")
    assert not any(each.done() for each in waiting)
    answers = await asyncio.gather(*waiting)
    assert [offsets(answer.positions) for answer in answers] == [[1], [2], [3], [4], [5]]
    assert [entry.record.message_id for entry in log.shelf(P0).entries] == ids(wanted)
    assert publish.failures == 2
    assert publish.stalled is None


async def test_a_full_log_is_told_and_the_next_ones_go_on(log: GatedLog) -> None:
    publish = MessagePublishUseCase(log)
    log.failures = [LogFull("no room")]
    with pytest.raises(LogFull, match="no room"):
        await publish([record()])
    assert isinstance(publish.stalled, LogFull)
    assert offsets((await publish([record()])).positions) == [1]
    assert publish.stalled is None
    assert publish.pending_bytes == 0


async def test_it_is_congested_while_too_many_bytes_wait(log: GatedLog) -> None:
    publish = MessagePublishUseCase(log, max_pending_bytes=10_000)
    log.gate.clear()
    answers: list[object] = []
    assert not publish.submit(records(1, size=4_000), answers.append)
    assert not publish.congested
    assert publish.submit(records(1, size=8_000), answers.append)
    assert publish.congested
    log.gate.set()
    await until(lambda: len(answers) == 2, "both are answered")
    assert not publish.congested


async def test_closing_waits_for_what_is_under_way(log: GatedLog) -> None:
    publish = MessagePublishUseCase(log)
    log.gate.clear()
    waiting = asyncio.ensure_future(publish([record()]))
    await until(lambda: len(log.batches) == 1, "an append is under way")
    closing = asyncio.ensure_future(publish.close(30))
    await asyncio.sleep(0)
    assert not closing.done()
    log.gate.set()
    await closing
    assert offsets((await waiting).positions) == [1]
    with pytest.raises(ShuttingDown):
        await publish([record()])


async def test_closing_does_not_wait_for_ever(log: GatedLog) -> None:
    publish = MessagePublishUseCase(log)
    log.gate.clear()
    answers: list[Appended | IotSphereError] = []
    publish.submit([record()], answers.append)
    await until(lambda: len(log.batches) == 1, "an append is under way")
    publish.submit([record()], answers.append)
    await publish.close(0.01)
    assert [type(answer) for answer in answers] == [ShuttingDown, ShuttingDown]
    assert publish.pending_bytes == 0


async def test_a_submitter_that_left_is_no_trouble(log: GatedLog) -> None:
    publish = MessagePublishUseCase(log)
    log.gate.clear()
    left, stays = asyncio.ensure_future(publish([record()])), asyncio.ensure_future(publish([record()]))
    await until(lambda: len(log.batches) == 1, "an append is under way")
    left.cancel()
    log.gate.set()
    assert offsets((await stays).positions) == [2]


async def test_a_log_that_breaks_its_promise_answers_nobody_with_silence(
    log: GatedLog, caplog: pytest.LogCaptureFixture
) -> None:
    publish = MessagePublishUseCase(log)
    log.failures = [ZeroDivisionError("a driver's own fault")]
    with pytest.raises(ShuttingDown):
        await publish([record()])
    assert offsets((await publish([record()])).positions) == [1]
    with caplog.at_level(logging.ERROR, "asyncio"):
        await until(lambda: "a driver's own fault" in caplog.text, "the fault is reported")


SHARED = "6f9c1f63-6f43-4b0e-9f70-0a5c6f1f2b11"


def said(topic: str, value: int) -> Record:
    body = b'{"metadata":{"messageId":"%b"},"payload":%d}' % (SHARED.encode(), value)
    return record(message_id=SHARED, body=body)._replace(topic=topic)


async def stored(log: MemoryLog) -> list[tuple[str, str, bytes]]:
    return [(each.record.topic, each.record.message_id, each.record.body) for each in await read_all(log)]


async def test_an_id_of_another_topic_makes_nothing_a_repetition(log: GatedLog) -> None:
    publish = MessagePublishUseCase(log)
    ours, theirs = said("iotsphere/devices/a/telemetry", 1), said("iotsphere/devices/b/telemetry", 2)
    new = renamed(theirs)
    await publish([ours])
    second = await publish([theirs])
    assert (offsets(second.positions), second.duplicates) == ([2], frozenset())
    assert await stored(log) == [(ours.topic, SHARED, ours.body), (theirs.topic, new.message_id, new.body)]
    assert new.body == b'{"metadata":{"messageId":"%b"},"payload":2}' % new.message_id.encode()
    assert new.message_id != SHARED
    again = await publish([theirs, ours])
    assert (offsets(again.positions), again.duplicates) == ([2, 1], frozenset((0, 1)))
    assert (publish.accepted, publish.duplicates, publish.renamed) == (2, 2, 1)


async def test_two_topics_use_one_id_in_one_batch(log: GatedLog) -> None:
    publish = MessagePublishUseCase(log)
    batch = [said(f"iotsphere/devices/{name}/telemetry", value) for value, name in enumerate("abcb")]
    both = await publish([record(), *batch])
    assert (offsets(both.positions), both.duplicates) == ([1, 2, 3, 4, 3], frozenset((4,)))
    assert [topic for topic, _, _ in await stored(log)][1:] == [each.topic for each in batch[:3]]
    assert publish.renamed == 2


async def test_an_outage_between_both_appends_loses_nothing(log: GatedLog) -> None:
    publish = MessagePublishUseCase(log)
    ours, theirs = said("iotsphere/devices/a/telemetry", 1), said("iotsphere/devices/b/telemetry", 2)
    await publish([ours])
    fresh = record()
    log.fails_at = 3
    outcome = await publish([fresh, theirs])
    assert [len(batch) for batch in log.batches] == [1, 2, 1, 2, 1]
    assert offsets(outcome.positions) == [2, 3]
    assert [topic for topic, _, _ in await stored(log)] == [ours.topic, fresh.topic, theirs.topic]
