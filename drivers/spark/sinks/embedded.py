"""Results in one SQLite file in the data folder, which other programs may read at the same time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import orjson

from ....entities.errors import DatabaseUnavailable
from ...write_ahead import use_write_ahead_log
from .kept import Kept

BUSY_S: Final = 30.0
# A document is JSON text with the fields that MongoDB would have: SELECT body ->> '$.mean' FROM documents …
_SCHEMA: Final = """CREATE TABLE IF NOT EXISTS documents(collection TEXT NOT NULL, key TEXT NOT NULL,
    body TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, expires INTEGER,
    PRIMARY KEY(collection, key)) WITHOUT ROWID"""
_EXPIRING: Final = "CREATE INDEX IF NOT EXISTS expiring ON documents(expires) WHERE expires IS NOT NULL"
_SET: Final = """INSERT INTO documents VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE
    SET body = excluded.body, first = excluded.first, last = excluded.last, expires = excluded.expires
    WHERE documents.first >= excluded.first AND documents.last <= excluded.last"""
_FIND: Final = "SELECT key, body FROM documents WHERE collection = ? AND body ->> '$.state' = ?"
_REMOVE: Final = """DELETE FROM documents WHERE (collection, key) IN
    (SELECT collection, key FROM documents WHERE expires < ? LIMIT 10000)"""


class EmbeddedSink:
    """A ``DocumentSink`` in a file; it makes the file and its folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            self._connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
            use_write_ahead_log(self._connection, BUSY_S)
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute(_SCHEMA)
            self._connection.execute(_EXPIRING)
        except (sqlite3.Error, OSError) as error:
            self.__exit__()
            raise self._unavailable(error) from error
        return self

    def __exit__(self, *exc: object) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def write(self, collection: str, documents: Sequence[Kept]) -> int:
        """Set documents. Raises DatabaseUnavailable."""
        if self._connection is None:
            raise DatabaseUnavailable("the store of results is closed: open it first")
        rows = [
            (collection, kept.key, _text(kept), kept.first, kept.last, _seconds(kept.expires)) for kept in documents
        ]
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                count = self._connection.executemany(_SET, rows).rowcount
                self._connection.execute(_REMOVE, (int(time.time()),))
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._unavailable(error) from error
        return count

    def find(self, collection: str, state: str) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Key and body of the documents in a state. Raises DatabaseUnavailable."""
        if self._connection is None:
            raise DatabaseUnavailable("the store of results is closed: open it first")
        try:
            found = self._connection.execute(_FIND, (collection, state)).fetchall()
        except sqlite3.Error as error:
            raise self._unavailable(error) from error
        return [(key, orjson.loads(body)) for key, body in found]

    def _unavailable(self, error: Exception) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f"{self._path} took not all of the results ({error}): check the disk and the folder's rights, then run the "
            f"job again; nothing is counted twice"
        )


def _text(kept: Kept) -> str:
    body = {**kept.body, "firstOffset": kept.first, "lastOffset": kept.last, "schema": 1}
    if kept.expires is not None:
        body["expires"] = kept.expires
    return orjson.dumps(body, default=_plain, option=orjson.OPT_UTC_Z).decode()


def _plain(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is no value of a document")


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.astimezone(UTC).timestamp())
