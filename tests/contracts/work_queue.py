"""The contract of ``WorkQueue``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import RequestInvalid
from iotsphere.entities.position import Partition, Position
from iotsphere.use_cases.ports.message_log import MessageLog
from iotsphere.use_cases.ports.work_queue import Backlog, Delivery, WorkQueue

from .records import BEGINNING, CHANNELS, DOMAIN, P0, P1, ids, offsets, records
from .times import PassTime, TurnedByHand

GROUP = "iotsphere/workers"
FOREVER = 1 << 50
SOFT = Retention(max_age=0, max_bytes=0, hard_age=FOREVER, hard_bytes=FOREVER)
HARD = Retention(max_age=0, max_bytes=0, hard_age=0, hard_bytes=0)


def places(deliveries: Sequence[Delivery]) -> list[tuple[Partition, Position]]:
    """What ``ack`` wants to know."""
    return [(delivery.partition, delivery.entry.position) for delivery in deliveries]


def attempts(deliveries: Sequence[Delivery]) -> list[tuple[int, int]]:
    """(offset, attempt) of each delivery."""
    return [(delivery.entry.position.offset, delivery.attempt) for delivery in deliveries]


class WorkQueueContract(TurnedByHand):
    """Needs the fixtures ``log`` (open, empty, without any domain) and ``queue`` over it."""

    @pytest.fixture(autouse=True)
    async def channels(self, log: MessageLog) -> None:
        await log.ensure(DOMAIN, CHANNELS)

    async def test_entries_are_handed_out_once_and_in_order(self, log: MessageLog, queue: WorkQueue) -> None:
        batch = records(5)
        await log.append(batch)
        await queue.create(GROUP, [(P0, BEGINNING)])
        first = await queue.take(GROUP, "one", 3)
        second = await queue.take(GROUP, "two", 3)
        assert ids([delivery.entry for delivery in (*first, *second)]) == [one.message_id for one in batch]
        assert first[0].entry.record == batch[0]
        assert {(delivery.group, delivery.partition, delivery.attempt) for delivery in first} == {(GROUP, P0, 1)}
        assert list(await queue.take(GROUP, "two", 3)) == []

    async def test_a_group_begins_where_it_was_made(self, log: MessageLog, queue: WorkQueue) -> None:
        positions = (await log.append(records(4))).positions
        await log.append(records(2, P1))
        await queue.create(GROUP, [(P0, positions[2]), (P1, BEGINNING)])
        taken = await queue.take(GROUP, "one", 10)
        assert sorted((partition.number, position.offset) for partition, position in places(taken)) == [
            (0, 4),
            (1, 1),
            (1, 2),
        ]

    async def test_making_a_group_again_changes_nothing(self, log: MessageLog, queue: WorkQueue) -> None:
        await log.append(records(2))
        await queue.create(GROUP, [(P0, BEGINNING)])
        await queue.take(GROUP, "one", 1)
        await queue.create(GROUP, [(P0, BEGINNING)])
        assert attempts(await queue.take(GROUP, "one", 10)) == [(2, 1)]

    async def test_groups_are_independent(self, log: MessageLog, queue: WorkQueue) -> None:
        await log.append(records(2))
        await queue.create(GROUP, [(P0, BEGINNING)])
        await queue.create("iotsphere/others", [(P0, BEGINNING)])
        await queue.ack(GROUP, places(await queue.take(GROUP, "one", 10)))
        assert attempts(await queue.take("iotsphere/others", "one", 10)) == [(1, 1), (2, 1)]

    async def test_no_partition_starves(self, log: MessageLog, queue: WorkQueue) -> None:
        await log.append([*records(40, P0), *records(40, P1)])
        await queue.create(GROUP, [(P0, BEGINNING), (P1, BEGINNING)])
        seen = {delivery.partition for _ in range(20) for delivery in await queue.take(GROUP, "one", 1)}
        assert seen == {P0, P1}

    async def test_what_is_acknowledged_never_comes_back(
        self, log: MessageLog, queue: WorkQueue, pass_time: PassTime
    ) -> None:
        await log.append(records(3))
        await queue.create(GROUP, [(P0, BEGINNING)])
        taken = await queue.take(GROUP, "one", 3, visibility=50)
        assert await queue.ack(GROUP, places(taken[:2])) == 2
        assert await queue.ack(GROUP, places(taken[:2])) == 0
        await pass_time(100)
        assert attempts(await queue.take(GROUP, "two", 3)) == [(3, 2)]

    async def test_what_was_not_taken_cannot_be_acknowledged(self, log: MessageLog, queue: WorkQueue) -> None:
        positions = (await log.append(records(2))).positions
        await queue.create(GROUP, [(P0, BEGINNING)])
        assert await queue.ack(GROUP, [(P0, positions[0]), (P1, positions[0])]) == 0
        assert await queue.ack(GROUP, []) == 0
        assert len(await queue.take(GROUP, "one", 5)) == 2

    async def test_what_a_dead_consumer_held_comes_back_before_new_entries(
        self, log: MessageLog, queue: WorkQueue, pass_time: PassTime
    ) -> None:
        await log.append(records(4))
        await queue.create(GROUP, [(P0, BEGINNING)])
        await queue.take(GROUP, "one", 2, visibility=50)
        await pass_time(100)
        assert attempts(await queue.take(GROUP, "two", 3, visibility=50)) == [(1, 2), (2, 2), (3, 1)]
        await pass_time(100)
        assert attempts(await queue.take(GROUP, "three", 10)) == [(1, 3), (2, 3), (3, 2), (4, 1)]

    async def test_what_came_back_too_often_comes_alone(
        self, log: MessageLog, queue: WorkQueue, pass_time: PassTime
    ) -> None:
        await log.append(records(3))
        await queue.create(GROUP, [(P0, BEGINNING), (P1, BEGINNING)])
        assert attempts(await queue.take(GROUP, "one", 3, visibility=50, alone=3)) == [(1, 1), (2, 1), (3, 1)]
        await pass_time(100)
        assert attempts(await queue.take(GROUP, "one", 2, visibility=50, alone=3)) == [(1, 2), (2, 2)]
        await pass_time(100)
        await log.append(records(1, P1))
        taken = [await queue.take(GROUP, "one", 10, visibility=60_000, alone=3) for _ in range(4)]
        seen = [attempts(deliveries) for deliveries in taken]
        assert [(1, 3)] in seen
        assert [(2, 3)] in seen
        assert sorted(place for one in seen for place in one) == [(1, 1), (1, 3), (2, 3), (3, 2)]
        assert list(await queue.take(GROUP, "one", 10, alone=3)) == []

    async def test_an_entry_that_is_always_alone(self, log: MessageLog, queue: WorkQueue, pass_time: PassTime) -> None:
        await log.append(records(2))
        await queue.create(GROUP, [(P0, BEGINNING)])
        assert attempts(await queue.take(GROUP, "one", 10, visibility=50, alone=1)) == [(1, 1)]
        assert attempts(await queue.take(GROUP, "one", 10, visibility=50, alone=1)) == [(2, 1)]
        await pass_time(100)
        assert attempts(await queue.take(GROUP, "one", 10, visibility=50, alone=1)) == [(1, 2)]

    async def test_a_hidden_entry_stays_hidden(self, log: MessageLog, queue: WorkQueue, pass_time: PassTime) -> None:
        await log.append(records(1))
        await queue.create(GROUP, [(P0, BEGINNING)])
        await queue.take(GROUP, "one", 1, visibility=60_000)
        await pass_time(100)
        assert list(await queue.take(GROUP, "two", 1)) == []
        assert list(await queue.take(GROUP, "one", 1)) == []

    async def test_a_nacked_entry_comes_back_at_once(self, log: MessageLog, queue: WorkQueue) -> None:
        await log.append(records(3))
        await queue.create(GROUP, [(P0, BEGINNING)])
        taken = await queue.take(GROUP, "one", 2)
        await queue.nack(GROUP, places(taken)[1])
        assert attempts(await queue.take(GROUP, "two", 5)) == [(2, 2), (3, 1)]

    async def test_a_nacked_entry_waits_for_its_delay(
        self, log: MessageLog, queue: WorkQueue, pass_time: PassTime
    ) -> None:
        await log.append(records(2))
        await queue.create(GROUP, [(P0, BEGINNING)])
        taken = await queue.take(GROUP, "one", 2, visibility=60_000)
        await queue.nack(GROUP, places(taken)[0], delay=50)
        await queue.nack(GROUP, places(taken)[1], delay=60_000)
        await pass_time(100)
        assert attempts(await queue.take(GROUP, "one", 5)) == [(1, 2)]

    async def test_a_try_that_was_not_the_entrys_fault_does_not_count(
        self, log: MessageLog, queue: WorkQueue, pass_time: PassTime
    ) -> None:
        await log.append(records(1))
        await queue.create(GROUP, [(P0, BEGINNING)])
        for _ in range(4):
            taken = await queue.take(GROUP, "one", 1, visibility=50)
            assert attempts(taken) == [(1, 1)]
            await queue.nack(GROUP, places(taken)[0], counted=False)
            await queue.nack(GROUP, places(taken)[0], counted=False)  # repeating changes nothing
        await queue.take(GROUP, "one", 1, visibility=50)
        await pass_time(100)
        taken = await queue.take(GROUP, "two", 1)
        assert attempts(taken) == [(1, 2)]
        await queue.nack(GROUP, places(taken)[0], counted=False)
        taken = await queue.take(GROUP, "two", 1)
        assert attempts(taken) == [(1, 2)]
        await queue.nack(GROUP, places(taken)[0])
        assert attempts(await queue.take(GROUP, "two", 1)) == [(1, 3)]

    async def test_a_nack_of_what_is_done_is_nothing(self, log: MessageLog, queue: WorkQueue) -> None:
        await log.append(records(1))
        await queue.create(GROUP, [(P0, BEGINNING)])
        (place,) = places(await queue.take(GROUP, "one", 1))
        await queue.ack(GROUP, [place])
        await queue.nack(GROUP, place)
        assert list(await queue.take(GROUP, "one", 1)) == []

    async def test_a_consumer_can_keep_an_entry_for_longer(
        self, log: MessageLog, queue: WorkQueue, pass_time: PassTime
    ) -> None:
        await log.append(records(2))
        await queue.create(GROUP, [(P0, BEGINNING)])
        kept, dropped = places(await queue.take(GROUP, "one", 2, visibility=50))
        assert await queue.extend(GROUP, "one", kept, 60_000) is True
        await pass_time(100)
        assert attempts(await queue.take(GROUP, "two", 5)) == [(2, 2)]
        assert await queue.extend(GROUP, "one", dropped, 60_000) is False
        assert await queue.extend(GROUP, "two", dropped, 60_000) is True
        await queue.nack(GROUP, dropped, delay=60_000)
        assert await queue.extend(GROUP, "two", dropped, 60_000) is False
        assert await queue.ack(GROUP, [kept]) == 1
        assert await queue.extend(GROUP, "one", kept, 60_000) is False

    async def test_competing_consumers_share_the_work(self, log: MessageLog, queue: WorkQueue) -> None:
        await log.append([*records(60, P0), *records(60, P1)])
        await queue.create(GROUP, [(P0, BEGINNING), (P1, BEGINNING)])
        done: list[tuple[Partition, Position]] = []

        async def work(name: str) -> None:
            while taken := await queue.take(GROUP, name, 7):
                done.extend(places(taken))
                assert await queue.ack(GROUP, places(taken)) == len(taken)

        await asyncio.gather(*(work(f"w{number}") for number in range(5)))
        assert len(done) == len(set(done)) == 120
        for partition in (P0, P1):
            assert (await self._backlog(queue, partition)).acknowledged == 60

    async def test_the_backlog_adds_up(self, log: MessageLog, queue: WorkQueue) -> None:
        await log.append(records(7))
        await queue.create(GROUP, [(P0, BEGINNING), (P1, BEGINNING)])
        taken = await queue.take(GROUP, "one", 4)
        await queue.ack(GROUP, places(taken[:1]))
        await queue.nack(GROUP, places(taken)[1], delay=60_000)
        assert [backlog.partition for backlog in await queue.backlog(GROUP)] == [P0, P1]
        assert await self._backlog(queue, P0) == Backlog(P0, 3, 3, 1, 0)
        assert await self._backlog(queue, P1) == Backlog(P1, 0, 0, 0, 0)
        await log.append(records(2))
        assert (await self._backlog(queue, P0)).waiting == 5

    async def test_the_backlog_knows_where_the_group_began_or_says_nothing(
        self, log: MessageLog, queue: WorkQueue
    ) -> None:
        positions = (await log.append(records(5))).positions
        await queue.create(GROUP, [(P0, positions[1])])
        await queue.ack(GROUP, places(await queue.take(GROUP, "one", 2)))
        (backlog,) = await queue.backlog(GROUP)
        assert backlog.start in (2, None)
        assert (backlog.waiting, backlog.acknowledged) == (1, 2)

    async def test_retention_waits_for_the_oldest_unacknowledged_entry(self, log: MessageLog, queue: WorkQueue) -> None:
        positions = (await log.append(records(8))).positions
        await queue.create(GROUP, [(P0, BEGINNING)])
        assert await log.retain(P0, SOFT, FOREVER) is None
        assert (await log.bounds(P0)).first == positions[0]
        taken = places(await queue.take(GROUP, "one", 5))
        await queue.ack(GROUP, [*taken[:2], taken[3]])
        assert await log.retain(P0, SOFT, FOREVER) is None
        assert (await log.bounds(P0)).first == positions[2]
        await queue.ack(GROUP, taken)
        assert await log.retain(P0, SOFT, FOREVER) is None
        assert (await log.bounds(P0)).first == positions[5]
        await queue.delete(GROUP)
        assert await log.retain(P0, SOFT, FOREVER) is None
        assert (await log.bounds(P0)).first.offset == 9

    async def test_entries_that_vanished_are_counted_as_lost(
        self, log: MessageLog, queue: WorkQueue, pass_time: PassTime
    ) -> None:
        await log.append(records(6))
        await queue.create(GROUP, [(P0, BEGINNING)])
        taken = await queue.take(GROUP, "one", 3, visibility=50)
        await queue.ack(GROUP, places(taken[:1]))
        gap = await log.retain(P0, HARD, FOREVER)
        assert gap is not None
        assert (gap.first, gap.last) == (2, 6)
        fresh = records(2)
        await log.append(fresh)
        await pass_time(100)
        taken = await queue.take(GROUP, "two", 10)
        assert attempts(taken) == [(7, 1), (8, 1)]
        assert await self._backlog(queue, P0) == Backlog(P0, 0, 2, 1, 5)
        assert await queue.ack(GROUP, places(taken)) == 2
        assert await self._backlog(queue, P0) == Backlog(P0, 0, 0, 3, 5)

    async def test_groups_are_listed_by_domain_and_deleted(self, queue: WorkQueue) -> None:
        for group in ("iotsphere/b", "iotsphere/a", "iotsphere2/c"):
            await queue.create(group, [(P0, BEGINNING)])
        assert list(await queue.groups(DOMAIN)) == ["iotsphere/a", "iotsphere/b"]
        await queue.delete("iotsphere/a")
        await queue.delete("iotsphere/a")
        assert list(await queue.groups(DOMAIN)) == ["iotsphere/b"]
        assert list(await queue.backlog("iotsphere/a")) == []

    async def test_unknown_groups_are_refused(self, queue: WorkQueue) -> None:
        place = (P0, Position(1, 1))
        with pytest.raises(RequestInvalid):
            await queue.take(GROUP, "one", 1)
        with pytest.raises(RequestInvalid):
            await queue.ack(GROUP, [place])
        with pytest.raises(RequestInvalid):
            await queue.nack(GROUP, place)
        with pytest.raises(RequestInvalid):
            await queue.extend(GROUP, "one", place, 1_000)

    async def test_offsets_start_over_for_a_group_that_was_deleted(self, log: MessageLog, queue: WorkQueue) -> None:
        await log.append(records(2))
        await queue.create(GROUP, [(P0, BEGINNING)])
        await queue.ack(GROUP, places(await queue.take(GROUP, "one", 2)))
        await queue.delete(GROUP)
        await queue.create(GROUP, [(P0, BEGINNING)])
        again = await queue.take(GROUP, "one", 5)
        assert offsets([delivery.entry.position for delivery in again]) == [1, 2]
        assert [delivery.attempt for delivery in again] == [1, 1]

    async def _backlog(self, queue: WorkQueue, partition: Partition) -> Backlog:
        (found,) = [backlog for backlog in await queue.backlog(GROUP) if backlog.partition == partition]
        return found._replace(start=None)
