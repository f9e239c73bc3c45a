"""What a person does with the MongoDB shell is told like any other change, and never written over unseen."""

from __future__ import annotations

import uuid
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Binary, DatetimeMS, Decimal128, Int64, MinKey, ObjectId, Regex, Timestamp
from pymongo.database import Database as Shell

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.mongo.database import MongoDatabase
from iotsphere.drivers.mongo.documents import plain
from iotsphere.drivers.mongo.options import MongoOptions
from iotsphere.entities.errors import ChangesLost, Conflict, RequestInvalid
from iotsphere.use_cases.ports.database import Stored, Write
from tests.contracts.database import COLLECTIONS, insert, typed
from tests.contracts.database_changes import Told, next_change, told, up_to_now
from tests.contracts.times import take

Mongo = Shell[dict[str, Any]]


async def since(database: MongoDatabase, token: str) -> list[Told]:
    """What was told after a token."""
    return list(map(told, await up_to_now(database, token)))


async def test_a_document_reads_naturally(database: MongoDatabase, shell: Mongo) -> None:
    await database.put("visits", Write("acme/ann", None, {"guest": "ann", "until": 4_000_000_000_000}))
    assert shell.visits.find_one() == {
        "_id": "acme/ann",
        "revision": 1,
        "guest": "ann",
        "until": 4_000_000_000_000,
        "_expires": datetime(2096, 10, 2, 7, 6, 40),
    }


@pytest.mark.parametrize(
    "edit",
    [
        {"$set": {"desired.target": 21}},
        {"$set": {"remark": "by hand"}},
        {"$unset": {"owner": 1}},
        {"$set": {"list": [1]}},
        {"$set": {"owner": None}},
        {"$set": {"open": 1}},
    ],
)
async def test_no_edit_is_written_over(database: MongoDatabase, shell: Mongo, edit: dict[str, Any]) -> None:
    """The revision is as it was, for the shell does not count it: the whole document is compared."""
    body = {"desired": {"target": 20}, "owner": "ann", "list": [[1]], "open": True}
    made = await database.put("things", Write("d/a", None, body))
    token = await database.now()
    shell.things.update_one({"_id": "d/a"}, edit)
    for new in ({"n": 1}, None):
        with pytest.raises(Conflict) as caught:
            await database.put("things", Write("d/a", made, new))
        assert caught.value.facts == {"revision": 1}
    stands = await database.get("things", "d/a")
    assert stands is not None
    assert stands.revision == 1
    assert typed(stands.body) != typed(body)
    assert await database.put("things", Write("d/a", stands, {"n": 1})) == Stored("d/a", 2, {"n": 1})
    assert await since(database, token) == [
        ("update", "things", "d/a", 1, body, stands.body),
        ("update", "things", "d/a", 2, stands.body, {"n": 1}),
    ]


async def test_documents_made_and_removed_by_hand_are_told(database: MongoDatabase, shell: Mongo) -> None:
    token = await database.now()
    shell.things.insert_one({"_id": "d/a", "n": 1})
    shell.things.replace_one({"_id": "d/a"}, {"n": 2, "revision": "x", "_class": "foreign"})
    shell.things.delete_one({"_id": "d/a"})
    assert await since(database, token) == [
        ("insert", "things", "d/a", 0, None, {"n": 1}),
        ("update", "things", "d/a", 0, {"n": 1}, {"n": 2}),
        ("delete", "things", "d/a", 0, {"n": 2}, None),
    ]


async def test_what_json_does_not_have_is_read_as_text_and_can_be_replaced(
    database: MongoDatabase, shell: Mongo
) -> None:
    shell.things.insert_one(
        {
            "zone": "last in our order, first here",
            "_id": "d/a",
            "at": datetime(2026, 5, 4, 3, 2, 1, 7_000, tzinfo=UTC),
            "far": DatetimeMS(2**62),
            "id": ObjectId("5f43a1b2c3d4e5f601020304"),
            "price": Decimal128("1.10"),
            "raw": Binary(b"\x00\xff"),
            "uuid": Binary.from_uuid(uuid.UUID(int=1)),
            "pattern": Regex("^a"),
            "stamp": Timestamp(1, 2),
            "least": MinKey(),
            "large": Int64(5),
            "nan": float("nan"),
        }
    )
    stands = await database.get("things", "d/a")
    assert stands is not None
    assert stands == Stored(
        "d/a",
        0,
        {
            "zone": "last in our order, first here",
            "at": "2026-05-04T03:02:01.007Z",
            "far": None,
            "id": "5f43a1b2c3d4e5f601020304",
            "price": "1.10",
            "raw": "AP8=",
            "uuid": "00000000-0000-0000-0000-000000000001",
            "pattern": "^a",
            "stamp": "1970-01-01T00:00:01.000Z",
            "least": None,
            "large": 5,
            "nan": None,
        },
    )
    assert type(stands.body["large"]) is int
    assert await database.put("things", Write("d/a", stands, dict(stands.body))) == stands._replace(revision=1)
    stands = await database.get("things", "d/a")
    assert await database.put("things", Write("d/a", stands, None)) is None


async def test_what_is_no_number_is_told_mended_and_the_last_revision_is_followed(
    database: MongoDatabase, shell: Mongo
) -> None:
    token = await database.now()
    shell.things.insert_one({"_id": "d/a", "n": [float("nan")], "revision": Int64(2**63 - 1)})
    stands = await database.get("things", "d/a")
    assert stands == Stored("d/a", 2**63 - 1, {"n": [None]})
    (change,) = await up_to_now(database, token)
    assert (change.after, change.mended) == ({"n": [None]}, "a number that is not finite")
    assert await database.put("things", Write("d/a", stands, {"n": 1})) == Stored("d/a", 1, {"n": 1})


async def test_another_order_of_fields_is_no_other_document(database: MongoDatabase, shell: Mongo) -> None:
    shell.things.insert_one({"b": {"y": 1, "x": 2}, "a": 1, "revision": 7, "_id": "d/a"})
    seen = Stored("d/a", 7, {"a": 1, "b": {"x": 2, "y": 1}})
    assert await database.put("things", Write("d/a", seen, {"n": 1})) == Stored("d/a", 8, {"n": 1})


async def test_an_id_that_is_no_text_is_none_of_ours(
    database: MongoDatabase, shell: Mongo, caplog: pytest.LogCaptureFixture
) -> None:
    token = await database.now()
    shell.things.insert_many([{"_id": ObjectId()}, {"_id": 7, "label": "red"}, {"_id": "d/a", "label": "red"}])
    assert [change.key for change in await up_to_now(database, token)] == ["d/a"]
    assert [one.key for one in await database.scan("things")] == ["d/a"]
    assert [one.key for one in await database.find("things", "label", ["red"])] == ["d/a"]
    assert "no text" in caplog.text


async def test_arrays_are_not_looked_into(database: MongoDatabase, shell: Mongo) -> None:
    await insert(
        database,
        "things",
        {
            "d/a": {"label": ["red"]},
            "d/b": {"label": "red"},
            "d/c": {"owner": "ann", "place": [{"rank": 1}]},
            "d/d": {"owner": "ann", "place": {"rank": [1]}},
            "d/e": {"owner": "ann", "place": {"rank": 1}},
        },
    )
    assert shell.things.count_documents({"label": "red"}) == 2
    assert [one.key for one in await database.find("things", "label", ["red"])] == ["d/b"]
    assert [one.key for one in await database.find("things", "by_owner", ["ann"])] == ["d/e"]


@pytest.mark.parametrize("code", [{"$where": "1"}, {"$gt": ""}, {"$ne": None}])
async def test_operators_are_never_interpreted(database: MongoDatabase, code: dict[str, Any]) -> None:
    made = await database.put("things", Write("d/a", None, {"text": "$$ROOT", "path": "$text", "expr": "$$NOW"}))
    assert (await database.get("things", "d/a")) == made
    with pytest.raises(RequestInvalid):
        await database.find("things", "label", [code])
    with pytest.raises(RequestInvalid):
        await database.put("things", Write("d/b", None, {"a": code}))
    assert await database.put("things", Write("d/a", made, {"text": "$path"})) == Stored("d/a", 2, {"text": "$path"})


async def test_indexes_are_used(database: MongoDatabase, shell: Mongo) -> None:
    from iotsphere.drivers.mongo.searching import by_index

    index = COLLECTIONS[0].indexes[0]
    last = Stored("d/c", 1, {"owner": "ann", "place": {"rank": 3}})
    for equal, after in ((["ann"], None), (["ann"], 3), (["ann"], last), (["ann", 3], None), (["ann", 3], last)):
        which, order = by_index(index, equal, after)
        plan = shell.things.find(which).sort(order).explain()["queryPlanner"]["winningPlan"]
        assert plan["stage"] == "FETCH", plan
        assert plan["inputStage"]["stage"] == "IXSCAN"
        assert plan["inputStage"]["indexName"] == "by_owner"
        assert plan["inputStage"]["indexBounds"]["owner"] == ['["ann", "ann"]']
    assert shell.things.index_information()["by_owner"]["partialFilterExpression"] == {
        "owner": {"$exists": True},
        "place.rank": {"$exists": True},
    }
    await database.ready()


async def test_an_index_that_was_declared_otherwise_is_made_anew(database: MongoDatabase, shell: Mongo) -> None:
    things = COLLECTIONS[0]
    label = next(one for one in things.indexes if one.name == "label")
    await insert(database, "things", {"d/a": {"label": "red", "colour": "blue"}})
    await database.ensure([things._replace(indexes=(label._replace(fields=("colour",)),))])
    assert [one.key for one in await database.find("things", "label", ["blue"])] == ["d/a"]
    assert list(shell.things.index_information()["label"]["key"]) == [("colour", 1), ("_id", 1)]


async def test_what_is_there_already_expires_as_well(database: MongoDatabase, shell: Mongo) -> None:
    notes = COLLECTIONS[1]
    shell.notes.insert_many([{"_id": "d/a", "until": 1_500_000_000_000}, {"_id": "d/b", "until": "x"}, {"_id": "d/c"}])
    await database.ensure([notes._replace(watched=True)])
    async with aclosing(database.changes(await database.now(), ["notes"])) as feed:
        await database.ensure([notes._replace(watched=True, expires="until")])
        while (change := await next_change(feed)).kind != "delete":
            pass
    assert change.key == "d/a"
    assert [one.key for one in await database.scan("notes")] == ["d/b", "d/c"]


async def test_a_database_that_was_there_before_us_is_taken_over(mongo_url: str, shell: Mongo) -> None:
    """Its collections have neither pre-images nor an epoch; what happens from now on is told."""
    shell.things.insert_one({"_id": "d/a", "label": "red"})
    async with MongoDatabase(mongo_url, SystemClock(), MongoOptions(timeout=30, quiet=0.2)) as database:
        early = f"{'0' * 16}.{'0' * 16}."
        await database.ensure(COLLECTIONS)
        with pytest.raises(ChangesLost):
            await take(database.changes(early), 60)
        token = await database.now()
        stands = await database.get("things", "d/a")
        await database.put("things", Write("d/a", stands, {"label": "blue"}))
        assert await since(database, token) == [("update", "things", "d/a", 1, {"label": "red"}, {"label": "blue"})]
        assert [one.key for one in await database.find("things", "label", ["blue"])] == ["d/a"]


def test_years_beyond_the_calendar_are_nothing() -> None:
    assert plain(DatetimeMS(-(2**62)), set()) is None
    assert plain([{"at": DatetimeMS(0)}], set()) == [{"at": "1970-01-01T00:00:00.000Z"}]
