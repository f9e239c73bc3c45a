"""Tables, indexes and triggers of the state file: one table per collection, as a person with the sqlite3 shell finds it.

The triggers number the revisions and keep the journal of changes, so that what is changed with the shell is told like
anything else: ``UPDATE shadows SET body = json_set(body, '$.desired.target', 21) WHERE key = '…'``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final

from ...use_cases.ports.database import Collection, Index

_NOW: Final = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"
_TOTAL: Final = "COALESCE((SELECT total FROM _changes ORDER BY sequence DESC LIMIT 1), 0)"


def value_of(path: str) -> str:
    """The SQL for the scalar at a declared path, which holds letters, digits, ``_`` and dots only."""
    return f"json_extract(body, '$.{path}')"


def type_of(path: str) -> str:
    """The SQL for the JSON type at a declared path; NULL where there is nothing."""
    return f"json_type(body, '$.{path}')"


def indexed(index: Index) -> str:
    """The SQL that is true for what is in an index; a search has to say it in the same words to use the index.

    It does not ask for types: ``json_type`` costs ten times as much as ``json_extract``, and each write would pay for it.
    """
    return " AND ".join(f"{value_of(path)} IS NOT NULL" for path in index.fields)


def declare(connection: sqlite3.Connection, collections: Sequence[Collection]) -> None:
    """Make tables, indexes and triggers where they are missing or have changed."""
    for collection in collections:
        table = collection.name
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {table}(key TEXT NOT NULL PRIMARY KEY CHECK(key <> ''),"
            " revision INTEGER NOT NULL DEFAULT 1,"
            " body TEXT NOT NULL CHECK(json_valid(body) AND json_type(body) = 'object'))"
        )
        wanted = dict(_indexes(collection)) | dict(_triggers(collection))
        rows = connection.execute(
            "SELECT name, type, sql FROM sqlite_master WHERE tbl_name = ? AND type IN ('index', 'trigger')"
            " AND sql IS NOT NULL",
            (table,),
        )
        # What this version no longer declares stays, except triggers, which decide what is told.
        for name, kind, text in rows.fetchall():
            if name in wanted and wanted[name] == text:
                del wanted[name]
            elif name in wanted or (kind == "trigger" and name.startswith(f"_{table}_")):
                connection.execute(f"DROP {kind} {name}")
        for text in wanted.values():
            connection.execute(text)


def _indexes(collection: Collection) -> Iterator[tuple[str, str]]:
    table = collection.name
    for index in collection.indexes:
        name = f"_{table}_by_{index.name}"
        fields = ", ".join(map(value_of, index.fields))
        yield name, f"CREATE INDEX {name} ON {table}({fields}, key) WHERE {indexed(index)}"
    if collection.expires is not None:
        name, path = f"_{table}_expires", collection.expires
        yield name, f"CREATE INDEX {name} ON {table}({value_of(path)}) WHERE {value_of(path)} IS NOT NULL"


def _triggers(collection: Collection) -> Iterator[tuple[str, str]]:
    """The journal is kept here, not by the driver, so that no change can miss it."""
    table = collection.name

    def trigger(name: str, when: str, *steps: str) -> tuple[str, str]:
        return f"_{table}_{name}", f"CREATE TRIGGER _{table}_{name} {when} BEGIN {' '.join(steps)} END"

    def tell(kind: str, key: str, revision: str, before: str, after: str) -> str:
        if not collection.watched:
            return ""
        size = f"200 + COALESCE(length({before}), 0) + COALESCE(length({after}), 0)"
        return (
            "INSERT INTO _changes(at, kind, collection, key, revision, before, after, total)"
            f" VALUES ({_NOW}, '{kind}', '{table}', {key}, {revision}, {before}, {after}, {_TOTAL} + {size});"
        )

    # Without this, INSERT OR REPLACE would remove a document in silence: it fires no delete trigger.
    yield trigger(
        "replace",
        f"BEFORE INSERT ON {table} WHEN EXISTS (SELECT 1 FROM {table} WHERE key = NEW.key)",
        "SELECT RAISE(ABORT, 'a document with this key is there already: use UPDATE');",
    )
    # `UPDATE OF`: the inner update, which names the revision alone, does not fire it again.
    yield trigger(
        "update",
        f"AFTER UPDATE OF body ON {table} WHEN NEW.key = OLD.key",
        f"UPDATE {table} SET revision = OLD.revision + 1 WHERE NEW.revision = OLD.revision AND key = NEW.key;",
        tell("update", "NEW.key", f"(SELECT revision FROM {table} WHERE key = NEW.key)", "OLD.body", "NEW.body"),
    )
    if collection.watched:
        yield trigger(
            "insert", f"AFTER INSERT ON {table}", tell("insert", "NEW.key", "NEW.revision", "NULL", "NEW.body")
        )
        yield trigger("delete", f"AFTER DELETE ON {table}", tell("delete", "OLD.key", "0", "OLD.body", "NULL"))
        yield trigger(
            "rename",
            f"AFTER UPDATE OF key ON {table} WHEN NEW.key <> OLD.key",
            tell("delete", "OLD.key", "0", "OLD.body", "NULL"),
            tell("insert", "NEW.key", "NEW.revision", "NULL", "NEW.body"),
        )
