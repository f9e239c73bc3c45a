"""The lease of the change listener: kept while the database is away, given back, and free soon after a crash."""

from __future__ import annotations

import asyncio

import pytest

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.channel import ChannelSpec
from iotsphere.entities.errors import DatabaseUnavailable, LeaseHeld
from iotsphere.use_cases.changes import hold
from iotsphere.use_cases.changes.hold import HEARTBEATS, Hold
from iotsphere.use_cases.ports.database import Stored
from tests.use_cases.stage import DOMAIN


class Away(MemoryDatabase):
    away = False

    async def get(self, collection: str, key: str) -> Stored | None:
        if self.away:
            await asyncio.sleep(10)
            raise DatabaseUnavailable("it is away")
        return await super().get(collection, key)


CLOCK = SystemClock()


@pytest.fixture
async def log(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    monkeypatch.setattr(hold, "LEASE_MS", 200)
    monkeypatch.setattr(hold, "RENEW_EVERY_S", 0.02)
    monkeypatch.setattr(hold, "BEAT_EVERY_S", 0.02)
    made = MemoryLog(CLOCK)
    await made.ensure(DOMAIN, {"system": ChannelSpec(partitions=1)})
    return made


@pytest.fixture
async def database() -> Away:
    made = Away(CLOCK)
    await made.ensure([HEARTBEATS])
    return made


async def test_it_is_kept_while_the_database_is_away_and_given_back(log: MemoryLog, database: Away) -> None:
    one, two = (Hold(log, database, CLOCK) for _ in range(2))
    database.away = True
    async with one.kept(await one.take()):
        await asyncio.sleep(0.5)
        with pytest.raises(LeaseHeld):
            await two.take()
    assert (await two.take()).owner != ""


async def test_it_is_free_soon_after_a_crash(log: MemoryLog, database: Away) -> None:
    one, two = (Hold(log, database, CLOCK) for _ in range(2))
    lease = await one.take()

    await asyncio.sleep(0.3)  # longer than it lasts
    assert (await two.take()).fence == lease.fence + 1
    with pytest.raises(LeaseHeld):
        await one.take()


async def test_a_sign_of_life_stays_one_document(log: MemoryLog, database: Away) -> None:
    for _ in range(2):
        other = Hold(log, database, CLOCK)
        async with other.kept(await other.take()):
            await asyncio.sleep(0.1)
    (beat,) = await database.scan(HEARTBEATS.name)
    assert beat.key == f"{DOMAIN}/changes"
    assert beat.revision > 2
