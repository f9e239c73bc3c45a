"""Reading documents from the state file: by key, by declared index, and in key order."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
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
# As bytes, for people can write texts that are no UTF-8; and the revision as a number whatever they have put there.
_COLUMNS: Final = "CAST(key AS BLOB), CAST(revision AS INTEGER), CAST(body AS BLOB)"
_TEXT_KEY: Final = "key < x''"  # keys that are no texts come after all others
Row = tuple[str, int, bytes]
Raw = tuple[bytes, int, bytes]
Connection = sqlite3.Connection


def text_of(key: bytes) -> str | None:
    """A key; None for one that is no text, and so is none of ours: nobody could ask for it."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _readable(rows: Iterable[Raw]) -> Iterator[Row]:
    for key, revision, body in rows:
        if (text := text_of(key)) is not None:
            yield text, revision, body


def row_of(connection: Connection, collection: str, key: str) -> Row | None:
    """Key, revision and JSON text of a document."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM {collection} WHERE key = ?", (key,))
    return next(_readable(rows.fetchall()), None)


def rows_of(connection: Connection, collection: str, keys: Sequence[str]) -> list[Row]:
    """Those of the documents that exist."""
    found: list[Row] = []
    for start in range(0, len(keys), KEYS_AT_ONCE):
        some = keys[start : start + KEYS_AT_ONCE]
        marks = ", ".join("?" * len(some))
        found += _readable(connection.execute(f"SELECT {_COLUMNS} FROM {collection} WHERE key IN ({marks})", some))
    return found


def scan(connection: Connection, collection: str, prefix: str, after: str, limit: int) -> list[Row]:
    """Documents in key order; those that begin with the prefix are neighbours, so the first that does not ends it."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM {collection} WHERE key > ? AND key >= ? AND {_TEXT_KEY} ORDER BY key", (after, prefix)
    )
    start = prefix.encode()
    neighbours = takewhile(lambda row: row[0].startswith(start), rows)
    found = list(islice(_readable(neighbours), limit))
    rows.close()
    return found


def query(collection: str, index: Index, equal: Sequence[Any], after: Any) -> tuple[str, list[Any]]:
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
    conditions.append(_TEXT_KEY)
    return f"SELECT {_COLUMNS} FROM {collection} WHERE {' AND '.join(conditions)} ORDER BY {order}", values


def find(connection: Connection, collection: str, wanted: tuple[Index, Sequence[Any], Any, int]) -> list[Row]:
    """Documents by an index: ``wanted`` is the index, the equal values, after what, and how many."""
    *which, limit = wanted
    text, values = query(collection, *which)
    rows = connection.execute(text, values)
    found = list(islice(_readable(rows), limit))
    rows.close()
    return found


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
