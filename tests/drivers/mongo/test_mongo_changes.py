"""What becomes of the change feed when collections go, events are too large, or documents are missing (B18 to B20)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pymongo
import pytest
from bson import Timestamp
from pymongo.database import Database as Shell

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.mongo.database import MongoDatabase
from iotsphere.drivers.mongo.options import MongoOptions
from iotsphere.drivers.mongo.tokens import Place, place_after, place_behind, place_of
from iotsphere.entities.errors import ChangesLost, DatabaseUnavailable
from iotsphere.use_cases.ports.database import Change, Stored, Write
from tests.contracts.database import COLLECTIONS, insert
from tests.contracts.database_changes import next_change, told, up_to_now
from tests.contracts.times import take

Mongo = Shell[dict[str, Any]]
QUICK = MongoOptions(timeout=30, quiet=0.2)
LARGE = "x" * 9_000_000


async def several(database: MongoDatabase, token: str, count: int) -> list[Change]:
    """The next changes after a token."""
    async with aclosing(database.changes(token)) as feed:
        return [await next_change(feed) for _ in range(count)]


def brief(change: Change) -> tuple[str, str, bool]:
    return change.kind, change.key, change.whole


async def test_b18_an_event_that_is_too_large_is_told_without_its_documents(
    database: MongoDatabase, shell: Mongo
) -> None:
    token = await database.now()
    await insert(database, "things", {"d/a": {"n": 1}})
    shell.things.insert_one({"_id": "d/large", "text": LARGE})
    shell.things.update_one({"_id": "d/large"}, {"$set": {"text": LARGE + "y"}})
    await insert(database, "things", {"d/b": {"n": 2}})
    shell.things.update_one({"_id": "d/large"}, {"$set": {"text": LARGE}})
    shell.things.update_one({"_id": "d/large"}, {"$set": {"text": LARGE + "z"}})
    await insert(database, "things", {"d/c": {"n": 3}})
    seen = await several(database, token, 7)
    assert list(map(brief, seen)) == [
        ("insert", "d/a", True),
        ("insert", "d/large", True),
        ("update", "d/large", False),
        ("insert", "d/b", True),
        ("update", "d/large", False),
        ("update", "d/large", False),
        ("insert", "d/c", True),
    ]
    assert [change.after for change in seen[2:4]] == [None, {"n": 2}]
    # A listener that stops at the large one and comes back goes on behind it.
    for index in (2, 4, 5):
        rest = await several(database, seen[index].token, len(seen) - index - 1)
        assert list(map(brief, rest)) == list(map(brief, seen[index + 1 :]))
        assert [change.token for change in rest] == [change.token for change in seen[index + 1 :]]


async def test_b18_a_large_event_at_the_end_lets_the_feed_be_quiet(database: MongoDatabase, shell: Mongo) -> None:
    token = await database.now()
    shell.things.insert_one({"_id": "d/large", "text": LARGE})
    shell.things.update_one({"_id": "d/large"}, {"$set": {"text": LARGE + "y"}})
    async with aclosing(database.changes(token)) as feed:
        assert [brief(await next_change(feed)) for _ in range(2)] == [
            ("insert", "d/large", True),
            ("update", "d/large", False),
        ]
        quiet = await take(feed, 60)
        assert quiet.kind == "quiet"
        await insert(database, "things", {"d/b": {}})
        assert brief(await next_change(feed)) == ("insert", "d/b", True)
    assert [change.key for change in await several(database, quiet.token, 1)] == ["d/b"]


async def test_b18_a_transaction_with_a_large_event_is_told_whole(
    database: MongoDatabase, shell: Mongo, mongo_url: str
) -> None:
    shell.things.insert_one({"_id": "d/large", "text": LARGE})
    token = await database.now()
    with pymongo.MongoClient[dict[str, Any]](mongo_url) as client, client.start_session() as session:
        things = client.get_default_database().things
        with session.start_transaction():
            things.insert_one({"_id": "d/1"}, session=session)
            things.update_one({"_id": "d/large"}, {"$set": {"text": LARGE + "y"}}, session=session)
            things.insert_one({"_id": "d/2"}, session=session)
        things.insert_one({"_id": "d/3"})
    seen = await several(database, token, 4)
    assert [(change.kind, change.key) for change in seen] == [
        ("insert", "d/1"),
        ("update", "d/large"),
        ("insert", "d/2"),
        ("insert", "d/3"),
    ]
    assert [change.whole for change in seen][::3] == [True, True]
    for index in range(3):
        rest = await several(database, seen[index].token, 3 - index)
        assert [change.token for change in rest] == [change.token for change in seen[index + 1 :]]


async def test_b19_a_dropped_collection_is_told_and_made_anew(database: MongoDatabase, shell: Mongo) -> None:
    await insert(database, "things", {"d/a": {"n": 1}})
    async with aclosing(database.changes(await database.now())) as feed:
        shell.drop_collection("things")
        dropped = await next_change(feed)
        assert (dropped.kind, dropped.collection, dropped.key, dropped.whole) == ("dropped", "things", "", True)
        made = await database.put("things", Write("d/a", None, {"label": "red"}))
        await database.put("things", Write("d/a", made, {"label": "blue"}))
        assert told(await next_change(feed)) == ("insert", "things", "d/a", 1, None, {"label": "red"})
        # Pre-images are kept again, and the indexes are back.
        assert told(await next_change(feed)) == ("update", "things", "d/a", 2, {"label": "red"}, {"label": "blue"})
        assert [one.key for one in await database.find("things", "label", ["blue"])] == ["d/a"]
    assert [change.kind for change in await several(database, dropped.token, 2)] == ["insert", "update"]


@pytest.mark.parametrize("drop_target", [True, False])
async def test_b19_a_collection_that_is_renamed_over_another(
    database: MongoDatabase, shell: Mongo, drop_target: bool
) -> None:
    """What ``mongorestore --drop`` and migrations do."""
    await insert(database, "things", {"d/a": {"n": 1}})
    shell.restored.insert_one({"_id": "d/b", "revision": 4, "n": 2})
    if not drop_target:
        shell.drop_collection("things")
    async with aclosing(database.changes(await database.now(), ["things"])) as feed:
        shell.restored.rename("things", dropTarget=drop_target)
        change = await next_change(feed)
        assert (change.kind, change.collection) == ("dropped", "things")
        stands = await database.get("things", "d/b")
        assert stands == Stored("d/b", 4, {"n": 2})
        await database.put("things", Write("d/b", stands, {"n": 3}))
        while (change := await next_change(feed)).kind == "dropped":  # the old one, then the new one in its place
            assert change.collection == "things"
        assert told(change) == ("update", "things", "d/b", 5, {"n": 2}, {"n": 3})


async def test_b19_a_collection_that_is_renamed_away(database: MongoDatabase, shell: Mongo) -> None:
    await insert(database, "things", {"d/a": {"n": 1}})
    token = await database.now()
    shell.things.rename("old_things")
    await asyncio.sleep(0)
    async with aclosing(database.changes(token)) as feed:
        change = await next_change(feed)
        assert (change.kind, change.collection) == ("dropped", "things")
        await insert(database, "things", {"d/b": {"n": 2}})
        assert told(await next_change(feed)) == ("insert", "things", "d/b", 1, None, {"n": 2})


async def test_b19_a_dropped_database_does_not_end_the_feed(database: MongoDatabase, shell: Mongo) -> None:
    await insert(database, "things", {"d/a": {"n": 1}})
    before = await database.now()
    async with aclosing(database.changes(before)) as feed:
        assert (await take(feed, 60)).kind == "quiet"
        shell.client.drop_database(shell.name)
        gone = {(change := await next_change(feed)).collection}
        assert change.kind == "dropped"
        while gone != {"things", "visits"}:
            change = await next_change(feed)
            assert change.kind == "dropped"
            gone.add(change.collection)
        while (quiet := await take(feed, 60)).kind != "quiet":
            pass
        await insert(database, "things", {"d/b": {"n": 2}})
        assert told(await next_change(feed)) == ("insert", "things", "d/b", 1, None, {"n": 2})
    assert [change.key for change in await several(database, quiet.token, 1)] == ["d/b"]
    # The store is another one now: a token of the old one is not good for it.
    with pytest.raises(ChangesLost):
        await take(database.changes(before), 60)


async def test_b20_an_update_tells_its_own_state_even_when_the_document_is_gone(
    database: MongoDatabase, shell: Mongo
) -> None:
    token = await database.now()
    shell.things.insert_one({"_id": "d/a", "n": 1})
    shell.things.update_one({"_id": "d/a"}, {"$set": {"n": 2}})
    shell.things.update_one({"_id": "d/a"}, {"$set": {"n": 3}})
    shell.things.delete_one({"_id": "d/a"})
    assert [told(change)[4:] for change in await up_to_now(database, token)] == [
        (None, {"n": 1}),
        ({"n": 1}, {"n": 2}),
        ({"n": 2}, {"n": 3}),
        ({"n": 3}, None),
    ]


async def test_b20_without_pre_images_changes_are_told_as_not_whole(database: MongoDatabase, shell: Mongo) -> None:
    token = await database.now()
    shell.command({"collMod": "things", "changeStreamPreAndPostImages": {"enabled": False}})
    shell.things.insert_one({"_id": "d/a", "n": 1})
    shell.things.update_one({"_id": "d/a"}, {"$set": {"n": 2}})
    shell.things.replace_one({"_id": "d/a"}, {"n": 3})
    shell.things.delete_one({"_id": "d/a"})
    seen = await several(database, token, 4)
    assert [(change.kind, change.before, change.after, change.whole) for change in seen] == [
        ("insert", None, {"n": 1}, True),
        ("update", None, None, False),
        ("update", None, {"n": 3}, False),
        ("delete", None, None, False),
    ]
    # Whoever declares the collection as watched switches them on again.
    await database.ensure(COLLECTIONS)
    stands = await database.put("things", Write("d/b", None, {"n": 1}))
    fresh = await database.now()
    await database.put("things", Write("d/b", stands, {"n": 2}))
    assert [told(change)[4:] for change in await up_to_now(database, fresh)] == [({"n": 1}, {"n": 2})]


async def test_a_token_of_another_database_is_lost(database: MongoDatabase, mongo_url: str) -> None:
    token = await database.now()
    other = mongo_url.replace("test_", "other_")
    async with MongoDatabase(other, SystemClock(), QUICK) as stranger:
        await stranger.ensure(COLLECTIONS)
        with pytest.raises(ChangesLost) as caught:
            await take(stranger.changes(token), 60)
        await stranger.link.client.drop_database(other.rpartition("/")[2].partition("?")[0])
    assert caught.value.facts == {"token": token}


def test_tokens_are_places() -> None:
    epoch = "0123456789abcdef"
    place = place_after({"_data": "826B0A4F46000000252B022C"})
    assert place == Place(Timestamp(0x6B0A4F46, 0x25), "826B0A4F46000000252B022C")
    assert place_of(place.text(epoch), epoch) == place
    assert place.text(epoch) == "0123456789abcdef.6b0a4f4600000025.826B0A4F46000000252B022C"
    behind = place_behind(place.time)
    assert place < behind
    assert place_of(behind.text(epoch), epoch) == behind
    assert place.has_seen({"_id": {"_data": "826B0A4F46000000252B022C"}})
    assert not place.has_seen({"_id": {"_data": "826B0A4F46000000252B022D"}})
    assert not behind.has_seen({"_id": {"_data": "82"}})
    with pytest.raises(ChangesLost):
        place_of(place.text(epoch), "fedcba9876543210")
    for strange in ({}, {"_data": b"x"}, {"_data": "83" + "0" * 16}, {"_data": "8200"}):
        with pytest.raises(DatabaseUnavailable, match="resume tokens"):
            place_after(strange)
