"""Documents in a SQLite file of their own, which several processes may write: the gateway and its command line."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from ...entities.errors import Conflict, LogUnavailable
from ...use_cases.ports.documents import Document
from .committer import Committer
from .connection import DOCUMENTS_SCHEMA, open_writer
from .snapshots import Snapshots

Connection = sqlite3.Connection


class SqliteDocuments:
    """A ``Documents`` in the file ``path``; an async context manager. ``durability``: ``fsynced`` or ``logged``.

    A writer waits up to 10 s for another process's transaction; all transactions are short.
    """

    def __init__(self, path: Path, durability: str = "fsynced") -> None:
        self._path = path
        self._durability = durability
        self._committer = Committer(path, self._open)
        self._snapshots = Snapshots(path, 2)

    def _open(self) -> Connection:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise LogUnavailable(f"{self._path.parent} cannot be made: {error.strerror}; check its rights") from error
        return open_writer(self._path, self._durability, DOCUMENTS_SCHEMA)

    async def __aenter__(self) -> SqliteDocuments:
        """Open the file. Raises LogUnavailable."""
        await self._committer.open()
        await self._snapshots.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what is waiting and close the file."""
        await self._snapshots.close()
        await self._committer.close()

    async def get(self, collection: str, key: str) -> Document | None:
        """The document, or None."""
        value, version = await self._snapshots.run(lambda connection: _row(connection, collection, key))
        return None if value is None else Document(key, value, version)

    async def put(self, collection: str, key: str, value: bytes, expected: int | None = None) -> int:
        """Write one document. Raises Conflict."""

        def write(connection: Connection) -> int:
            before, version = _row(connection, collection, key)
            current = 0 if before is None else version
            if expected is not None and expected != current:
                raise Conflict(
                    f"{collection}/{key} is at version {current}, not {expected}: read it again and retry",
                    version=current,
                    expected=expected,
                )
            _write(connection, collection, key, value)
            return version + 1

        return await self._committer.run(write)

    async def put_many(self, collection: str, values: Mapping[str, bytes | None]) -> None:
        """Write or delete several documents."""

        def write(connection: Connection) -> None:
            for key, value in values.items():
                if value is None:
                    _erase(connection, collection, key)
                else:
                    _write(connection, collection, key, value)

        await self._committer.run(write)

    async def delete(self, collection: str, key: str) -> bool:
        """Remove one document."""
        return await self._committer.run(lambda connection: _erase(connection, collection, key))

    async def scan(self, collection: str, prefix: str = "", after: str = "", limit: int = 1_000) -> Sequence[Document]:
        """Documents in key order."""

        # Keys that begin with the prefix are neighbours, so the first one that does not ends the scan.
        def collect(connection: Connection) -> list[Document]:
            found: list[Document] = []
            rows = connection.execute(
                "SELECT key, value, version FROM documents WHERE collection = ? AND key > ? AND key >= ?"
                " AND value IS NOT NULL ORDER BY key",
                (collection, after, prefix),
            )
            for row in rows:
                if len(found) >= limit or not row[0].startswith(prefix):
                    break
                found.append(Document(*row))
            rows.close()
            return found

        return await self._snapshots.run(collect)


def _row(connection: Connection, collection: str, key: str) -> tuple[bytes | None, int]:
    row = connection.execute(
        "SELECT value, version FROM documents WHERE collection = ? AND key = ?", (collection, key)
    ).fetchone()
    return (None, 0) if row is None else (row[0], row[1])


def _write(connection: Connection, collection: str, key: str, value: bytes) -> None:
    connection.execute(
        "INSERT INTO documents(collection, key, version, value) VALUES (?, ?, 1, ?)"
        " ON CONFLICT DO UPDATE SET version = version + 1, value = excluded.value",
        (collection, key, value),
    )


def _erase(connection: Connection, collection: str, key: str) -> bool:
    erased = connection.execute(
        "UPDATE documents SET value = NULL WHERE collection = ? AND key = ? AND value IS NOT NULL", (collection, key)
    )
    return erased.rowcount > 0
