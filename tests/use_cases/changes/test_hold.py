"""The lease of the change listener: kept while the database is away, given back, and free soon after a crash."""

from __future__ import annotations

import asyncio

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.channel import ChannelSpec
from iotsphere.entities.errors import DatabaseUnavailable, LeaseHeld
from iotsphere.entities.position import Partition
from iotsphere.use_cases.changes import hold
from iotsphere.use_cases.changes.hold import HEARTBEATS, LEASE_MS, Hold
from iotsphere.use_cases.ports.database import Stored, Write
from iotsphere.use_cases.ports.message_log import Lease
from tests.support.waiting import until
from tests.use_cases.stage import DOMAIN


class Away(MemoryDatabase):
    """``beats``: how many signs of life were written."""

    away = False
    beats = 0

    async def get(self, collection: str, key: str) -> Stored | None:
        if self.away:
            await asyncio.sleep(10)
            raise DatabaseUnavailable("it is away")
        return await super().get(collection, key)

    async def put(self, collection: str, write: Write) -> Stored | None:
        stored = await super().put(collection, write)
        self.beats += collection == HEARTBEATS.name
        return stored


class Counting(MemoryLog):
    """``ends``: when each lease that was taken or renewed would lapse."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.ends: list[int] = []

    async def lease(self, reader: str, partition: Partition, owner: str, ttl: int) -> Lease:
        lease = await super().lease(reader, partition, owner, ttl)
        self.ends.append(lease.expires_at)
        return lease


@pytest.fixture
def clock() -> ManualClock:
    """Time that stands still, also while the machine does: no lease lapses by itself."""
    return ManualClock()


@pytest.fixture
async def log(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Counting:
    monkeypatch.setattr(hold, "RENEW_EVERY_S", 0.02)
    monkeypatch.setattr(hold, "BEAT_EVERY_S", 0.02)
    made = Counting(clock)
    await made.ensure(DOMAIN, {"system": ChannelSpec(partitions=1)})
    return made


@pytest.fixture
async def database(clock: ManualClock) -> Away:
    made = Away(clock)
    await made.ensure([HEARTBEATS])
    return made


async def test_it_is_kept_while_the_database_is_away_and_given_back(
    log: Counting, database: Away, clock: ManualClock
) -> None:
    one, two = (Hold(log, database, clock) for _ in range(2))
    database.away = True
    async with one.kept(await one.take()):
        for _ in range(3):
            clock.advance(LEASE_MS * 3 // 4)
            await until(lambda: log.ends[-1] == clock.now() + LEASE_MS, "it is renewed")
            with pytest.raises(LeaseHeld):
                await two.take()
    assert (await two.take()).owner != ""


async def test_it_is_free_soon_after_a_crash(log: Counting, database: Away, clock: ManualClock) -> None:
    one, two = (Hold(log, database, clock) for _ in range(2))
    lease = await one.take()
    clock.advance(LEASE_MS)
    assert (await two.take()).fence == lease.fence + 1
    with pytest.raises(LeaseHeld):
        await one.take()


async def test_a_sign_of_life_stays_one_document(log: Counting, database: Away, clock: ManualClock) -> None:
    for turn in range(2):
        other = Hold(log, database, clock)
        async with other.kept(await other.take()):
            await until(lambda turn=turn: database.beats >= 2 * (turn + 1), "it was sent twice")  # type: ignore[misc]  # turn is bound
    (beat,) = await database.scan(HEARTBEATS.name)
    assert beat.key == f"{DOMAIN}/changes"
    assert beat.revision == database.beats
