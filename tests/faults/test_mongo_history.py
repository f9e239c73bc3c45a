"""A MongoDB that no longer knows what followed a token (B17): it is said once, and quiet collections are not concerned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.mongo.database import MongoDatabase
from iotsphere.drivers.mongo.options import MongoOptions
from iotsphere.entities.errors import ChangesLost
from iotsphere.use_cases.ports.database import Change, Write
from tests.contracts.database import COLLECTIONS, insert
from tests.contracts.database_changes import next_change
from tests.contracts.times import take
from tests.support import mongo
from tests.support.servers import Server
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Server]:
    """A MongoDB that keeps few changes, and forgets more of them every second."""
    with mongo.single(tmp_path / "mongo", {"oplogSize": "16", "syncdelay": "1"}) as server:
        yield server


async def last_token(feed: AsyncGenerator[Change, None], tokens: list[str]) -> None:
    async for change in feed:
        assert change.kind == "quiet"
        tokens.append(change.token)


async def flood(database: MongoDatabase, token: str) -> None:
    """Write to a collection that is not watched until the token is lost: for who follows the things nothing happens."""
    for number in range(10_000):
        await database.put("notes", Write(f"d/{number}", None, {"text": "x" * 900_000}))
        if number % 4 == 3:
            async with aclosing(database.changes(token, ["things"])) as feed:
                assert (await next_change(feed)).after == {"n": 2}


async def test_b17_lost_history_is_said_once_and_quiet_collections_keep_their_place(forgetful: Server) -> None:
    url = f"mongodb://127.0.0.1:{forgetful.port}/test?replicaSet={mongo.NAME}"
    async with MongoDatabase(url, SystemClock(), MongoOptions(quiet=0.5)) as database:
        await database.ensure(COLLECTIONS)
        await insert(database, "things", {"d/a": {"n": 1}})
        old = await database.now()
        await insert(database, "things", {"d/b": {"n": 2}})
        tokens: list[str] = []
        async with aclosing(database.changes(await database.now(), ["things"])) as quiet:
            following = asyncio.create_task(last_token(quiet, tokens))
            async with asyncio.timeout(180):
                with pytest.raises(ChangesLost) as caught:
                    await flood(database, old)
            assert caught.value.facts == {"token": old}
            assert caught.value.retry is False
            flooded = tokens[-1] if tokens else ""
            await until(lambda: tokens and tokens[-1] > flooded, "the token moves on although nothing happens", 60)
            assert not following.done()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        with pytest.raises(ChangesLost):
            await take(database.changes(old), 60)
        await insert(database, "things", {"d/c": {"n": 3}})
        async with aclosing(database.changes(tokens[-1], ["things"])) as feed:
            assert (await next_change(feed)).key == "d/c"
        # Whoever read the documents anew goes on from a fresh token.
        fresh = await database.now()
        assert [one.key for one in await database.scan("things")] == ["d/a", "d/b", "d/c"]
        await insert(database, "things", {"d/d": {"n": 4}})
        async with aclosing(database.changes(fresh, ["things"])) as feed:
            assert (await next_change(feed)).key == "d/d"
