"""What every log promises about registered readers: progress, tallies, leases and fences."""

from __future__ import annotations

import pytest

from iotsphere.entities.errors import Fenced, LeaseHeld, RequestInvalid, UnknownDomain
from iotsphere.use_cases.ports.message_log import MessageLog, Progress, Tally

from .log_append import LogAppendContract
from .records import BEGINNING, DOMAIN, P0, P1, records
from .times import PassTime

STORE = "iotsphere/store"
MINUTE = 60_000


class LogReadersContract(LogAppendContract):
    """Progress that is kept for a reader."""

    async def test_a_reader_begins_where_it_was_registered(self, log: MessageLog) -> None:
        positions = (await log.append(records(5))).positions
        await log.register(STORE, {P0: positions[2], P1: BEGINNING})
        progress = await log.committed(STORE)
        assert set(progress) == {P0, P1}
        assert progress[P0] == Progress(positions[2], positions[2], Tally())
        assert progress[P1].start == progress[P1].position
        assert progress[P1].position.offset == 0

    async def test_registering_again_keeps_the_progress_and_adds_partitions(self, log: MessageLog) -> None:
        positions = (await log.append(records(5))).positions
        await log.register(STORE, {P0: BEGINNING})
        await log.commit(STORE, {P0: (positions[3], Tally(applied=4))})
        await log.register(STORE, {P0: BEGINNING, P1: BEGINNING})
        progress = await log.committed(STORE)
        assert progress[P0].position == positions[3]
        assert progress[P0].tally == Tally(applied=4)
        assert progress[P1].tally == Tally()

    async def test_commits_move_on_and_add_up(self, log: MessageLog) -> None:
        here = (await log.append(records(9))).positions
        there = (await log.append(records(4, P1))).positions
        await log.register(STORE, {P0: BEGINNING, P1: BEGINNING})
        start = (await log.committed(STORE))[P0].start
        await log.commit(STORE, {P0: (here[2], Tally(1, 1, 1, 0, 0)), P1: (there[0], Tally(applied=1))})
        await log.commit(STORE, {P0: (here[8], Tally(2, 0, 1, 1, 2))})
        progress = await log.committed(STORE)
        assert progress[P0] == Progress(start, here[8], Tally(3, 1, 2, 1, 2))
        assert progress[P1].tally == Tally(applied=1)

    async def test_a_repeated_or_older_commit_is_ignored_with_its_tally(self, log: MessageLog) -> None:
        here = (await log.append(records(5))).positions
        there = (await log.append(records(1, P1))).positions
        await log.register(STORE, {P0: BEGINNING, P1: BEGINNING})
        await log.commit(STORE, {P0: (here[3], Tally(applied=4))})
        await log.commit(STORE, {P0: (here[3], Tally(applied=4))})
        await log.commit(STORE, {P0: (here[1], Tally(applied=2)), P1: (there[0], Tally(applied=1))})
        progress = await log.committed(STORE)
        assert (progress[P0].position, progress[P0].tally) == (here[3], Tally(applied=4))
        assert (progress[P1].position, progress[P1].tally) == (there[0], Tally(applied=1))

    async def test_readers_that_nobody_registered_cannot_commit(self, log: MessageLog) -> None:
        position = (await log.append(records(1))).positions[0]
        with pytest.raises(RequestInvalid):
            await log.commit(STORE, {P0: (position, Tally(applied=1))})
        assert await log.committed(STORE) == {}
        await log.register(STORE, {P1: BEGINNING})
        with pytest.raises(RequestInvalid):
            await log.commit(STORE, {P0: (position, Tally(applied=1))})

    async def test_readers_are_listed_by_domain_and_forgotten(self, log: MessageLog) -> None:
        await log.ensure("iotsphere2", {})
        for reader in ("iotsphere/b", "iotsphere/a", "iotsphere2/c"):
            await log.register(reader, {P0: BEGINNING})
        assert list(await log.readers(DOMAIN)) == ["iotsphere/a", "iotsphere/b"]
        assert list(await log.readers("iotsphere2")) == ["iotsphere2/c"]
        await log.forget("iotsphere/a")
        await log.forget("iotsphere/a")
        assert list(await log.readers(DOMAIN)) == ["iotsphere/b"]
        assert await log.committed("iotsphere/a") == {}

    async def test_a_forgotten_reader_starts_anew(self, log: MessageLog) -> None:
        position = (await log.append(records(1))).positions[0]
        await log.register(STORE, {P0: BEGINNING})
        await log.commit(STORE, {P0: (position, Tally(applied=1))})
        await log.forget(STORE)
        await log.register(STORE, {P0: BEGINNING})
        assert (await log.committed(STORE))[P0].tally == Tally()

    async def test_a_lease_is_exclusive_until_it_is_released(self, log: MessageLog) -> None:
        lease = await log.lease(STORE, P0, "one", MINUTE)
        assert (lease.reader, lease.partition, lease.owner) == (STORE, P0, "one")
        with pytest.raises(LeaseHeld):
            await log.lease(STORE, P0, "two", MINUTE)
        assert (await log.lease(STORE, P1, "two", MINUTE)).owner == "two"
        assert (await log.lease("iotsphere/other", P0, "two", MINUTE)).owner == "two"
        await log.release(lease)
        await log.release(lease)
        taken = await log.lease(STORE, P0, "two", MINUTE)
        assert taken.fence > lease.fence
        await log.release(lease)
        with pytest.raises(LeaseHeld):
            await log.lease(STORE, P0, "one", MINUTE)

    async def test_a_lease_ends_by_itself_unless_it_is_renewed(self, log: MessageLog, pass_time: PassTime) -> None:
        lease = await log.lease(STORE, P0, "one", 50)
        renewed = await log.lease(STORE, P0, "one", MINUTE)
        assert renewed.fence == lease.fence
        assert renewed.expires_at > lease.expires_at
        await pass_time(100)
        with pytest.raises(LeaseHeld):
            await log.lease(STORE, P0, "two", MINUTE)
        await log.lease(STORE, P1, "one", 50)
        await pass_time(100)
        assert (await log.lease(STORE, P1, "two", MINUTE)).owner == "two"

    async def test_a_fenced_owner_cannot_commit_anything(self, log: MessageLog, pass_time: PassTime) -> None:
        here = (await log.append(records(3))).positions
        there = (await log.append(records(3, P1))).positions
        await log.register(STORE, {P0: BEGINNING, P1: BEGINNING})
        old = await log.lease(STORE, P0, "one", 50)
        other = await log.lease(STORE, P1, "one", MINUTE)
        await log.commit(STORE, {P0: (here[0], Tally(applied=1))}, {P0: old.fence})
        await pass_time(100)
        new = await log.lease(STORE, P0, "two", MINUTE)
        with pytest.raises(Fenced):
            await log.commit(
                STORE,
                {P1: (there[0], Tally(applied=1)), P0: (here[1], Tally(applied=1))},
                {P1: other.fence, P0: old.fence},
            )
        progress = await log.committed(STORE)
        assert progress[P0].position == here[0]
        assert progress[P1].position.offset == 0
        await log.commit(STORE, {P0: (here[2], Tally(applied=2))}, {P0: new.fence})
        assert (await log.committed(STORE))[P0].tally == Tally(applied=3)

    async def test_a_lease_that_expired_but_was_not_taken_still_counts(
        self, log: MessageLog, pass_time: PassTime
    ) -> None:
        positions = (await log.append(records(1))).positions
        await log.register(STORE, {P0: BEGINNING})
        lease = await log.lease(STORE, P0, "one", 50)
        await pass_time(100)
        await log.commit(STORE, {P0: (positions[0], Tally(applied=1))}, {P0: lease.fence})
        assert (await log.committed(STORE))[P0].position == positions[0]

    async def test_leases_of_unknown_partitions_are_refused(self, log: MessageLog) -> None:
        with pytest.raises(UnknownDomain):
            await log.lease(STORE, P0._replace(number=5), "one", MINUTE)
