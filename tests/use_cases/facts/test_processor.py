"""Processors: each fact folded in order, no trouble spreads, and the ledger accounts for all of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import DatabaseUnavailable, IotSphereError, LogUnavailable, MessageRefused, RateLimited
from iotsphere.entities.message import Entry
from iotsphere.entities.position import Partition
from iotsphere.use_cases.ports.message_log import MessageLog, Tally
from tests.support.examples import tried
from tests.support.waiting import until
from tests.use_cases.folding import (
    CHANNEL,
    CHANNELS,
    DOMAIN,
    LEASE_MS,
    QUICK,
    READER,
    FailingLog,
    Folder,
    account,
    fact,
    letters,
    processing,
    settled,
)

P0, P1 = (Partition(DOMAIN, CHANNEL, number) for number in (0, 1))
D0, D1, NEIGHBOUR = "d0", "d4", "d1"  # of the two partitions, and the neighbour of the first


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[MutableMapping[str, object]]]:
    """What is logged; failures that a test provokes need not be printed."""
    with capture_logs() as entries:
        yield entries


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MessageLog]:
    """A log of either driver with its channels made."""
    if request.param == "memory":
        memory = FailingLog()
        await memory.ensure(DOMAIN, CHANNELS)
        yield memory
    else:
        async with SqliteLog(tmp_path, SystemClock()) as sqlite:
            await sqlite.ensure(DOMAIN, CHANNELS)
            yield sqlite


@pytest.fixture
async def failing() -> FailingLog:
    """A log in memory that fails where a test wants it to."""
    log = FailingLog()
    await log.ensure(DOMAIN, CHANNELS)
    return log


def test_the_devices_lie_in_the_two_partitions() -> None:
    log = FailingLog()
    asyncio.run(log.ensure(DOMAIN, CHANNELS))
    assert [fact(log, device).partition for device in (D0, D1, NEIGHBOUR)] == [P0, P1, P0]


async def test_facts_are_folded_in_order_and_accounted_for(log: MessageLog) -> None:
    records = [fact(log, f"d{number % 7}") for number in range(300)]
    await log.append(records[:200])
    folder = Folder()
    async with processing(log, folder) as processor:
        assert await settled(log, processor) == Tally(applied=200)
        await log.append(records[200:])
        assert await settled(log, processor) == Tally(applied=300)
        assert processor.outcomes == {"applied": 300}
        assert await processor.lag() == {READER: 0}
    for device in {record.topic.split("/")[2] for record in records}:
        assert folder.effects[device] == [r.message_id for r in records if r.message_id.startswith(f"{device}-")]
    assert folder.repeats == 0


async def test_it_goes_on_where_it_was(log: MessageLog) -> None:
    await log.append([fact(log, D0), fact(log, D1)])
    async with processing(log, Folder()) as processor:
        await settled(log, processor)
    await log.append([fact(log, D0)])
    second = Folder()
    async with processing(log, second) as processor:
        assert await processor.lag() == {READER: 1}
        assert await settled(log, processor) == Tally(applied=3)
    assert second.count == 1


async def test_outcomes_are_booked_and_refusals_become_dead_letters(log: MessageLog) -> None:
    answers: dict[str, str | IotSphereError] = {
        "old": "superseded",
        "late": "expired",
        "wrong": MessageRefused("no such field: mend it", code="schema_violation"),
    }
    records = [fact(log, D0, name) for name in ("old", "late", "wrong", "good")]
    records += [fact(log, D0, "ignored"), fact(log, D0, expires_at=1)]
    await log.append(records)
    folder = Folder(lambda entry: answers.get(entry.record.topic.split("/")[-1], "applied"))
    async with processing(log, folder) as processor:
        assert await settled(log, processor) == Tally(applied=2, superseded=1, expired=2, dead_lettered=1)
        assert processor.outcomes == {"applied": 1, "superseded": 1, "expired": 2, "dead_lettered": 1}
    assert await letters(log) == [f"schema_violation 1 {records[2].message_id}"]
    assert [len(call) for call in folder.calls] == [4]


async def test_while_the_database_is_away_nothing_is_lost_or_skipped(log: MessageLog) -> None:
    away = True

    def check(_entries: Sequence[Entry]) -> None:
        if away:
            raise DatabaseUnavailable("it is away: retry")

    folder = Folder()
    folder.before = check
    records = [fact(log, D0) for _ in range(20)]
    async with processing(log, folder) as processor:
        await log.append(records)
        await until(lambda: len(folder.calls) > 3, "it was tried again")
        assert [error.code for error in processor.halted.values()] == ["database_unavailable"]
        assert list(processor.halted) == [P0]
        assert await processor.lag() == {READER: 20}
        away = False
        assert await settled(log, processor) == Tally(applied=20)
        assert processor.halted == {}
    assert folder.effects[D0] == [record.message_id for record in records]
    assert await letters(log) == []


async def test_one_partition_never_stops_another(log: MessageLog) -> None:
    def check(entries: Sequence[Entry]) -> None:
        if entries[0].record.partition == P0:
            raise DatabaseUnavailable("this shard is away: retry")

    folder = Folder()
    folder.before = check
    async with processing(log, folder) as processor:
        await log.append([fact(log, D0)])
        for _ in range(5):
            await log.append([fact(log, D1)])
        await until(lambda: folder.count == 5, "the other partition was folded")
        await until(lambda: P0 in processor.halted, "the first one waits")
    assert list(folder.effects) == [D1]


async def test_poison_holds_up_its_own_key_and_is_buried(log: MessageLog) -> None:
    records = [fact(log, f"d{number % 3}") for number in range(30)]  # all in one partition
    poison = records[4].message_id
    seen: list[int] = []

    def judge(entry: Entry) -> str:
        if entry.record.message_id == poison:
            seen.append(folder.count)
            raise KeyError("desired")
        return "applied"

    folder = Folder(judge)
    await log.append(records)
    async with processing(log, folder) as processor:
        assert await settled(log, processor) == Tally(applied=29, dead_lettered=1)
    assert await letters(log) == [f"poison 3 {poison}"]
    assert seen[-1] >= 20  # those of the other keys were there before the last attempt
    for device, effects in folder.effects.items():
        of_device = [record.message_id for record in records if record.message_id.startswith(f"{device}-")]
        assert effects == [name for name in of_device if name != poison]


async def test_what_heals_is_not_buried_and_keeps_its_place(log: MessageLog) -> None:
    failures = 2

    def judge(entry: Entry) -> str:
        nonlocal failures
        if entry.record.message_id == records[1].message_id and failures and len(folder.calls[-1]) == 1:
            failures -= 1
            raise ValueError("for now")
        if entry.record.message_id == records[1].message_id and failures:
            raise ValueError("among others")
        return "applied"

    records = [fact(log, D0) for _ in range(6)]
    folder = Folder(judge)
    await log.append(records)
    async with processing(log, folder) as processor:
        assert await settled(log, processor) == Tally(applied=6)
    assert folder.effects[D0] == [record.message_id for record in records]
    assert await letters(log) == []


async def test_a_refusal_that_may_be_retried_waits_as_long_as_it_takes(log: MessageLog) -> None:
    tries = 0

    def judge(entry: Entry) -> str | IotSphereError:
        nonlocal tries
        if entry.record.message_id == records[0].message_id and tries < 10:
            tries += 1
            return RateLimited("too fast: retry")
        return "applied"

    records = [fact(log, D0), fact(log, D0), fact(log, NEIGHBOUR)]
    folder = Folder(judge)
    await log.append(records)
    async with processing(log, folder) as processor:
        assert await settled(log, processor) == Tally(applied=3)
    assert tries == 10
    assert await letters(log) == []


async def test_it_reads_no_further_than_the_bound_beyond_what_waits(log: MessageLog) -> None:
    healed = False

    def judge(entry: Entry) -> str | IotSphereError:
        if entry.record.message_id == first.message_id and not healed:
            return RateLimited("too fast: retry")
        return "applied"

    folder = Folder(judge)
    first = fact(log, D0)
    async with processing(log, folder, replace(QUICK, ahead=50)) as processor:
        await log.append([first])
        for _ in range(20):
            await log.append([fact(log, NEIGHBOUR) for _ in range(10)])
            await asyncio.sleep(0)
        await until(lambda: processor.waiting == 1 and folder.count >= 40, "others went on")
        for _ in range(20):
            await asyncio.sleep(0.002)
        # A slice that was begun is ended.
        assert folder.count < 50 + 200
        assert (await log.committed(READER))[P0].position.offset == 0
        healed = True
        assert await settled(log, processor) == Tally(applied=201)


async def test_bytes_that_wait_are_bounded(log: MessageLog) -> None:
    healed = False

    def judge(_entry: Entry) -> str | IotSphereError:
        return "applied" if healed else RateLimited("too fast: retry")

    folder = Folder(judge)
    async with processing(log, folder, replace(QUICK, parked_bytes=200)) as processor:
        for _ in range(100):
            await log.append([fact(log, D0)])
            await asyncio.sleep(0)
        await until(lambda: processor.waiting >= 20, "some wait")
        healed = True
        assert await settled(log, processor) == Tally(applied=100)
    assert folder.repeats == 0


async def test_what_retention_took_away_is_booked_as_lost(log: MessageLog) -> None:
    await log.append([fact(log, D0) for _ in range(3)])
    async with processing(log, Folder()) as processor:
        await settled(log, processor)
    await log.append([fact(log, D0) for _ in range(10)])
    await log.retain(P0, Retention(0, 0, 0, 0), SystemClock().now() + 1)
    await log.append([fact(log, D0) for _ in range(2)])
    async with processing(log, Folder()) as processor:
        tally = await settled(log, processor)
    assert tally.lost > 0
    assert sum(tally) == 15


async def test_a_handler_that_answers_nonsense_is_at_fault(log: MessageLog) -> None:
    class Short(Folder):
        async def __call__(self, entries: Sequence[Entry]) -> list[str | IotSphereError]:
            return (await super().__call__(entries))[1:]

    records = [fact(log, D0), fact(log, D0)]
    await log.append(records)
    async with processing(log, Short()) as processor:
        assert await settled(log, processor) == Tally(dead_lettered=2)
    strange = Folder(lambda _: "done")
    await log.append([fact(log, D0)])
    async with processing(log, strange) as processor:
        assert await settled(log, processor) == Tally(dead_lettered=3)


async def test_a_second_process_goes_on_when_the_first_stops(log: MessageLog) -> None:
    one, two = Folder(), Folder()
    async with processing(log, two, lease_ms=60_000) as second:
        await until(lambda: second.partitions == [P0, P1], "it reads both")
        async with processing(log, one, lease_ms=400) as first:
            await log.append([fact(log, D0), fact(log, D1)])
            await settled(log, second)
            assert list(first.partitions) == []
            assert await first.lag() == {READER: 0}
    assert (one.count, two.count) == (0, 2)
    # Its leases of a minute were given back.
    async with processing(log, one) as first:
        await log.append([fact(log, D0)])
        await settled(log, first)
    assert (one.count, two.count) == (1, 2)


async def test_who_has_lost_the_lease_has_no_further_effect(failing: FailingLog) -> None:
    log, folder = failing, Folder()
    async with processing(log, folder, lease_ms=LEASE_MS) as processor:
        await log.append([fact(log, D0)])
        await settled(log, processor)
        # The log does not answer this process for so long that another one gets the lease.
        log.cut = True
        await asyncio.sleep(LEASE_MS / 1_000 + 0.1)
        log.cut = False
        other = await log.lease(READER, P0, "somebody-else", 60_000)
        unleased: list[int] = []
        folder.before = lambda entries: unleased.append(len(entries))
        await log.append([fact(log, D0)])
        await until(lambda: P0 not in processor.partitions, "it noticed")
        assert unleased == []
        await log.release(other)
        assert await settled(log, processor) == Tally(applied=2)
    assert folder.count == 2


async def test_a_newer_owner_fences_an_effect_that_was_under_way(failing: FailingLog) -> None:
    """The handler of the first is slow; meanwhile its lease lapses, and a second one does the same work."""
    log = failing
    proceed = asyncio.Event()

    class Slow(Folder):
        async def __call__(self, entries: Sequence[Entry]) -> list[str | IotSphereError]:
            log.cut = True
            await proceed.wait()
            return await super().__call__(entries)

    slow, quick = Slow(), Folder()
    record = fact(log, D0)
    await log.append([record, fact(log, D0)])
    async with processing(log, slow, lease_ms=LEASE_MS) as one:
        await until(lambda: log.cut, "it is at work")
        await asyncio.sleep(LEASE_MS / 1_000 + 0.1)
        log.cut = False
        owner = await log.lease(READER, P0, "second", 60_000)
        await quick([entry for entry in (await log.read(P0, (await log.committed(READER))[P0].position)).entries])
        end = (await log.bounds(P0)).last
        await log.commit(READER, {P0: (end, Tally(applied=2))}, {P0: owner.fence})
        proceed.set()
        await until(lambda: P0 not in one.partitions, "the first has stopped")
    assert await account(log) == Tally(applied=2)


async def test_a_commit_whose_answer_got_lost_counts_once(failing: FailingLog) -> None:
    log, folder = failing, Folder()
    async with processing(log, folder) as processor:
        for _ in range(10):
            log.swallow = 2
            await log.append([fact(log, D0), fact(log, D1)])
            await settled(log, processor)
            await until(lambda: not log.swallow, "both answers got lost")
        await until(lambda: not processor.halted, "it heard the answers at last")
        assert await account(log) == Tally(applied=20)
    assert await account(log) == Tally(applied=20)
    assert folder.repeats == 0


async def test_a_crash_repeats_the_tail_that_was_not_committed(failing: FailingLog) -> None:
    log, folder = failing, Folder()
    async with processing(log, folder, lease_ms=LEASE_MS) as processor:
        await log.append([fact(log, D0) for _ in range(5)])
        await settled(log, processor)
        folder.before = lambda _: setattr(log, "cut", True)  # the effect is made, and then nothing answers any more
        await log.append([fact(log, D0) for _ in range(3)])
        await until(lambda: folder.count == 8, "the effect is there")
    log.cut = False
    folder.before = lambda _: None
    async with processing(log, folder, lease_ms=LEASE_MS) as processor:
        assert await settled(log, processor) == Tally(applied=8)
    assert (folder.count, folder.repeats) == (8, 3)


async def test_the_log_may_go_away_and_come_back(failing: FailingLog) -> None:
    log, folder = failing, Folder()
    async with processing(log, folder, lease_ms=LEASE_MS) as processor:
        await log.append([fact(log, D0)])
        await settled(log, processor)
        log.cut = True
        await asyncio.sleep(LEASE_MS / 1_000)
        with pytest.raises(LogUnavailable):
            await processor.lag()
        log.cut = False
        await log.append([fact(log, D0), fact(log, D1)])
        assert await settled(log, processor) == Tally(applied=3)
    assert folder.repeats == 0


class Verdict(NamedTuple):
    """What a handler does with an entry: fail or put it off so many times, then say ``outcome``."""

    fails: int
    puts_off: int
    outcome: str


outcomes = st.sampled_from(("applied", "applied", "applied", "superseded", "expired", "schema_violation"))
verdicts = st.builds(Verdict, st.sampled_from((0, 0, 0, 0, 1, 2, 3)), st.sampled_from((0, 0, 0, 0, 1, 2)), outcomes)


@given(
    plan=st.lists(st.tuples(st.sampled_from(("d0", "d1", "d2", "d4")), verdicts), max_size=30), cut=st.integers(1, 9)
)
@tried(40)
def test_whatever_happens_each_key_keeps_its_order_and_nothing_is_unaccounted_for(
    plan: list[tuple[str, Verdict]], cut: int
) -> None:
    async def play() -> None:
        log = FailingLog()
        await log.ensure(DOMAIN, CHANNELS)
        records = [fact(log, device) for device, _ in plan]
        left = {record.message_id: verdict for record, (_, verdict) in zip(records, plan, strict=True)}
        handed: list[int] = []

        def judge(entry: Entry) -> str | IotSphereError:
            name = entry.record.message_id
            fails, puts_off, outcome = left[name]
            if fails:
                left[name] = left[name]._replace(fails=fails - (handed[-1] == 1))
                raise ValueError("it chokes on it")
            if puts_off:
                left[name] = left[name]._replace(puts_off=puts_off - 1)
                return RateLimited("too fast: retry")
            return MessageRefused("no: mend it", code=outcome) if outcome == "schema_violation" else outcome

        folder = Folder(judge)
        folder.before = lambda entries: handed.append(len(entries))
        async with processing(log, folder) as processor:
            for start in range(0, len(records), cut):
                await log.append(records[start : start + cut])
                await asyncio.sleep(0)
            tally = await settled(log, processor) if records else Tally()
        fates = [
            "poison" if verdict.fails >= QUICK.attempts else verdict.outcome for _, verdict in plan
        ]  # fmt: skip
        buried = [
            f"{fate} {record.message_id}"
            for fate, record in zip(fates, records, strict=True)
            if fate in ("poison", "schema_violation")
        ]
        counts = Counter(fates)
        assert tally == Tally(counts["applied"], counts["superseded"], counts["expired"], len(buried))
        told = [letter.split() for letter in await letters(log)]
        assert sorted(f"{reason} {message_id}" for reason, _, message_id in told) == sorted(buried)
        for device in {device for device, _ in plan}:
            ids = [record.message_id for record in records if record.message_id.startswith(f"{device}-")]
            firm = [name for name in ids if not any(name in letter for letter in buried)]
            seen = folder.effects.get(device, [])
            assert sorted(seen) == sorted(firm)
            if not any(verdict.puts_off for other, verdict in plan if other == device):
                assert seen == firm  # a handler that puts one off may have applied those behind it in the same call

    with capture_logs():
        asyncio.run(play())


async def test_a_reader_that_was_removed_begins_anew(failing: FailingLog) -> None:
    log, folder = failing, Folder()
    async with processing(log, folder, lease_ms=LEASE_MS) as processor:
        await log.append([fact(log, D0)])
        await settled(log, processor)
        await log.forget(READER)
        await log.append([fact(log, D0), fact(log, D1)])
        await until(lambda: folder.count == 3, "it goes on")
        assert await settled(log, processor) == Tally(applied=3)
