"""Work queues: each message to one member, again when it was not acknowledged, and to the dead letters in the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.entities.errors import Conflict, Forbidden, RequestInvalid
from iotsphere.entities.message import Record
from iotsphere.entities.position import Partition, Position
from iotsphere.entities.principal import device
from iotsphere.entities.subscription import Start, Subscription
from iotsphere.entities.topic import parse_filter
from iotsphere.use_cases.ports.work_queue import Delivery
from iotsphere.use_cases.work import Handout, Member, WorkQueueUseCase, WorkSettings, WorkStores, parse_token
from tests.use_cases.stage import DOMAIN, Stage, open_stage

TOPIC = f"{DOMAIN}/devices/d1/telemetry/temperature"
FILTER = f"{DOMAIN}/devices/+/telemetry/#"
LIVE = Start("live")
LETTERS = f"{DOMAIN}/system/dead-letters"


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_stage(partitions=1) as opened:
        yield opened


@pytest.fixture
def work(stage: Stage) -> WorkQueueUseCase:
    def bury(delivery: Delivery, attempts: int) -> Record:
        return stage.record(LETTERS, b"%d attempts at %b" % (attempts, delivery.entry.record.message_id.encode()))

    stores = WorkStores(stage.log, stage.queue, stage.documents)
    return WorkQueueUseCase(stores, stage.feed, stage.publish, bury, WorkSettings(visibility=1_000, max_attempts=2))


async def join(
    stage: Stage, work: WorkQueueUseCase, *filters: str, start: Start = LIVE, name: str = "billing"
) -> Member:
    wanted = tuple(parse_filter(text) for text in filters or (FILTER,))
    return await work(stage.principal, name, Subscription(wanted, start))


def offsets(handouts: list[Handout]) -> list[int]:
    return [handout.entry.position.offset for handout in handouts]


async def test_members_share_the_messages(stage: Stage, work: WorkQueueUseCase) -> None:
    one, two = await join(stage, work), await join(stage, work)
    await stage.say(*(stage.record(TOPIC) for _ in range(5)))
    first, second = await one.take(3), await two.take(10)
    assert offsets(first) == [1, 2, 3]
    assert offsets(second) == [4, 5]
    assert await one.acknowledge([handout.token for handout in first]) == 3
    assert await one.acknowledge([handout.token for handout in first]) == 0


async def test_a_waiting_member_is_woken_by_the_next_message(stage: Stage, work: WorkQueueUseCase) -> None:
    member = await join(stage, work)
    waiting = asyncio.ensure_future(member.take(10))
    await asyncio.sleep(0)
    await stage.say(stage.record(f"{DOMAIN}/system/status"))
    assert not waiting.done()
    await stage.say(stage.record(TOPIC))
    assert offsets(await waiting) == [1]


async def test_what_is_not_acknowledged_comes_again_and_is_poison_in_the_end(
    stage: Stage, work: WorkQueueUseCase
) -> None:
    one, two = await join(stage, work), await join(stage, work)
    await stage.say(stage.record(TOPIC), stage.record(TOPIC))
    (bad, good) = await one.take(10)
    assert await one.acknowledge([good.token]) == 1
    stage.clock.advance(1_001)
    (again,) = await two.take(10)
    assert (again.token, again.attempt) == (bad.token, 2)
    stage.clock.advance(1_001)
    await stage.say(stage.record(TOPIC))
    (following,) = await one.take(10)
    assert following.entry.position.offset == 3
    assert work.dead_lettered == 1
    (letter,) = stage.entries(lambda topic: topic == LETTERS)
    assert letter.record.body == b"2 attempts at " + bad.entry.record.message_id.encode()
    (backlog,) = await stage.queue.backlog(f"{DOMAIN}/billing")
    assert (backlog.waiting, backlog.pending, backlog.acknowledged) == (0, 1, 2)


async def test_a_message_that_kills_its_member_takes_no_other_along(stage: Stage, work: WorkQueueUseCase) -> None:
    await join(stage, work)
    await stage.say(*(stage.record(TOPIC) for _ in range(50)))
    done: list[int] = []
    for _ in range(3):
        member = await join(stage, work)  # the one before has died of offset 7
        stage.clock.advance(1_001)
        while len(done) < 49:
            handouts = await member.take(10)
            if 7 in offsets(handouts):
                break
            assert await member.acknowledge([handout.token for handout in handouts]) == len(handouts)
            done += offsets(handouts)
    assert sorted(done) == [offset for offset in range(1, 51) if offset != 7]
    stage.clock.advance(1_001)
    assert await work.take(member.group, member.consumer, member.subscription, 10) == []
    (letter,) = stage.entries(lambda topic: topic == LETTERS)
    assert letter.record.body.startswith(b"2 attempts")


async def test_a_message_given_back_comes_after_its_delay(stage: Stage, work: WorkQueueUseCase) -> None:
    member = await join(stage, work)
    await stage.say(stage.record(TOPIC))
    (handout,) = await member.take(10)
    assert await member.acknowledge([handout.token], retry_in=200) == 1
    stage.clock.advance(199)
    assert await work.take(member.group, member.consumer, member.subscription, 10) == []
    stage.clock.advance(1)
    (again,) = await member.take(10)
    assert again.attempt == 2


async def test_thousands_of_foreign_messages_are_passed_over(stage: Stage, work: WorkQueueUseCase) -> None:
    member = await join(stage, work, f"{DOMAIN}/devices/d9/telemetry")
    await stage.say(*(stage.record(TOPIC) for _ in range(5_000)), stage.record(f"{DOMAIN}/devices/d9/telemetry"))
    (found,) = await member.take(2)
    assert found.entry.position.offset == 5_001
    (backlog,) = await stage.queue.backlog(member.group)
    assert (backlog.waiting, backlog.pending) == (0, 1)


async def test_expired_messages_are_passed_over_and_counted(stage: Stage, work: WorkQueueUseCase) -> None:
    member = await join(stage, work)
    await stage.say(stage.record(TOPIC, expires_at=stage.clock.now() + 5), stage.record(TOPIC))
    stage.clock.advance(10)
    assert offsets(await member.take(10)) == [2]
    assert work.expired == 1


async def test_a_group_begins_where_its_first_member_says(stage: Stage, work: WorkQueueUseCase) -> None:
    await stage.say(stage.record(TOPIC))
    stage.clock.advance(100)
    noon = stage.clock.now()
    await stage.say(stage.record(TOPIC))
    for name, start in (("all", Start("earliest")), ("late", Start("time", time=noon)), ("new", LIVE)):
        await join(stage, work, start=start, name=name)
    await stage.say(stage.record(TOPIC))
    for name, expected in (("all", [1, 2, 3]), ("late", [2, 3]), ("new", [3])):
        member = await join(stage, work, start=Start("earliest"), name=name)
        assert offsets(await member.take(10)) == expected


async def test_a_group_has_one_set_of_filters(stage: Stage, work: WorkQueueUseCase) -> None:
    await join(stage, work, FILTER, TOPIC)
    await join(stage, work, TOPIC, FILTER)
    with pytest.raises(Conflict, match="other filters"):
        await join(stage, work, TOPIC)


async def test_members_that_join_at_once_agree_on_the_filters(stage: Stage, work: WorkQueueUseCase) -> None:
    results = await asyncio.gather(
        *(join(stage, work, filters) for filters in (FILTER, TOPIC) * 5), return_exceptions=True
    )
    kinds = [type(result) for result in results]
    assert kinds.count(Member) == kinds.count(Conflict) == 5


async def test_a_member_needs_the_right_to_listen(work: WorkQueueUseCase) -> None:
    with pytest.raises(Forbidden):
        await work(device(DOMAIN, "d1"), "billing", Subscription((parse_filter(FILTER),)))


@given(st.text())
def test_tokens_are_read_or_refused(text: str) -> None:
    try:
        partition, position = parse_token(DOMAIN, text)
    except RequestInvalid:
        return
    assert partition.domain == DOMAIN
    assert position >= Position(0, 0)


def test_token_names_its_place() -> None:
    assert parse_token(DOMAIN, "telemetry.3.17.99") == (Partition(DOMAIN, "telemetry", 3), Position(17, 99))
    for text in ("", "telemetry.3.17", "telemetry.-1.2.3", "telemetry.1.2.²", "telemetry.1.2." + "9" * 30):
        with pytest.raises(RequestInvalid):
            parse_token(DOMAIN, text)
