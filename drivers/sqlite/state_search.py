"""Reading documents from the state file: by key, by declared index, and in key order."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import orjson

from ...adapters.database.body import at_path
from ...use_cases.ports.database import Index, Stored
from .state_schema import indexed, type_of, value_of

KEYS_AT_ONCE: Final = 500
# A value is read by the same parser that read the index, so that equal numbers are equal to the last bit.
_VALUE: Final = "json_extract(?, '$')"
_SCALAR: Final = "IN ('text', 'integer', 'real', 'true', 'false')"
_BOOLEAN: Final = "IN ('true', 'false')"  # which are 1 and 0 to SQL
_NUMBER: Final = "IN ('integer', 'real')"
Row = tuple[str, int, str]
Connection = sqlite3.Connection


def row_of(connection: Connection, collection: str, key: str) -> Row | None:
    """Key, revision and JSON text of a document."""
    row: Row | None = connection.execute(
        f"SELECT key, revision, body FROM {collection} WHERE key = ?", (key,)
    ).fetchone()
    return row


def rows_of(connection: Connection, collection: str, keys: Sequence[str]) -> list[Row]:
    """Those of the documents that exist."""
    found: list[Row] = []
    for start in range(0, len(keys), KEYS_AT_ONCE):
        some = keys[start : start + KEYS_AT_ONCE]
        marks = ", ".join("?" * len(some))
        found += connection.execute(f"SELECT key, revision, body FROM {collection} WHERE key IN ({marks})", some)
    return found


def scan(connection: Connection, collection: str, prefix: str, after: str, limit: int) -> list[Row]:
    """Documents in key order; those that begin with the prefix are neighbours, so the first that does not ends it."""
    found: list[Row] = []
    rows = connection.execute(
        f"SELECT key, revision, body FROM {collection} WHERE key > ? AND key >= ? ORDER BY key LIMIT ?",
        (after, prefix, limit),
    )
    for row in rows:
        if not row[0].startswith(prefix):
            break
        found.append(row)
    rows.close()
    return found


def query(collection: str, index: Index, equal: Sequence[Any], after: Any, limit: int) -> tuple[str, list[Any]]:
    """The SQL of a search, and its values."""
    conditions: list[str] = [indexed(index)]
    values: list[Any] = []
    for path, value in zip(index.fields, equal, strict=False):
        kind = "= 'text'" if type(value) is str else _BOOLEAN if type(value) is bool else _NUMBER
        conditions.append(f"{value_of(path)} = {_VALUE} AND {type_of(path)} {kind}")
        values.append(_json(value))
    conditions += [f"{type_of(path)} {_SCALAR}" for path in index.fields[len(equal) :]]
    order = "key"
    if len(equal) < len(index.fields):
        path = index.fields[len(equal)]
        order = f"{value_of(path)}, key"
        if type(after) is Stored:
            conditions.append(f"{value_of(path)} >= {_VALUE} AND ({value_of(path)} > {_VALUE} OR key > ?)")
            place = _json(at_path(after.body, path))
            values += [place, place, after.key]
        elif after is not None:
            conditions.append(f"{value_of(path)} > {_VALUE}")
            values.append(_json(after))
    elif type(after) is Stored:
        conditions.append("key > ?")
        values.append(after.key)
    return (
        f"SELECT key, revision, body FROM {collection} WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT ?",
        [*values, limit],
    )


def find(connection: Connection, collection: str, wanted: tuple[Index, Sequence[Any], Any, int]) -> list[Row]:
    """Documents by an index: ``wanted`` is the index, the equal values, after what, and how many."""
    text, values = query(collection, *wanted)
    return connection.execute(text, values).fetchall()


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
