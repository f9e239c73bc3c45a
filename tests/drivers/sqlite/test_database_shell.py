"""What a person does with the sqlite3 shell is told like any other change, and never written over unseen."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.sqlite.database import SqliteDatabase, StateOptions
from iotsphere.entities.errors import Conflict
from iotsphere.use_cases.ports.database import Collection, Stored, Write
from tests.contracts.database import COLLECTIONS, insert
from tests.contracts.database_changes import Told, next_change, told, up_to_now


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    async with SqliteDatabase(tmp_path / "state.db", SystemClock(), StateOptions(quiet=0.2)) as database:
        await database.ensure(COLLECTIONS)
        yield database


@pytest.fixture
def shell(database: SqliteDatabase, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A connection as the sqlite3 shell opens it, with none of the driver's settings."""
    assert database.options.quiet == 0.2
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as shell:
        yield shell


async def since(database: SqliteDatabase, token: str) -> list[Told]:
    """What was told after a token."""
    return list(map(told, await up_to_now(database, token)))


async def test_an_update_counts_a_revision_and_is_told(database: SqliteDatabase, shell: sqlite3.Connection) -> None:
    made = await database.put("things", Write("d/a", None, {"desired": {"target": 20}}))
    token = await database.now()
    shell.execute("UPDATE things SET body = json_set(body, '$.desired.target', 21) WHERE key = 'd/a'")
    stands = await database.get("things", "d/a")
    assert stands == Stored("d/a", 2, {"desired": {"target": 21}})
    with pytest.raises(Conflict):
        await database.put("things", Write("d/a", made, {}))
    await database.put("things", Write("d/a", stands, {}))
    assert await since(database, token) == [
        ("update", "things", "d/a", 2, {"desired": {"target": 20}}, {"desired": {"target": 21}}),
        ("update", "things", "d/a", 3, {"desired": {"target": 21}}, {}),
    ]


async def test_the_shell_may_count_the_revision_itself(database: SqliteDatabase, shell: sqlite3.Connection) -> None:
    await insert(database, "things", {"d/a": {"n": 1}})
    token = await database.now()
    shell.execute("UPDATE things SET body = '{\"n\": 2}', revision = revision + 1")
    assert await since(database, token) == [("update", "things", "d/a", 2, {"n": 1}, {"n": 2})]


async def test_a_body_that_was_written_prettily_can_be_replaced(
    database: SqliteDatabase, shell: sqlite3.Connection
) -> None:
    shell.execute("INSERT INTO things(key, body) VALUES ('d/a', '{ \"n\" : 1.50,\n  \"m\": [ ] }')")
    stands = await database.get("things", "d/a")
    assert stands == Stored("d/a", 1, {"n": 1.5, "m": []})
    assert await database.put("things", Write("d/a", stands, {"n": 2})) == Stored("d/a", 2, {"n": 2})


async def test_rows_that_come_go_and_move_are_told(database: SqliteDatabase, shell: sqlite3.Connection) -> None:
    token = await database.now()
    shell.executescript(
        """INSERT INTO things(key, body) VALUES ('d/a', '{"n":1}'), ('d/b', '{"n":2}');
        UPDATE things SET key = 'd/c' WHERE key = 'd/a';
        DELETE FROM things WHERE key = 'd/b';
        DELETE FROM things;"""
    )
    assert await since(database, token) == [
        ("insert", "things", "d/a", 1, None, {"n": 1}),
        ("insert", "things", "d/b", 1, None, {"n": 2}),
        ("delete", "things", "d/a", 0, {"n": 1}, None),
        ("insert", "things", "d/c", 1, None, {"n": 1}),
        ("delete", "things", "d/b", 0, {"n": 2}, None),
        ("delete", "things", "d/c", 0, {"n": 1}, None),
    ]
    assert list(await database.scan("things")) == []


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT OR REPLACE INTO things(key, body) VALUES ('d/a', '{}')",
        "INSERT INTO things(key, body) VALUES ('d/a', '{}') ON CONFLICT DO UPDATE SET body = '{}'",
        "INSERT INTO things(key, body) VALUES ('d/b', 'no JSON')",
        "INSERT INTO things(key, body) VALUES ('d/b', '[1]')",
        "INSERT INTO things(key, body) VALUES ('', '{}')",
        "UPDATE things SET body = '{'",
        "UPDATE things SET body = NULL",
    ],
)
async def test_what_would_be_told_wrongly_or_is_no_document_is_refused(
    database: SqliteDatabase, shell: sqlite3.Connection, statement: str
) -> None:
    await insert(database, "things", {"d/a": {"n": 1}})
    token = await database.now()
    with pytest.raises(sqlite3.Error):
        shell.execute(statement)
    assert await since(database, token) == []
    assert list(await database.scan("things")) == [Stored("d/a", 1, {"n": 1})]


@pytest.mark.parametrize(
    ("body", "read", "mended"),
    [
        ("""'{"a":1e999}'""", {"a": None}, "a number that is not finite"),
        (r"""'{"a":"\ud800"}'""", {"a": "\ufffd"}, "half a surrogate pair"),
        ("CAST(x'7b2261223a22ff227d' AS TEXT)", {"a": "\ufffd"}, "damaged text"),
    ],
)
async def test_what_is_no_json_is_read_and_told_mended_and_can_be_replaced(
    database: SqliteDatabase, shell: sqlite3.Connection, body: str, read: dict[str, object], mended: str
) -> None:
    token = await database.now()
    shell.execute(f"INSERT INTO things(key, body) VALUES ('d/a', {body})")
    stands = await database.get("things", "d/a")
    assert stands == Stored("d/a", 1, read)
    assert list(await database.scan("things")) == [stands]
    (change,) = await up_to_now(database, token)
    assert (change.after, change.mended) == (read, mended)
    assert await database.put("things", Write("d/a", stands, {"n": 1})) == Stored("d/a", 2, {"n": 1})
    *_, change = await up_to_now(database, token)
    assert (change.before, change.mended) == (read, "")


async def test_keys_that_are_no_text_are_none_of_ours(
    database: SqliteDatabase, shell: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    token = await database.now()
    shell.execute("INSERT INTO things(key, body) VALUES (CAST(x'64ff' AS TEXT), '{\"label\":\"red\"}')")
    shell.execute("INSERT INTO things(key, body) VALUES (x'00ff', '{\"label\":\"red\"}')")
    await insert(database, "things", {"d/a": {"label": "red"}, "z": {"label": "red"}})
    assert [one.key for one in await database.scan("things", limit=2)] == ["d/a", "z"]
    assert [one.key for one in await database.find("things", "label", ["red"], limit=2)] == ["d/a", "z"]
    assert [change.key for change in await up_to_now(database, token)] == ["d/a", "z"]
    assert "no text" in caplog.text


@pytest.mark.parametrize(("revision", "seen", "following"), [("'x'", 0, 1), ("2.7", 2, 3), (2**63 - 1, 2**63 - 1, 1)])
async def test_a_revision_that_is_none_stands_in_nobodys_way(
    database: SqliteDatabase, shell: sqlite3.Connection, revision: object, seen: int, following: int
) -> None:
    await insert(database, "things", {"d/a": {"n": 1}})
    shell.execute(f"UPDATE things SET revision = {revision}")
    stands = await database.get("things", "d/a")
    assert stands == Stored("d/a", seen, {"n": 1})
    assert await database.put("things", Write("d/a", stands, {"n": 2})) == Stored("d/a", following, {"n": 2})
    assert await database.get("things", "d/a") == Stored("d/a", following, {"n": 2})


async def test_what_was_rolled_back_is_not_told(database: SqliteDatabase, shell: sqlite3.Connection) -> None:
    token = await database.now()
    shell.executescript("BEGIN; INSERT INTO things(key, body) VALUES ('d/a', '{}'); ROLLBACK;")
    assert await since(database, token) == []


async def test_what_is_not_watched_counts_revisions_all_the_same(
    database: SqliteDatabase, shell: sqlite3.Connection
) -> None:
    await insert(database, "notes", {"d/a": {"n": 1}})
    shell.execute("UPDATE notes SET body = '{\"n\":2}'")
    assert await database.get("notes", "d/a") == Stored("d/a", 2, {"n": 2})


async def test_what_is_no_longer_watched_is_no_longer_told(database: SqliteDatabase) -> None:
    token = await database.now()
    await database.ensure([Collection("things"), Collection("notes", watched=True)])
    await insert(database, "things", {"d/a": {}})
    await insert(database, "notes", {"d/a": {"n": 1}})
    feed = database.changes(token)
    assert told(await next_change(feed)) == ("insert", "notes", "d/a", 1, None, {"n": 1})
    await feed.aclose()


@pytest.mark.parametrize(
    ("equal", "after", "index"),
    [
        (["ann"], None, "by_owner"),
        (["ann"], 3, "by_owner"),
        (["ann"], Stored("d/a", 1, {"owner": "ann", "place": {"rank": 3}}), "by_owner"),
        (["ann", 3], None, "by_owner"),
        ([True], None, "open"),
        ([True], 5, "open"),
        (["red"], None, "label"),
    ],
)
async def test_a_search_walks_along_its_index(
    database: SqliteDatabase, shell: sqlite3.Connection, equal: list[object], after: object, index: str
) -> None:
    from iotsphere.drivers.sqlite.state_search import query

    chosen = next(one for one in COLLECTIONS[0].indexes if one.name == index)
    text, values = query("things", chosen, equal, after)
    await database.ready()
    plan = [row[3] for row in shell.execute(f"EXPLAIN QUERY PLAN {text}", values)]
    assert len(plan) == 1, plan  # in particular, nothing is sorted
    assert plan[0].startswith(f"SEARCH things USING INDEX _things_by_{index} ("), plan
