"""Field cases B12 and B13: work that was trimmed away under its consumers is counted, and never loops."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.redis.log import RedisMessagingDriver
from iotsphere.drivers.redis.queue import RedisWorkQueue
from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import RequestInvalid
from iotsphere.entities.message import Record
from iotsphere.entities.position import Gap, Position
from iotsphere.use_cases.ports.work_queue import Backlog
from tests.contracts.log_retention import FOREVER
from tests.contracts.records import BEGINNING, CHANNELS, DOMAIN, P0, P1, ids, records
from tests.contracts.work_queue import GROUP, attempts, places
from tests.support.servers import Server

from .patience import PATIENT


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def log(redis_server: Server, clock: ManualClock) -> AsyncIterator[RedisMessagingDriver]:
    async with RedisMessagingDriver(f"redis://127.0.0.1:{redis_server.port}", clock, options=PATIENT) as log:
        await log.ensure(DOMAIN, CHANNELS)
        yield log


@pytest.fixture
def by_hand(redis_server: Server) -> redis.Redis:
    return redis.Redis(port=redis_server.port)


def stream(log: RedisMessagingDriver) -> str:
    return log.keys.partition(P0).log


async def test_case_b12_pending_entries_whose_stream_entry_was_trimmed(
    redis_server: Server, log: RedisMessagingDriver, by_hand: redis.Redis, clock: ManualClock
) -> None:
    await log.append(records(5))
    await RedisWorkQueue(log).create(GROUP, [(P0, BEGINNING)])
    assert len(await RedisWorkQueue(log).take(GROUP, "worker", 5, visibility=1_000)) == 5
    assert by_hand.xtrim(stream(log), maxlen=0) == 5
    assert by_hand.xpending(stream(log), GROUP)["pending"] == 5
    async with RedisMessagingDriver(f"redis://127.0.0.1:{redis_server.port}", clock, options=PATIENT) as restarted:
        queue = RedisWorkQueue(restarted)
        clock.advance(2_000)
        assert list(await queue.take(GROUP, "worker", 5)) == []
        assert by_hand.xpending(stream(log), GROUP)["pending"] == 0
        assert list(await queue.backlog(GROUP)) == [Backlog(P0, 0, 0, 0, 5, start=0)]
        assert list(await queue.take(GROUP, "worker", 5)) == []
        fresh = records(1)
        await log.append(fresh)
        assert ids([one.entry for one in await queue.take(GROUP, "worker", 5)]) == ids_of(fresh)
        assert list(await queue.backlog(GROUP)) == [Backlog(P0, 0, 1, 0, 5, start=0)]


async def test_case_b12_the_backlog_alone_finds_what_vanished(log: RedisMessagingDriver, by_hand: redis.Redis) -> None:
    queue = RedisWorkQueue(log)
    await log.append(records(6))
    await queue.create(GROUP, [(P0, BEGINNING)])
    taken = await queue.take(GROUP, "worker", 4)
    by_hand.xtrim(stream(log), maxlen=1, approximate=False)
    # The four that are held, and one that nobody had taken yet.
    assert list(await queue.backlog(GROUP)) == [Backlog(P0, 1, 0, 0, 5, start=0)]
    assert await queue.ack(GROUP, places(taken)) == 0
    assert attempts(await queue.take(GROUP, "worker", 9)) == [(6, 1)]


async def test_case_b12_an_entry_removed_from_the_middle_is_lost_alone(
    log: RedisMessagingDriver, by_hand: redis.Redis, clock: ManualClock
) -> None:
    queue = RedisWorkQueue(log)
    positions = (await log.append(records(4))).positions
    await queue.create(GROUP, [(P0, BEGINNING)])
    await queue.take(GROUP, "worker", 2, visibility=1_000)
    for position in (positions[1], positions[2]):
        by_hand.xdel(stream(log), f"{position.epoch}-{position.offset}")
    clock.advance(2_000)
    assert attempts(await queue.take(GROUP, "worker", 9)) == [(1, 2), (4, 1)]
    assert list(await queue.backlog(GROUP)) == [Backlog(P0, 0, 2, 0, 2, start=0)]
    piece = await log.read(P0, positions[0])
    assert piece.gap == Gap(P0, 2, 3, "corrupt")
    assert [entry.position for entry in piece.entries] == [positions[3]]


async def test_case_b13_trimming_waits_for_what_nobody_has_read(log: RedisMessagingDriver) -> None:
    queue = RedisWorkQueue(log)
    await queue.create(GROUP, [(P0, BEGINNING)])
    batch = records(10)
    await log.append(batch)
    soft = Retention(max_age=0, max_bytes=0, hard_age=FOREVER, hard_bytes=FOREVER)
    assert await log.retain(P0, soft, FOREVER) is None
    assert ids([one.entry for one in await queue.take(GROUP, "worker", 20)]) == ids_of(batch)
    assert list(await queue.backlog(GROUP)) == [Backlog(P0, 0, 10, 0, 0, start=0)]


async def test_case_b13_past_the_cap_the_loss_is_counted_exactly(log: RedisMessagingDriver) -> None:
    queue = RedisWorkQueue(log)
    await queue.create(GROUP, [(P0, BEGINNING)])
    batch = records(10, size=1_000)
    await log.append(batch)
    cap = Retention(max_age=FOREVER, max_bytes=0, hard_age=FOREVER, hard_bytes=3_600)
    assert await log.retain(P0, cap, 0) == Gap(P0, 1, 7, "retention")
    assert list(await queue.backlog(GROUP)) == [Backlog(P0, 3, 0, 0, 7, start=0)]
    assert ids([one.entry for one in await queue.take(GROUP, "worker", 20)]) == ids_of(batch[7:])
    assert list(await queue.backlog(GROUP)) == [Backlog(P0, 0, 3, 0, 7, start=0)]
    assert list(await log.losses(DOMAIN)) == [(GROUP, Gap(P0, 1, 7, "retention"))]


async def test_case_b13_somebody_elses_maxlen_is_counted_too(log: RedisMessagingDriver, by_hand: redis.Redis) -> None:
    queue = RedisWorkQueue(log)
    await queue.create(GROUP, [(P0, BEGINNING)])
    batch = records(10)
    positions = (await log.append(batch)).positions
    by_hand.xtrim(stream(log), maxlen=3, approximate=False)
    assert ids([one.entry for one in await queue.take(GROUP, "worker", 20)]) == ids_of(batch[7:])
    assert list(await queue.backlog(GROUP)) == [Backlog(P0, 0, 3, 0, 7, start=0)]
    assert (await log.read(P0, positions[0])).gap == Gap(P0, 2, 7, "retention")


async def test_a_group_of_an_emptied_server_is_made_again_once(log: RedisMessagingDriver, by_hand: redis.Redis) -> None:
    queue = RedisWorkQueue(log)
    await queue.create(GROUP, [(P0, BEGINNING), (P1, BEGINNING)])
    await log.append(records(3))
    assert len(await queue.take(GROUP, "worker", 5)) == 3
    by_hand.flushall()
    batch = records(2)
    await log.append(batch)
    found = [*await queue.take(GROUP, "worker", 5), *await queue.take(GROUP, "worker", 5)]
    assert ids([one.entry for one in found]) == ids_of(batch)
    by_hand.xgroup_destroy(stream(log), GROUP)
    batch += records(1)
    await log.append(batch[2:])
    again = [*await queue.take(GROUP, "worker", 5), *await queue.take(GROUP, "worker", 5)]
    assert ids([one.entry for one in again]) == ids_of(batch)


async def test_a_group_that_another_process_deleted_stays_deleted(
    redis_server: Server, log: RedisMessagingDriver, clock: ManualClock
) -> None:
    queue = RedisWorkQueue(log)
    await queue.create(GROUP, [(P0, BEGINNING)])
    await log.append(records(3))
    assert len(await queue.take(GROUP, "worker", 1)) == 1
    async with RedisMessagingDriver(f"redis://127.0.0.1:{redis_server.port}", clock, options=PATIENT) as other:
        await RedisWorkQueue(other).delete(GROUP)
    with pytest.raises(RequestInvalid):
        await queue.take(GROUP, "worker", 1)
    with pytest.raises(RequestInvalid):
        await queue.ack(GROUP, [(P0, Position(1, 1))])
    assert list(await queue.groups(DOMAIN)) == []


def ids_of(batch: list[Record]) -> list[str]:
    return [one.message_id for one in batch]
