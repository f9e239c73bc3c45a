"""Shared subscriptions on a log in memory: processes that come, stop and die, groups that outlive their members."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable

import pytest

from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import FilterInvalid, Forbidden, LogUnavailable, TooManyGroups
from iotsphere.entities.message import Entry
from iotsphere.entities.position import Partition, Position
from iotsphere.entities.principal import device
from iotsphere.entities.share import parse_share
from iotsphere.use_cases.ports.message_log import Slice, Tally
from iotsphere.use_cases.sharing.crew import Handout
from iotsphere.use_cases.sharing.group import ShareSettings
from iotsphere.use_cases.sharing.sharing import ShareMember, Sharing
from tests.use_cases.stage import DOMAIN, Stage, open_stage, soon

FILTER = f"{DOMAIN}/devices/+/telemetry/#"
SHARE = parse_share(f"$share/workers/{FILTER}")
HOUR = 3_600_000


class Client:
    """A member that pulls what it may have under way, and answers when it is told to. ``window``: 0 = it takes nothing."""

    def __init__(self, stage: Stage, name: str, window: int = 1_000) -> None:
        self.name = name
        self.window = window
        self.got: list[Entry] = []
        self.under_way: dict[Handout, Entry] = {}
        self.member: ShareMember
        self._stage = stage
        self._answers_at_once = False

    async def join(self, sharing: Sharing, text: str = SHARE.text) -> Client:
        self.member = await sharing.join(self._stage.principal, parse_share(text), self.name, self.pump)
        self.pump()
        return self

    def pump(self) -> None:
        if not hasattr(self, "member"):
            return  # it is told again
        while len(self.under_way) < self.window:
            item = self.member.pull(self._stage.clock.now())
            if item is None:
                return
            handout, entry = item
            self.got.append(entry)
            self.under_way[handout] = entry
            if self._answers_at_once:
                self.answer()

    def answer(self, count: int = 1_000_000) -> None:
        for handout in list(self.under_way)[:count]:
            del self.under_way[handout]
            self.member.settle(handout)
        if not self._answers_at_once:
            self.pump()

    def answer_from_now_on(self) -> Client:
        self._answers_at_once = True
        while self.under_way:
            self._answers_at_once = False
            self.answer()
            self._answers_at_once = True
        return self

    @property
    def values(self) -> list[str]:
        return [entry.record.message_id for entry in self.got]


class Process:
    """One gateway process: a feed and sharing of its own on the common log."""

    def __init__(self, stage: Stage, settings: ShareSettings | None = None) -> None:
        self.feed = stage.new_feed()
        self.sharing = Sharing(stage.log, stage.documents, self.feed, settings, monotonic=lambda: stage.monotonic)
        self.running: asyncio.Task[None]

    async def start(self) -> Process:
        await self.feed.start()
        self.running = asyncio.get_running_loop().create_task(self.feed.run())
        return self

    async def die(self) -> None:
        self.running.cancel()
        await asyncio.wait((self.running,))


class Row:
    """Processes that tick as time passes."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.processes: list[Process] = []

    async def start(self, settings: ShareSettings | None = None) -> Process:
        process = await Process(self.stage, settings).start()
        self.processes.append(process)
        return process

    async def die(self, process: Process) -> None:
        self.processes.remove(process)
        await process.die()

    async def pass_time(self, milliseconds: int, *, seconds_too: bool = True) -> None:
        for _ in range(milliseconds // 300):
            self.stage.clock.advance(300)
            self.stage.monotonic += 0.3 if seconds_too else 0
            for process in self.processes:
                await process.sharing.tick()

    async def until(self, condition: Callable[[], object], what: str) -> None:
        for _ in range(200):
            if condition():
                return
            await self.pass_time(300)
            await asyncio.sleep(0.001)
        raise AssertionError(f"it did not happen: {what}")


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_stage(partitions=4) as opened:
        yield opened


@pytest.fixture
async def row(stage: Stage) -> AsyncIterator[Row]:
    opened = Row(stage)
    yield opened
    for process in opened.processes:
        await process.sharing.close()
        await process.die()


def topic(number: int) -> str:
    return f"{DOMAIN}/devices/d{number}/telemetry/temperature"


async def say(stage: Stage, devices: int, times: int, expires_at: int = 0) -> list[str]:
    records = [stage.record(topic(number), expires_at=expires_at) for _ in range(times) for number in range(devices)]
    await stage.say(*records)
    return [record.message_id for record in records]


async def tally(stage: Stage, reader: str = SHARE.reader) -> Tally:
    total = Tally()
    for progress in (await stage.log.committed(reader)).values():
        total = total.plus(progress.tally)
    return total


def in_order(got: Iterable[Entry]) -> bool:
    places: dict[str, list[Position]] = defaultdict(list)
    for entry in got:
        places[entry.record.topic].append(entry.position)
    return all(found == sorted(found) for found in places.values())


# -- the group


@pytest.mark.parametrize(
    "text",
    ["$share//a", "$share/g", "$share/g/", "$share/a+/x", "$share/#/x", "$share/a\x01/x", "$share/" + "g" * 129 + "/x"],
)
def test_what_names_no_group_is_refused(text: str) -> None:
    with pytest.raises(FilterInvalid):
        parse_share(text)


async def test_a_group_begins_at_the_present_end_and_shares_what_follows(stage: Stage, row: Row) -> None:
    await say(stage, 10, 1)
    process = await row.start()
    one, two = [await Client(stage, name).join(process.sharing) for name in ("one", "two")]
    said = await say(stage, 10, 3)
    await soon(lambda: len(one.got) + len(two.got) == 30, "everything is handed out")
    assert Counter(one.values + two.values) == Counter(said)
    assert one.got
    assert two.got
    assert not {entry.record.topic for entry in one.got} & {entry.record.topic for entry in two.got}
    assert in_order(one.got)
    assert in_order(two.got)
    one.answer()
    await row.pass_time(300)
    two.answer()
    await row.pass_time(300)
    assert await tally(stage) == Tally(applied=30)


async def test_a_share_needs_the_grant_for_its_filter(stage: Stage, row: Row) -> None:
    process = await row.start()
    with pytest.raises(Forbidden):
        await process.sharing.join(device(DOMAIN, "d1"), SHARE, "d1", lambda: None)
    assert process.sharing.groups == 0
    assert await stage.log.readers(DOMAIN) == [f"{DOMAIN}/last-values"]


async def test_groups_with_other_names_or_filters_get_everything_each(stage: Stage, row: Row) -> None:
    process = await row.start()
    clients = [
        await Client(stage, "c").join(process.sharing, text)
        for text in (SHARE.text, f"$share/others/{FILTER}", f"$share/workers/{DOMAIN}/devices/d1/#")
    ]
    said = await say(stage, 2, 1)
    await soon(lambda: [len(client.got) for client in clients] == [2, 2, 1], "each group has its own")
    assert clients[2].values == [said[1]]


async def test_a_domain_has_a_limit_of_groups(stage: Stage, row: Row) -> None:
    process = await row.start(ShareSettings(groups=2))
    for name in ("a", "b", "a"):
        await Client(stage, "c").join(process.sharing, f"$share/{name}/{FILTER}")
    with pytest.raises(TooManyGroups):
        await Client(stage, "c").join(process.sharing, f"$share/c/{FILTER}")


async def test_a_group_outlives_its_members_and_goes_on_where_they_left(stage: Stage, row: Row) -> None:
    process = await row.start()
    one = await Client(stage, "one").join(process.sharing)
    said = await say(stage, 4, 2)
    await soon(lambda: len(one.got) == 8, "it has them")
    one.answer(3)
    one.member.end()
    await row.pass_time(600)
    assert process.sharing.groups == 0
    said += await say(stage, 4, 1)
    two = await Client(stage, "two").join(process.sharing)
    await soon(lambda: len(two.got) == 9, "it gets the rest")
    assert set(two.values) | set(one.values[:3]) == set(said)
    assert in_order(two.got)


async def test_a_group_without_members_is_forgotten_after_a_week_and_begins_anew(stage: Stage, row: Row) -> None:
    process = await row.start()
    one = await Client(stage, "one").join(process.sharing)
    one.member.end()
    await row.pass_time(300)
    stage.clock.advance(7 * 24 * HOUR - HOUR)
    await row.pass_time(300 * 100)
    assert SHARE.reader in await stage.log.readers(DOMAIN)
    stage.clock.advance(HOUR)
    await row.pass_time(300 * 100)
    assert SHARE.reader not in await stage.log.readers(DOMAIN)
    await say(stage, 1, 1)
    two = await Client(stage, "two").join(process.sharing)
    said = await say(stage, 1, 1)
    await soon(lambda: two.got, "it gets what is new")
    assert two.values == said


async def test_a_group_with_a_member_is_never_forgotten(stage: Stage, row: Row) -> None:
    process = await row.start()
    one = await Client(stage, "one").join(process.sharing)
    for _ in range(10):
        stage.clock.advance(24 * HOUR)
        await row.pass_time(300 * 100)
    said = await say(stage, 1, 1)
    await row.until(lambda: one.got, "it still gets messages")
    assert one.values == said


# -- members


async def test_what_a_dead_member_had_goes_to_another_at_once_and_in_order(stage: Stage, row: Row) -> None:
    process = await row.start()
    one = await Client(stage, "one").join(process.sharing)
    said = await say(stage, 6, 3)
    await soon(lambda: len(one.got) == 18, "one has everything")
    two = await Client(stage, "two").join(process.sharing)
    said += await say(stage, 6, 1)
    one.answer(4)
    one.member.end()
    await soon(lambda: len(two.got) == 20, "two has the rest, without any clock")
    assert set(two.values) == set(said) - set(one.values[:4])
    assert in_order(two.got)
    two.answer()
    await row.pass_time(300)
    assert await tally(stage) == Tally(applied=24)


async def test_who_unsubscribes_may_answer_for_a_while_what_it_has(stage: Stage, row: Row) -> None:
    process = await row.start()
    one = await Client(stage, "one").join(process.sharing)
    two = await Client(stage, "two", window=0).join(process.sharing)
    await say(stage, 8, 2)
    await soon(lambda: one.got, "one has some")
    had = len(one.got)
    one.member.leave()
    two.window = 1_000
    two.pump()
    await row.pass_time(300)
    await soon(lambda: len(two.got) == 16 - had, "two has only what one had not")
    one.answer(1)
    await row.pass_time(9_000)
    await asyncio.sleep(0)
    assert len(two.got) == 16 - had
    await row.pass_time(1_200)
    await soon(lambda: len(two.got) == 15, "it did not answer in time")
    assert not {one.values[0]} & set(two.values)


async def test_a_member_that_joins_again_under_its_name_replaces_itself(stage: Stage, row: Row) -> None:
    process = await row.start()
    former = await Client(stage, "one").join(process.sharing)
    said = await say(stage, 2, 1)
    await soon(lambda: len(former.got) == 2, "it has them")
    newer = await Client(stage, "one").join(process.sharing)
    await soon(lambda: len(newer.got) == 2, "they come again")
    former.member.end()
    former.answer()
    said += await say(stage, 2, 1)
    await soon(lambda: len(newer.got) == 4, "it goes on")
    assert Counter(newer.values) == Counter(said)


async def test_a_slow_member_holds_back_its_own_devices_alone_and_bounded(stage: Stage, row: Row) -> None:
    process = await row.start(ShareSettings(queue_bytes=4_000, patience=1e9))
    slow = await Client(stage, "slow", window=3).join(process.sharing)
    quick = (await Client(stage, "quick").join(process.sharing)).answer_from_now_on()
    said: list[str] = []
    for _ in range(40):
        said += await say(stage, 20, 5)
    await row.pass_time(300)
    his = {entry.record.topic for entry in slow.got}
    await soon(lambda: len(slow.got) == 3, "it has its window")
    seats = {seat.name: seat for seat in process.sharing._groups[SHARE.reader].crew}
    assert len(seats["slow"].waiting) * 200 <= 4_000 + 500 * 250
    await soon(lambda: len(quick.got) >= 1_000, "the others go on")
    slow.window = 1_000_000
    slow.answer_from_now_on()
    slow.pump()
    await row.until(lambda: len(slow.got) + len(quick.got) == 4_000, "everything has come")
    assert Counter(slow.values + quick.values) == Counter(said)
    assert in_order(slow.got)
    assert in_order(quick.got)
    assert his <= {entry.record.topic for entry in slow.got}
    await row.pass_time(600)
    assert await tally(stage) == Tally(applied=4_000)


async def test_others_take_over_what_a_stuck_member_does_not_take(stage: Stage, row: Row) -> None:
    process = await row.start()
    stuck = await Client(stage, "stuck", window=1).join(process.sharing)
    other = (await Client(stage, "other").join(process.sharing)).answer_from_now_on()
    said = await say(stage, 20, 2)
    await soon(lambda: stuck.got, "it has one")
    held = stuck.got[0].record.topic
    await row.pass_time(4_800)
    before = len(other.got)
    assert before < 38
    await row.until(lambda: len(other.got) == 38, "all but the device whose message it still has")
    assert held not in {entry.record.topic for entry in other.got[before:]}
    stuck.member.end()
    await soon(lambda: len(other.got) == 40, "and in the end that one")
    assert Counter(other.values) == Counter(said)
    assert in_order(other.got)


async def test_an_expired_message_is_not_handed_out_and_booked_as_expired(stage: Stage, row: Row) -> None:
    process = await row.start()
    one = await Client(stage, "one", window=0).join(process.sharing)
    await say(stage, 2, 1, expires_at=stage.clock.now() + 1_000)
    await row.pass_time(1_200)
    fresh = await say(stage, 1, 1)
    one.window = 10
    one.pump()
    await soon(lambda: one.got, "the fresh one")
    one.answer()
    await row.pass_time(300)
    assert one.values == fresh
    assert await tally(stage) == Tally(applied=1, expired=2)


async def test_retention_waits_for_a_group_and_past_the_cap_it_is_booked_as_lost(stage: Stage, row: Row) -> None:
    process = await row.start()
    one = await Client(stage, "one").join(process.sharing)
    one.member.end()
    await row.pass_time(300)
    partition = stage.record(topic(1)).partition
    await stage.say(*[stage.record(topic(1)) for _ in range(5)])
    stage.clock.advance(HOUR)
    patient = Retention(max_age=1, max_bytes=1 << 40, hard_age=10 * HOUR, hard_bytes=1 << 40)
    assert await stage.log.retain(partition, patient, stage.clock.now()) is None
    gap = await stage.log.retain(partition, Retention(1, 1 << 40, 1, 1 << 40), stage.clock.now())
    assert gap is not None
    assert gap.missing == 5
    said = await stage.say(stage.record(topic(1)))
    two = await Client(stage, "two").join(process.sharing)
    await soon(lambda: two.got, "it goes on behind the gap")
    assert [entry.position for entry in two.got] == said
    two.answer()
    await row.pass_time(300)
    assert await tally(stage) == Tally(applied=1, lost=5)


# -- processes


async def test_partitions_are_shared_fairly_among_processes_with_members(stage: Stage, row: Row) -> None:
    first = await row.start()
    one = (await Client(stage, "one").join(first.sharing)).answer_from_now_on()
    said = await say(stage, 40, 1)
    second = await row.start()
    two = (await Client(stage, "two").join(second.sharing)).answer_from_now_on()

    def held(process: Process) -> int:
        return len(process.sharing._groups[SHARE.reader].leases.lanes)

    await row.until(lambda: (held(first), held(second)) == (2, 2), "two partitions each")
    said += await say(stage, 40, 1)
    await row.until(lambda: len(one.got) + len(two.got) == 80, "everything has come")
    assert two.got
    assert Counter(one.values + two.values) == Counter(said)
    await row.pass_time(3_000)
    assert (held(first), held(second)) == (2, 2)
    two.member.end()
    await row.until(lambda: held(first) == 4, "who is left has all")


async def test_a_partition_moves_only_when_nothing_of_it_is_under_way(stage: Stage, row: Row) -> None:
    first = await row.start()
    one = await Client(stage, "one").join(first.sharing)
    said = await say(stage, 40, 1)
    await soon(lambda: len(one.got) == 40, "one has everything under way")
    second = await row.start()
    two = (await Client(stage, "two").join(second.sharing)).answer_from_now_on()
    await row.pass_time(9_000)
    said += await say(stage, 40, 1)
    await row.pass_time(300)
    assert two.got == []
    one.answer_from_now_on()
    await row.until(lambda: len(one.got) + len(two.got) == 80, "everything has come")
    assert Counter(one.values + two.values) == Counter(said)
    assert in_order([*one.got, *two.got])


async def test_another_process_goes_on_within_a_second_after_the_lease(stage: Stage, row: Row) -> None:
    first = await row.start()
    one = await Client(stage, "one").join(first.sharing)
    said = await say(stage, 8, 2)
    await soon(lambda: len(one.got) == 16, "one has everything")
    second = await row.start()
    two = (await Client(stage, "two").join(second.sharing)).answer_from_now_on()
    one.answer(5)
    await row.pass_time(300)
    answered = {entry.record.message_id for entry in one.got[:5]}
    await row.die(first)
    await row.pass_time(1_500)
    await soon(lambda: set(two.values) >= set(said) - answered, "two has all that was not answered")
    assert in_order(two.got)
    late = len(two.got)
    one.answer()
    with pytest.raises(AssertionError, match="it did not happen"):
        await row.until(lambda: len(two.got) != late, "nothing more comes")
    await first.sharing.tick()  # it wakes up again: it is fenced off, and lets go
    assert await tally(stage) == Tally(applied=16)
    assert first.sharing._groups[SHARE.reader].leases.lanes == {}


async def test_a_stuck_message_does_not_bring_back_all_that_was_settled_behind_it(stage: Stage, row: Row) -> None:
    first = await row.start()
    stuck = await Client(stage, "stuck", window=1).join(first.sharing)
    other = (await Client(stage, "other").join(first.sharing)).answer_from_now_on()
    said = await say(stage, 20, 2)
    await row.until(lambda: len(other.got) == 38, "the rest is with the other one")
    await row.pass_time(6_000)
    assert len(await stage.documents.scan("share-marks")) == 1
    await row.die(first)
    second = await row.start()
    third = (await Client(stage, "third").join(second.sharing)).answer_from_now_on()
    await row.until(lambda: len(third.got) == 2, "only that device's messages come again")
    assert Counter(third.values + other.values) == Counter(said)
    assert third.values[0] == stuck.values[0]
    await row.pass_time(6_000)
    assert await stage.documents.scan("share-marks") == []
    assert await tally(stage) == Tally(applied=40)


async def test_without_a_lease_in_time_nothing_more_is_handed_out(stage: Stage, row: Row) -> None:
    process = await row.start()
    one = await Client(stage, "one").join(process.sharing)
    stage.clock.advance(1_000)
    said = await say(stage, 3, 1)
    assert one.got == []
    await row.pass_time(300)
    await soon(lambda: len(one.got) == 3, "it is renewed")
    assert set(one.values) == set(said)


class Away:
    """A log that can be away for reading, leasing and committing."""

    def __init__(self, stage: Stage) -> None:
        self._log = stage.log
        self.away = False

    def __getattr__(self, name: str) -> object:
        if self.away and name in ("read", "lease", "commit", "committed", "register"):
            return self._refuse
        return getattr(self._log, name)

    async def _refuse(self, *_: object, **__: object) -> Slice:
        raise LogUnavailable("the log is away")


async def test_a_log_that_comes_back_is_read_on(stage: Stage, row: Row) -> None:
    away = Away(stage)
    process = Process(stage)
    process.sharing = Sharing(away, stage.documents, process.feed, monotonic=lambda: stage.monotonic)  # type: ignore[arg-type]  # the part that the groups use
    await process.start()
    one = await Client(stage, "one").join(process.sharing)
    away.away = True
    said = await say(stage, 5, 2)
    for _ in range(5):
        stage.clock.advance(300)
        with pytest.raises(LogUnavailable):
            await process.sharing.tick()
    away.away = False
    row.processes.append(process)
    await row.until(lambda: len(one.got) == 10, "everything has come")
    one.answer()
    await row.pass_time(300)
    assert set(one.values) == set(said)
    assert await tally(stage) == Tally(applied=10)


async def test_a_backlog_is_read_from_the_log_by_all_members(stage: Stage, row: Row) -> None:
    process = await row.start(ShareSettings(queue_bytes=20_000))
    (await Client(stage, "zero").join(process.sharing)).member.end()
    await row.pass_time(300)
    said = []
    for _ in range(30):
        said += await say(stage, 50, 2)
    clients = [await Client(stage, name, window=20).join(process.sharing) for name in "abc"]
    for _ in range(5_000):
        if sum(len(client.got) for client in clients) == len(said):
            break
        for client in clients:
            client.answer(10)
        await asyncio.sleep(0)
    assert Counter(value for client in clients for value in client.values) == Counter(said)
    assert all(in_order(client.got) for client in clients)


async def test_every_account_of_the_group_balances(stage: Stage, row: Row) -> None:
    process = await row.start()
    one = await Client(stage, "one").join(process.sharing)
    await say(stage, 10, 2)
    await soon(lambda: len(one.got) == 20, "it has them")
    one.answer(7)
    await row.pass_time(300)
    for partition, progress in (await stage.log.committed(SHARE.reader)).items():
        assert sum(progress.tally) == progress.position.offset - progress.start.offset, partition


def test_a_share_is_a_reader_of_its_domain() -> None:
    assert SHARE.reader == f"{DOMAIN}/share/workers/{FILTER}"
    assert SHARE.text == f"$share/workers/{FILTER}"
    assert parse_share(SHARE.text) == SHARE
    assert Partition(DOMAIN, "telemetry", 0).domain == SHARE.filter.domain
