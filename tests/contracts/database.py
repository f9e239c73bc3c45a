"""The contract of ``Database``: documents, locks and indexes. The feed of changes has its own (database_changes.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from iotsphere.entities.errors import Conflict, RequestInvalid
from iotsphere.use_cases.ports.database import (
    MAX_DEPTH,
    MAX_DOCUMENT_BYTES,
    MAX_KEY_BYTES,
    Body,
    Collection,
    Database,
    Index,
    Outcome,
    Stored,
    Write,
)

THINGS = Collection(
    "things",
    (
        Index("by_owner", ("owner", "place.rank")),
        Index("open", ("open", "due")),
        Index("label", ("label",)),
    ),
    watched=True,
)
NOTES = Collection("notes")
VISITS = Collection("visits", (Index("by_guest", ("guest",)),), watched=True, expires="until")
COLLECTIONS = (THINGS, NOTES, VISITS)

EVERY_VALUE = {
    "text": "Füllstand 水位 \U0001f321 \u0000 \u2028 ' \" \\ $x {a.b}",
    "empty text": "",
    "int": 7,
    "large": 2**63 - 1,
    "small": -(2**63),
    "beyond doubles": 2**53 + 1,
    "float": 0.1,
    "whole float": 1.0,
    "huge": 1.7976931348623157e308,
    "tiny": 5e-324,
    "true": True,
    "false": False,
    "null": None,
    "object": {"a": {"b": {"c": [1, 1.0, "1", True, None, {}, []]}}, "_id": 1, "revision": 3, "__v": None},
    "empty object": {},
    "array": [[], [[]], {}, [None], 0, -1],
    "empty array": [],
    "Schlüssel mit Größe": 1,
    "a-b/c[0]": 1,
}


def typed(value: Any) -> Any:
    """A value together with the types of all that is in it: 1, 1.0 and True are then three things."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value).__name__, value


async def insert(database: Database, collection: str, documents: dict[str, Body]) -> None:
    """Make several documents."""
    outcomes = await database.write(collection, [Write(key, None, body) for key, body in documents.items()])
    assert all(outcome.done for outcome in outcomes)


def keys(found: Sequence[Stored]) -> list[str]:
    """The keys of documents."""
    return [document.key for document in found]


class DatabaseContract:
    """Needs the fixture ``database``: an open, empty store that was told of COLLECTIONS."""

    async def test_what_was_put_is_got(self, database: Database) -> None:
        assert await database.get("things", "d/a") is None
        made = await database.put("things", Write("d/a", None, {"owner": "ann"}))
        assert made == Stored("d/a", 1, {"owner": "ann"})
        assert await database.get("things", "d/a") == made
        changed = await database.put("things", Write("d/a", made, {"owner": "bob", "n": 1}))
        assert changed == Stored("d/a", 2, {"owner": "bob", "n": 1})
        assert await database.get("things", "d/a") == changed
        assert await database.get("things", "D/a") is None
        assert await database.get("notes", "d/a") is None
        assert await database.put("things", Write("d/a", changed, None)) is None
        assert await database.get("things", "d/a") is None

    async def test_every_value_comes_back_equal_and_of_its_type(self, database: Database) -> None:
        made = await database.put("things", Write("d/a", None, EVERY_VALUE))
        got = await database.get("things", "d/a")
        assert made is not None
        assert got is not None
        assert typed(got.body) == typed(made.body) == typed(EVERY_VALUE)
        assert (await database.put("things", Write("d/a", got, {}))) == Stored("d/a", 2, {})
        assert await database.get("things", "d/a") == Stored("d/a", 2, {})

    async def test_what_was_got_can_be_changed_without_changing_what_is_stored(self, database: Database) -> None:
        body: dict[str, Any] = {"list": [1], "object": {}}
        await database.put("things", Write("d/a", None, body))
        body["list"].append(2)
        got = await database.get("things", "d/a")
        assert got is not None
        got.body["object"]["x"] = 1
        assert await database.get("things", "d/a") == Stored("d/a", 1, {"list": [1], "object": {}})

    async def test_keys_are_any_text(self, database: Database) -> None:
        names = [
            "a",
            "A",
            "d/é",
            "d/e\u0301",
            "水/\U0001f511",
            "'; DROP TABLE things --",
            "$where",
            "a.b",
            "%_",
            "k" * 512,
        ]
        await insert(database, "things", {key: {"n": number} for number, key in enumerate(names)})
        for number, key in enumerate(names):
            assert await database.get("things", key) == Stored(key, 1, {"n": number})
        assert keys(await database.scan("things")) == sorted(names)

    @pytest.mark.parametrize("key", ["", "k" * (MAX_KEY_BYTES + 1), "é" * 257, "a\0b", "\ud800"])
    async def test_a_key_that_cannot_be_stored_is_refused(self, database: Database, key: str) -> None:
        with pytest.raises(RequestInvalid):
            await database.put("things", Write(key, None, {}))
        assert list(await database.scan("things")) == []

    @pytest.mark.parametrize(
        "body",
        [
            {"_id": 1}, {"_x": 1}, {"revision": 1}, {"": 1}, {"$set": {}}, {"a.b": 1}, {"a\0": 1}, {"a": {"": 1}},
            {"a": [{"$gt": 1}]}, {"a": {"b": {"c.d": 1}}}, {"a": 2**63}, {"a": -(2**63) - 1}, {"a": float("nan")},
            {"a": [float("inf")]}, {"a": "\ud800"}, {"\udfff": 1}, {"a": (1, 2)}, {"a": b"x"}, {"a": {1: 2}},
            {"a": "x" * MAX_DOCUMENT_BYTES}, {"a": ["x" * 1_000] * 1_000},
        ],
    )  # fmt: skip
    async def test_a_body_that_cannot_be_stored_alike_everywhere_is_refused(
        self, database: Database, body: dict[str, Any]
    ) -> None:
        with pytest.raises(RequestInvalid) as caught:
            await database.write("things", [Write("d/good", None, {}), Write("d/bad", None, body)])
        assert ":" in caught.value.message  # what to do about it
        assert list(await database.scan("things")) == []

    async def test_a_body_may_be_as_large_and_as_deep_as_is_said(self, database: Database) -> None:
        body: dict[str, Any] = {"text": "x" * (MAX_DOCUMENT_BYTES - len('{"text":""}'))}
        await database.put("things", Write("d/large", None, body))
        got = await database.get("things", "d/large")
        assert got is not None
        assert got.body == body
        deep: Any = 1
        for _ in range(MAX_DEPTH - 1):
            deep = [deep]
        await database.put("things", Write("d/deep", None, {"a": deep}))
        with pytest.raises(RequestInvalid, match="deeper than"):
            await database.put("things", Write("d/deeper", None, {"a": [deep]}))

    async def test_a_collection_must_be_declared(self, database: Database) -> None:
        for asking in (
            database.get("strangers", "a"),
            database.get_many("strangers", ["a"]),
            database.scan("strangers"),
            database.find("strangers", "by_owner", ["x"]),
            database.write("strangers", []),
        ):
            with pytest.raises(RequestInvalid, match="strangers"):
                await asking

    # Locks

    async def test_a_write_demands_exactly_what_is_there(self, database: Database) -> None:
        made = await database.put("things", Write("d/a", None, {"n": 1, "o": {"x": [1]}}))
        assert made is not None
        for before in (
            None,
            Stored("d/a", 2, made.body),
            Stored("d/a", 1, {"n": 2, "o": {"x": [1]}}),
            Stored("d/a", 1, {"n": 1, "o": {"x": []}}),
            Stored("d/a", 1, {"n": 1}),
            Stored("d/a", 1, {**made.body, "more": None}),
        ):
            for body in ({"n": 9}, None):
                with pytest.raises(Conflict) as caught:
                    await database.put("things", Write("d/a", before, body))
                assert caught.value.code == "conflict"
                assert caught.value.retry is False
                assert caught.value.facts == {"revision": 1}
                assert await database.write("things", [Write("d/a", before, body)]) == [Outcome(False, made)]
        assert await database.get("things", "d/a") == made

    async def test_what_is_not_there_cannot_be_replaced(self, database: Database) -> None:
        made = Stored("d/a", 1, {"n": 1})
        with pytest.raises(Conflict) as caught:
            await database.put("things", Write("d/a", made, {"n": 2}))
        assert caught.value.facts == {"revision": 0}
        assert await database.write("things", [Write("d/a", made, None)]) == [Outcome(False, None)]
        assert await database.get("things", "d/a") is None

    async def test_removing_nothing_is_done(self, database: Database) -> None:
        assert await database.put("things", Write("d/a", None, None)) is None
        made = await database.put("things", Write("d/a", None, {}))
        assert await database.write("things", [Write("d/a", None, None)]) == [Outcome(False, made)]

    async def test_a_write_of_an_equal_body_is_a_write(self, database: Database) -> None:
        made = await database.put("things", Write("d/a", None, {"n": 1}))
        assert await database.put("things", Write("d/a", made, {"n": 1})) == Stored("d/a", 2, {"n": 1})
        with pytest.raises(Conflict):
            await database.put("things", Write("d/a", made, {"n": 1}))

    async def test_a_document_that_is_made_anew_begins_with_its_first_revision(self, database: Database) -> None:
        stands = await database.put("things", Write("d/a", None, {"n": 1}))
        stands = await database.put("things", Write("d/a", stands, {"n": 2}))
        await database.put("things", Write("d/a", stands, None))
        assert await database.put("things", Write("d/a", None, {"n": 3})) == Stored("d/a", 1, {"n": 3})
        with pytest.raises(Conflict):
            await database.put("things", Write("d/a", stands, {"n": 4}))

    async def test_each_write_of_a_call_has_an_outcome_of_its_own(self, database: Database) -> None:
        await insert(database, "things", {f"d/{name}": {"n": 1} for name in "abcd"})
        one = {name: Stored(f"d/{name}", 1, {"n": 1}) for name in "abcd"}
        stale = Stored("d/b", 1, {"n": 0})
        outcomes = await database.write(
            "things",
            [
                Write("d/a", one["a"], {"n": 2}),
                Write("d/b", stale, {"n": 2}),
                Write("d/c", None, {"n": 2}),
                Write("d/d", one["d"], None),
                Write("d/e", None, {"n": 2}),
                Write("d/f", Stored("d/f", 1, {}), {"n": 2}),
                Write("d/g", None, None),
            ],
        )
        assert list(outcomes) == [
            Outcome(True, Stored("d/a", 2, {"n": 2})),
            Outcome(False, one["b"]),
            Outcome(False, one["c"]),
            Outcome(True, None),
            Outcome(True, Stored("d/e", 1, {"n": 2})),
            Outcome(False, None),
            Outcome(True, None),
        ]
        assert keys(await database.scan("things")) == ["d/a", "d/b", "d/c", "d/e"]
        assert list(await database.write("things", [])) == []

    async def test_one_call_writes_each_key_once(self, database: Database) -> None:
        with pytest.raises(RequestInvalid, match="twice"):
            await database.write("things", [Write("d/a", None, {}), Write("d/a", None, {"n": 1})])
        assert await database.get("things", "d/a") is None

    async def test_of_concurrent_writers_one_wins(self, database: Database) -> None:
        made = await database.put("things", Write("d/a", None, {"n": 0}))
        outcomes = await asyncio.gather(
            *(database.write("things", [Write("d/a", made, {"n": number})]) for number in range(1, 11))
        )
        won = [outcome.stands for (outcome,) in outcomes if outcome.done]
        assert won == [await database.get("things", "d/a")]

    async def test_no_update_of_eight_writers_is_lost(self, database: Database) -> None:
        await count_up(database, [database] * 8, 50)

    # Finding

    async def test_many_are_got_at_once(self, database: Database) -> None:
        await insert(database, "things", {f"d/{number}": {"n": number} for number in range(300)})
        wanted = [f"d/{number}" for number in range(0, 400, 2)]
        assert await database.get_many("things", wanted) == {
            f"d/{number}": Stored(f"d/{number}", 1, {"n": number}) for number in range(0, 300, 2)
        }
        assert await database.get_many("things", []) == {}
        assert await database.get_many("things", ["d/1", "d/1"]) == {"d/1": Stored("d/1", 1, {"n": 1})}

    async def test_scans_by_prefix_in_pages(self, database: Database) -> None:
        names = [f"d{number}" for number in range(30)] + ["e", "d%", "d_", "c\U0010ffff", "\uffff", "\U00010000", "D1"]
        await insert(database, "things", {name: {} for name in names})
        assert keys(await database.scan("things")) == sorted(names)
        found: list[str] = []
        while page := await database.scan("things", prefix="d", after=found[-1] if found else "", limit=7):
            assert len(page) <= 7
            found += keys(page)
        assert found == sorted(name for name in names if name.startswith("d"))
        assert keys(await database.scan("things", prefix="d%")) == ["d%"]
        assert keys(await database.scan("things", prefix="c\U0010ffff")) == ["c\U0010ffff"]
        assert keys(await database.scan("things", after="d9", limit=2)) == ["d_", "e"]
        assert list(await database.scan("things", prefix="x")) == []

    async def test_finds_what_equals_in_order(self, database: Database) -> None:
        ranks = {"a": 3, "b": 1, "c": 2, "d": 2, "e": 10, "f": -1, "g": 2.5}
        await insert(
            database, "things", {f"d/{key}": {"owner": "ann", "place": {"rank": n}} for key, n in ranks.items()}
        )
        await insert(database, "things", {"d/z": {"owner": "bob", "place": {"rank": 1}}})
        ordered = ["d/f", "d/b", "d/c", "d/d", "d/g", "d/a", "d/e"]
        assert keys(await database.find("things", "by_owner", ["ann"])) == ordered
        assert keys(await database.find("things", "by_owner", ["ann"], limit=3)) == ordered[:3]
        assert keys(await database.find("things", "by_owner", ["ann"], after=2)) == ordered[4:]
        assert keys(await database.find("things", "by_owner", ["ann"], after=2, limit=1)) == ordered[4:5]
        assert keys(await database.find("things", "by_owner", ["ann", 2])) == ["d/c", "d/d"]
        assert keys(await database.find("things", "by_owner", ["ann", 2.0])) == ["d/c", "d/d"]
        assert keys(await database.find("things", "by_owner", [], after="ann")) == ["d/z"]
        assert len(await database.find("things", "by_owner", [])) == 8
        assert list(await database.find("things", "by_owner", ["Ann"])) == []

    async def test_equal_ones_can_be_paged_through(self, database: Database) -> None:
        bodies: dict[str, Body] = {f"d/{n:02}": {"owner": "ann", "place": {"rank": n // 7}} for n in range(25)}
        await insert(database, "things", bodies)
        found: list[Stored] = []
        while page := await database.find("things", "by_owner", ["ann"], after=found[-1] if found else None, limit=4):
            found += page
        assert keys(found) == sorted(bodies)
        found = []
        while page := await database.find(
            "things", "by_owner", ["ann", 1], after=found[-1] if found else None, limit=4
        ):
            found += page
        assert keys(found) == [f"d/{n:02}" for n in range(7, 14)]

    async def test_a_document_without_a_field_is_not_in_the_index(self, database: Database) -> None:
        await insert(
            database,
            "things",
            {
                "d/a": {"owner": "ann"},
                "d/b": {"owner": "ann", "place": {}},
                "d/c": {"owner": "ann", "place": {"rank": None}},
                "d/d": {"owner": "ann", "place": 7},
                "d/e": {"owner": "ann", "place": {"rank": 0}},
                "d/f": {"place": {"rank": 1}},
                "d/g": {"owner": None, "place": {"rank": 1}},
            },
        )
        assert keys(await database.find("things", "by_owner", ["ann"])) == ["d/e"]
        assert keys(await database.find("things", "by_owner", ["ann"], after=-1)) == ["d/e"]
        assert keys(await database.find("things", "by_owner", [])) == ["d/e"]

    async def test_texts_booleans_and_numbers_are_told_apart(self, database: Database) -> None:
        values: dict[str, Any] = {"t": True, "f": False, "1": 1, "0": 0, "s": "1", "T": "true", "e": ""}
        await insert(database, "things", {f"d/{key}": {"open": value, "due": 5} for key, value in values.items()})
        await insert(database, "things", {f"e/{key}": {"label": value} for key, value in values.items()})
        for key, value in values.items():
            assert keys(await database.find("things", "open", [value])) == [f"d/{key}"]
            assert keys(await database.find("things", "open", [value], limit=1)) == [f"d/{key}"]
            assert keys(await database.find("things", "label", [value])) == [f"e/{key}"]

    async def test_text_order_is_by_code_point(self, database: Database) -> None:
        texts = ["", "A", "Z", "a", "a ", "aa", "b", "é", "\uffff", "\U00010000"]
        await insert(
            database, "things", {f"d/{99 - n}": {"open": True, "due": text} for n, text in enumerate(texts)}
        )  # fmt: skip
        found = await database.find("things", "open", [True])
        assert [document.body["due"] for document in found] == texts
        found = await database.find("things", "open", [True], after="a")
        assert [document.body["due"] for document in found] == texts[4:]

    async def test_an_index_follows_each_change(self, database: Database) -> None:
        stands = await database.put("things", Write("d/a", None, {"label": "red"}))
        stands = await database.put("things", Write("d/a", stands, {"label": "blue"}))
        assert list(await database.find("things", "label", ["red"])) == []
        assert list(await database.find("things", "label", ["blue"])) == [stands]
        await database.put("things", Write("d/a", stands, None))
        assert list(await database.find("things", "label", ["blue"])) == []

    async def test_a_search_that_makes_no_sense_is_refused(self, database: Database) -> None:
        for equal in ([{"$gt": ""}], [None], [["a"]], [float("nan")], ["\ud800"], ["a", 1, 2]):
            with pytest.raises(RequestInvalid):
                await database.find("things", "by_owner", equal)
        with pytest.raises(RequestInvalid, match="no_such"):
            await database.find("things", "no_such", ["a"])
        with pytest.raises(RequestInvalid):
            await database.find("things", "by_owner", ["a"], after={"$gt": 1})
        with pytest.raises(RequestInvalid):
            await database.find("things", "by_owner", ["a", 1], after=1)

    # Collections

    async def test_declaring_again_changes_nothing(self, database: Database) -> None:
        await insert(database, "things", {"d/a": {"label": "red"}})
        for _ in range(2):
            await database.ensure(COLLECTIONS)
        assert keys(await database.find("things", "label", ["red"])) == ["d/a"]

    async def test_an_index_that_comes_later_holds_what_was_there_before(self, database: Database) -> None:
        await insert(database, "things", {f"d/{n}": {"color": "red" if n % 2 else "blue"} for n in range(10)})
        with pytest.raises(RequestInvalid):
            await database.find("things", "by_color", ["red"])
        await database.ensure([THINGS._replace(indexes=(*THINGS.indexes, Index("by_color", ("color",))))])
        assert keys(await database.find("things", "by_color", ["red"])) == ["d/1", "d/3", "d/5", "d/7", "d/9"]
        assert keys(await database.find("things", "label", ["red"])) == []

    @pytest.mark.parametrize(
        "collection",
        [
            Collection(""), Collection("_own"), Collection("a.b"), Collection("a b"), Collection("x" * 41),
            Collection("ok", (Index("a'b", ("x",)),)), Collection("ok", (Index("a", ("$x",)),)),
            Collection("ok", (Index("a", ("x..y",)),)), Collection("ok", expires="x'"),
        ],
    )  # fmt: skip
    async def test_names_that_not_every_store_takes_are_refused(
        self, database: Database, collection: Collection
    ) -> None:
        with pytest.raises(RequestInvalid):
            await database.ensure([collection])

    async def test_it_is_ready(self, database: Database) -> None:
        await database.ready()


async def count_up(database: Database, writers: Sequence[Database], times: int) -> None:
    """Let each writer add one to the same document so many times; none may be lost."""
    await database.put("things", Write("d/counter", None, {"n": 0}))

    async def count(writer: Database) -> None:
        stands = await writer.get("things", "d/counter")
        for _ in range(times):
            while True:
                assert stands is not None
                write = Write("d/counter", stands, {"n": stands.body["n"] + 1})
                ((done, stands),) = await writer.write("things", [write])
                if done:
                    break

    async with asyncio.timeout(300):
        await asyncio.gather(*map(count, writers))
    total = len(writers) * times
    assert await database.get("things", "d/counter") == Stored("d/counter", total + 1, {"n": total})


class SharedDatabaseContract:
    """For stores that several processes share. Needs ``database``, and ``neighbour`` on the same store."""

    async def test_a_write_is_seen_by_the_neighbour_at_once(self, database: Database, neighbour: Database) -> None:
        stands = None
        for number in range(1, 6):
            stands = await database.put("things", Write("d/a", stands, {"n": number}))
            assert await neighbour.get("things", "d/a") == Stored("d/a", number, {"n": number})
        assert await neighbour.put("things", Write("d/a", stands, None)) is None
        assert await database.get("things", "d/a") is None

    async def test_no_update_is_lost_across_neighbours(self, database: Database, neighbour: Database) -> None:
        await count_up(database, [database, neighbour] * 4, 50)
