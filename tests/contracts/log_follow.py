"""What every log promises about following."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from iotsphere.entities.channel import Retention
from iotsphere.entities.position import Gap, Position
from iotsphere.use_cases.ports.message_log import MessageLog

from .log_append import LogAppendContract
from .records import BEGINNING, COMMANDS, P0, P1, collect, ids, records
from .times import take

KEEP_NOTHING = Retention(max_age=0, max_bytes=0, hard_age=0, hard_bytes=0)


class LogFollowContract(LogAppendContract):
    """Following: catch up, then live, without a hole."""

    async def test_a_follower_gets_the_past_and_then_the_present(self, log: MessageLog) -> None:
        past = records(5)
        await log.append(past)
        async with aclosing(log.follow({P0: BEGINNING})) as follower:
            assert [entry.record for entry in await collect(follower, 5)] == past
            for _ in range(3):
                now = records(2)
                await log.append(now)
                assert [entry.record for entry in await collect(follower, 2)] == now

    async def test_a_follower_begins_after_its_position(self, log: MessageLog) -> None:
        batch = records(4)
        positions = (await log.append(batch)).positions
        async with aclosing(log.follow({P0: positions[1]})) as follower:
            assert ids(await collect(follower, 2)) == [one.message_id for one in batch[2:]]

    async def test_it_waits_until_something_is_appended(self, log: MessageLog) -> None:
        async with aclosing(log.follow({P0: BEGINNING, P1: BEGINNING})) as follower:
            waiting = asyncio.ensure_future(anext(follower))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not waiting.done()
            batch = records(1, P1)
            await log.append(batch)
            async with asyncio.timeout(60):
                piece = await waiting
            assert piece.partition == P1
            assert [entry.record for entry in piece.entries] == batch

    async def test_slices_are_consecutive_in_each_partition(self, log: MessageLog) -> None:
        places: dict[object, int] = {P0: 0, P1: 0, COMMANDS: 0}

        async def write() -> None:
            for number in range(60):
                await log.append([*records(3, P0), *records(2, P1), *records(number % 2, COMMANDS)])

        async with aclosing(log.follow({P0: BEGINNING, P1: BEGINNING, COMMANDS: BEGINNING})) as follower:
            writing = asyncio.create_task(write())
            while places != {P0: 180, P1: 120, COMMANDS: 30}:
                piece = await take(follower)
                assert piece.gap is None
                for entry in piece.entries:
                    assert entry.record.partition == piece.partition
                    assert entry.position.offset == places[piece.partition] + 1
                    places[piece.partition] += 1
                assert piece.end.offset == places[piece.partition]
            await writing

    async def test_followers_are_independent(self, log: MessageLog) -> None:
        batch = records(6)
        await log.append(batch[:3])
        async with (
            aclosing(log.follow({P0: BEGINNING})) as first,
            aclosing(log.follow({P0: BEGINNING})) as second,
        ):
            assert len(await collect(first, 3)) == 3
            await log.append(batch[3:])
            assert [entry.record for entry in await collect(second, 6)] == batch
            assert [entry.record for entry in await collect(first, 3)] == batch[3:]

    async def test_one_that_was_closed_leaves_the_others_alone(self, log: MessageLog) -> None:
        first, second = log.follow({P0: BEGINNING}), log.follow({P0: BEGINNING})
        await log.append(records(1))
        await collect(first, 1)
        await collect(second, 1)
        await first.aclose()
        await first.aclose()
        await log.append(records(1))
        assert len(await collect(second, 1)) == 1
        await second.aclose()

    async def test_a_waiting_follower_can_be_cancelled(self, log: MessageLog) -> None:
        async def wait() -> None:
            async with aclosing(log.follow({P0: BEGINNING})) as follower:
                await anext(follower)

        task = asyncio.create_task(wait())
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(60):
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError)

    async def test_a_slow_follower_loses_nothing(self, log: MessageLog) -> None:
        """It stops after its first slice, while far more is written than a driver may hold for it."""
        await log.append(records(1, size=20_000))
        async with aclosing(log.follow({P0: BEGINNING})) as follower:
            assert len(await collect(follower, 1)) == 1
            for _ in range(40):
                await log.append(records(25, size=20_000))
            place = 1
            while place < 1_001:
                piece = await take(follower)
                assert piece.gap is None
                assert sum(len(entry.record.body) for entry in piece.entries) <= 4 << 20
                assert [entry.position.offset for entry in piece.entries] == list(
                    range(place + 1, place + 1 + len(piece.entries))
                )
                place += len(piece.entries)

    async def test_a_follower_is_told_what_retention_took(self, log: MessageLog) -> None:
        positions = (await log.append(records(3))).positions
        async with aclosing(log.follow({P0: BEGINNING})) as follower:
            assert (await take(follower)).end == positions[2]
            late = (await log.append(records(2))).positions
            async with aclosing(log.follow({P0: positions[0]})) as slow:
                assert (await take(slow)).entries[0].position == positions[1]
            await log.retain(P0, KEEP_NOTHING, 1 << 53)
            fresh = records(1)
            await log.append(fresh)
            async with aclosing(log.follow({P0: positions[2]})) as returning:
                piece = await take(returning)
                assert piece.gap == Gap(P0, late[0].offset, late[1].offset, "retention")
                if not piece.entries:
                    piece = await take(returning)
                assert [entry.record for entry in piece.entries] == fresh

    async def test_a_follower_is_told_of_a_gap_even_when_nothing_comes_after_it(self, log: MessageLog) -> None:
        positions = (await log.append(records(3))).positions
        await log.retain(P0, KEEP_NOTHING, 1 << 53)
        async with aclosing(log.follow({P0: positions[0]})) as follower:
            piece = await take(follower)
            assert piece.gap == Gap(P0, 2, 3, "retention")
            assert (list(piece.entries), piece.end.offset) == ([], 3)

    async def test_a_follower_of_a_lost_epoch_is_told_so(self, log: MessageLog) -> None:
        batch = records(2)
        await log.append(batch)
        async with aclosing(log.follow({P0: Position(7, 100)})) as follower:
            piece = await take(follower)
            assert piece.gap == Gap(P0, 1, 0, "rebuilt")
            assert [entry.record for entry in piece.entries] == batch
