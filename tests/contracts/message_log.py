"""The contract of ``MessageLog``: inherit from ``MessageLogContract`` and give the fixture ``log``."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from iotsphere.entities.position import Gap, Partition
from iotsphere.use_cases.ports.message_log import MessageLog

from .log_append import LogAppendContract
from .log_follow import LogFollowContract
from .log_readers import LogReadersContract
from .log_retention import LogRetentionContract
from .records import BEGINNING, CHANNELS, DOMAIN, P0, P1, collect, ids, offsets, read_all, records
from .times import take


class MessageLogContract(LogFollowContract, LogReadersContract, LogRetentionContract):
    """All that the port promises; see the four modules for what the fixtures are."""


class StoredLogContract(LogAppendContract):
    """For logs that keep bytes somewhere: a damaged entry is a gap, and everything else stays readable."""

    async def damage(self, log: MessageLog, partition: Partition, offset: int) -> None:
        """Change the stored bytes of one entry behind the log's back."""
        raise AssertionError(f"{type(self).__name__} must say how to damage {partition} {offset} of {log}")

    async def test_a_damaged_entry_is_a_gap_in_its_place(self, log: MessageLog) -> None:
        positions = (await log.append(records(6))).positions
        await self.damage(log, P0, 3)
        await self.damage(log, P0, 4)
        before = await log.read(P0, BEGINNING)
        assert (offsets([entry.position for entry in before.entries]), before.gap) == ([1, 2], None)
        assert before.end == positions[1]
        after = await log.read(P0, before.end)
        assert after.gap == Gap(P0, 3, 4, "corrupt")
        assert after.gap.missing == 2
        rest = after.entries or (await log.read(P0, after.end)).entries
        assert [entry.position for entry in rest] == list(positions[4:])

    async def test_damage_at_either_end_is_told_once(self, log: MessageLog) -> None:
        await log.append(records(3))
        await self.damage(log, P0, 1)
        await self.damage(log, P0, 3)
        gaps, offsets_read, place = [], [], BEGINNING
        while (piece := await log.read(P0, place)).end != place:
            gaps += [piece.gap] if piece.gap else []
            offsets_read += [entry.position.offset for entry in piece.entries]
            place = piece.end
        assert gaps == [Gap(P0, 1, 1, "corrupt"), Gap(P0, 3, 3, "corrupt")]
        assert offsets_read == [2]

    async def test_a_follower_goes_past_damage(self, log: MessageLog) -> None:
        await log.append(records(3))
        await self.damage(log, P0, 2)
        async with aclosing(log.follow({P0: BEGINNING})) as follower:
            assert (await take(follower)).entries[-1].position.offset == 1
            piece = await take(follower)
            assert piece.gap == Gap(P0, 2, 2, "corrupt")
            rest = piece.entries or (await take(follower)).entries
            assert [entry.position.offset for entry in rest] == [3]


class WatchedLogContract(LogAppendContract):
    """For logs whose store others can read at the same time. Needs ``log``, and ``neighbour`` on the same store."""

    @pytest.fixture
    def neighbour(self, log: MessageLog) -> MessageLog:
        raise AssertionError(f"{type(self).__name__} must open a second driver object beside {log}")

    async def test_a_neighbour_knows_the_channels_and_reads_what_was_appended(
        self, log: MessageLog, neighbour: MessageLog
    ) -> None:
        await neighbour.ensure(DOMAIN, CHANNELS)
        batch = records(3)
        positions = (await log.append(batch)).positions
        assert list(neighbour.partitions(DOMAIN, "telemetry")) == [P0, P1]
        assert [entry.record for entry in await read_all(neighbour)] == batch
        assert (await neighbour.bounds(P0)).last == positions[-1]
        assert await neighbour.find(DOMAIN, batch[1].message_id) is not None

    async def test_a_neighbour_follows(self, log: MessageLog, neighbour: MessageLog) -> None:
        await neighbour.ensure(DOMAIN, CHANNELS)
        past = records(2)
        await log.append(past)
        async with aclosing(neighbour.follow({P0: BEGINNING, P1: BEGINNING})) as follower:
            assert [entry.record for entry in await collect(follower, 2)] == past
            waiting = asyncio.ensure_future(collect(follower, 3))
            await asyncio.sleep(0)
            now = records(3, P1)
            await log.append(now)
            async with asyncio.timeout(60):
                assert ids(await waiting) == [one.message_id for one in now]
