"""A MongoDB replica set that loses its primary: nothing acknowledged is lost, and each change is told exactly once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, suppress

import pytest

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.mongo.database import MongoDatabase
from iotsphere.drivers.mongo.options import MongoOptions
from iotsphere.entities.errors import DatabaseUnavailable
from iotsphere.use_cases.ports.database import Change, Stored, Write
from tests.contracts.database import COLLECTIONS
from tests.support.mongo import ReplicaSet
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

OPTIONS = MongoOptions(quiet=0.5)
BRISK = MongoOptions(timeout=5, quiet=0.5)  # for what is refused
WRITERS = 8


@pytest.fixture(scope="module")
def shared_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    with ReplicaSet(tmp_path_factory.mktemp("replica-set")) as replicas:
        yield replicas


@pytest.fixture
def replicas(shared_set: ReplicaSet) -> ReplicaSet:
    """The set with all its members, whatever the test before did."""
    shared_set.revive()
    shared_set.whole()
    return shared_set


@pytest.fixture
async def url(replicas: ReplicaSet) -> str:
    return replicas.url(f"test_{secrets.token_hex(4)}")


@pytest.fixture
async def database(url: str) -> AsyncIterator[MongoDatabase]:
    async with MongoDatabase(url, SystemClock(), OPTIONS) as database:
        await database.ensure(COLLECTIONS)
        yield database


@pytest.fixture
async def brisk(url: str) -> AsyncIterator[MongoDatabase]:
    """The same database, for callers who give up sooner."""
    async with MongoDatabase(url, SystemClock(), BRISK) as brisk:
        await brisk.ensure(COLLECTIONS)
        yield brisk


class Load:
    """Writers that count up documents of their own and of all, and a follower that reads what is told of it."""

    def __init__(self, writing: MongoDatabase, reading: MongoDatabase) -> None:
        self.writing = writing
        self.reading = reading
        self.acknowledged: list[Stored] = []
        self.in_doubt = 0
        self.interrupted = 0
        self.told: list[Change] = []
        self.stopping = False

    async def write(self, name: str) -> None:
        number = 0
        while not self.stopping:
            number += 1
            key = f"d/{name}" if number % 4 else "d/shared"
            try:
                stands = await self.writing.get("things", key)
                ((done, stands),) = await self.writing.write("things", [Write(key, stands, {"by": name, "n": number})])
            except DatabaseUnavailable:
                self.in_doubt += 1
                await asyncio.sleep(0.05)
                continue
            if done and stands is not None:
                self.acknowledged.append(stands)

    async def follow(self, token: str) -> None:
        while True:
            try:
                async with aclosing(self.reading.changes(token, ["things"])) as feed:
                    async for change in feed:
                        token = change.token
                        if change.kind != "quiet":
                            self.told.append(change)
            except DatabaseUnavailable:
                self.interrupted += 1
                await asyncio.sleep(0.1)

    async def more(self, count: int) -> None:
        """Wait until so many more writes are acknowledged."""
        goal = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= goal, f"{goal} acknowledged writes", within=60)

    def check(self, final: dict[str, Stored]) -> None:
        """Every acknowledged write is there; per document every change was told once, in order, with what was before."""
        told: dict[tuple[str, int], Change] = {}
        last: dict[str, Change] = {}
        for change in self.told:
            before = last.get(change.key)
            assert change.whole
            assert change.revision == (0 if before is None else before.revision) + 1, change
            assert change.before == (None if before is None else before.after), change
            last[change.key] = told[change.key, change.revision] = change
        for stored in self.acknowledged:
            assert told[stored.key, stored.revision].after == stored.body
        assert {key: (change.revision, change.after) for key, change in last.items()} == {
            key: (stored.revision, stored.body) for key, stored in final.items()
        }


async def test_killed_and_deposed_primaries_lose_nothing(
    database: MongoDatabase, url: str, replicas: ReplicaSet
) -> None:
    async with MongoDatabase(url, SystemClock(), OPTIONS) as reading:
        await reading.ensure(COLLECTIONS)
        load = Load(database, reading)
        following = asyncio.create_task(load.follow(await reading.now()))
        writing = [asyncio.create_task(load.write(f"w{number}")) for number in range(WRITERS)]
        try:
            await load.more(150)
            await asyncio.to_thread(replicas.primary().kill)
            await load.more(150)
            replicas.revive()
            await asyncio.to_thread(replicas.whole)
            await load.more(100)
            await asyncio.to_thread(replicas.step_down)
            await load.more(100)
            await asyncio.to_thread(replicas.primary().kill)
            await load.more(100)
            load.stopping = True
            async with asyncio.timeout(60):
                await asyncio.gather(*writing)
            final = {stored.key: stored for stored in await database.scan("things")}
            writes = sum(stored.revision for stored in final.values())
            await until(lambda: len(load.told) >= writes, "every change is told", within=60)
        finally:
            load.stopping = True
            for task in (following, *writing):
                task.cancel()
            await asyncio.gather(following, *writing, return_exceptions=True)
    load.check(final)
    assert len(final) == WRITERS + 1
    # A write in doubt may have been carried out, so there may be more than were acknowledged, by at most those.
    assert len(load.acknowledged) <= writes <= len(load.acknowledged) + load.in_doubt


async def test_without_a_majority_nothing_is_acknowledged_and_all_recovers(
    database: MongoDatabase, brisk: MongoDatabase, replicas: ReplicaSet
) -> None:
    made = await database.put("things", Write("d/a", None, {"n": 1}))
    token = await database.now()
    others = replicas.others()
    for member in others:
        await asyncio.to_thread(member.kill)
    with pytest.raises(DatabaseUnavailable) as caught:
        await brisk.put("things", Write("d/a", made, {"n": 2}))
    assert caught.value.retry
    with pytest.raises(DatabaseUnavailable):
        await brisk.ready()
    replicas.revive()
    await recovered(database)
    stands = await database.get("things", "d/a")
    assert stands is not None
    assert stands.body in ({"n": 1}, {"n": 2})  # it was in doubt, and is now decided for all
    changed = await database.put("things", Write("d/a", stands, {"n": 3}))
    assert changed is not None
    async with aclosing(database.changes(token)) as feed:
        told = []
        async for change in feed:
            if change.kind != "quiet":
                told.append(change.after)
            if change.revision == changed.revision:
                break
    assert told == ([{"n": 2}, {"n": 3}] if stands.body == {"n": 2} else [{"n": 3}])


async def test_while_no_member_answers_everybody_is_told_in_time_and_then_served(
    database: MongoDatabase, brisk: MongoDatabase, replicas: ReplicaSet
) -> None:
    """All members are frozen; more callers than there are threads wait at once."""
    made = await database.put("things", Write("d/a", None, {"n": 1}))
    feed = brisk.changes(await brisk.now())
    assert (await anext(feed)).kind == "quiet"
    frozen = [member.pause() for member in replicas.members]
    for one in frozen:
        one.__enter__()
    try:
        async with asyncio.timeout(200):
            answers = await asyncio.gather(
                *(brisk.get("things", "d/a") for _ in range(40)),
                *(brisk.write("things", [Write(f"d/{number}", None, {})]) for number in range(40)),
                brisk.ready(),
                brisk.now(),
                return_exceptions=True,
            )
            with pytest.raises(DatabaseUnavailable):
                await drain(feed)
    finally:
        for one in frozen:
            one.__exit__(None, None, None)
    assert {type(answer) for answer in answers} == {DatabaseUnavailable}
    await recovered(brisk)
    assert await database.get("things", "d/a") == made


async def drain(feed: AsyncGenerator[Change, None]) -> None:
    """Read until the feed ends."""
    async for change in feed:
        assert change.kind == "quiet"


async def recovered(database: MongoDatabase) -> None:
    """Return once the database takes writes again, by itself."""
    async with asyncio.timeout(60):
        while True:
            with suppress(DatabaseUnavailable):
                await database.ready()
                return
            await asyncio.sleep(0.1)
