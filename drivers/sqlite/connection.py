"""SQLite files as this product opens them: settings, schema, and SQLite's errors in our own words."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ...entities.errors import IotSphereError, LogFull, LogUnavailable
from ..write_ahead import use_write_ahead_log

BUSY_S: Final = 10.0
CHECK_BELOW_BYTES: Final = 64 << 20
EMERGENCY_PAGES: Final = 65_536  # 256 MiB
NO_ROOM_BYTES: Final = 1 << 20
PAGE_BYTES: Final = 4_096
SYNCHRONOUS: Final = {"fsynced": "FULL", "logged": "NORMAL"}
VERSION: Final = 1
_APPLICATION_ID: Final = 0x496F5453  # "IoTS"

LOG_SCHEMA: Final = (
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    # `first`: the first offset that is retained; entries before it may still lie in the same chunk.
    """CREATE TABLE partitions(id INTEGER PRIMARY KEY, domain TEXT NOT NULL, channel TEXT NOT NULL,
        number INTEGER NOT NULL, first INTEGER NOT NULL, UNIQUE(domain, channel, number))""",
    # Hashes of message ids whose records are gone already.
    """CREATE TABLE remnants(part INTEGER NOT NULL, first INTEGER NOT NULL, appended_at INTEGER NOT NULL,
        hashes BLOB NOT NULL, PRIMARY KEY(part, first)) WITHOUT ROWID""",
    """CREATE TABLE epochs(part INTEGER NOT NULL, epoch INTEGER NOT NULL, first INTEGER NOT NULL,
        PRIMARY KEY(part, epoch)) WITHOUT ROWID""",
    """CREATE TABLE readers(reader TEXT NOT NULL, part INTEGER NOT NULL, start_epoch INTEGER NOT NULL,
        start_offset INTEGER NOT NULL, epoch INTEGER NOT NULL, offset INTEGER NOT NULL,
        applied INTEGER NOT NULL DEFAULT 0, superseded INTEGER NOT NULL DEFAULT 0, expired INTEGER NOT NULL DEFAULT 0,
        dead_lettered INTEGER NOT NULL DEFAULT 0, lost INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY(reader, part)) WITHOUT ROWID""",
    """CREATE TABLE leases(reader TEXT NOT NULL, part INTEGER NOT NULL, owner TEXT NOT NULL, fence INTEGER NOT NULL,
        expires_at INTEGER NOT NULL, PRIMARY KEY(reader, part)) WITHOUT ROWID""",
    """CREATE TABLE losses(id INTEGER PRIMARY KEY AUTOINCREMENT, domain TEXT NOT NULL, reader TEXT NOT NULL,
        part INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL)""",
    # A lane is a work-queue group in one partition. `cursor`: the last offset that was ever handed out.
    """CREATE TABLE lanes(team TEXT NOT NULL, part INTEGER NOT NULL, start INTEGER NOT NULL, cursor INTEGER NOT NULL,
        acknowledged INTEGER NOT NULL DEFAULT 0, lost INTEGER NOT NULL DEFAULT 0, PRIMARY KEY(team, part)) WITHOUT ROWID""",
    """CREATE TABLE taken(team TEXT NOT NULL, part INTEGER NOT NULL, offset INTEGER NOT NULL, attempt INTEGER NOT NULL,
        consumer TEXT NOT NULL, hidden_until INTEGER NOT NULL, PRIMARY KEY(team, part, offset)) WITHOUT ROWID""",
)
DOCUMENTS_SCHEMA: Final = (
    # A deleted document keeps its row with a NULL value, so that its versions are never given again.
    """CREATE TABLE documents(collection TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, value BLOB,
        PRIMARY KEY(collection, key)) WITHOUT ROWID""",
)

STATE_SCHEMA: Final = (
    "CREATE TABLE _meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    # `total`: about how many bytes this change and all before it took.
    """CREATE TABLE _changes(sequence INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, kind TEXT NOT NULL,
        collection TEXT NOT NULL, key TEXT NOT NULL, revision INTEGER NOT NULL, before TEXT, after TEXT,
        total INTEGER NOT NULL)""",
)


def translate(error: sqlite3.Error, path: Path) -> IotSphereError:
    """What a SQLite error means to a caller: the log is full, or it cannot be used now."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _no_room(path)):
        return LogFull(f"no room for {path}: free disk space, or raise its limit; it goes on by itself then")
    if is_corrupt(error):
        return LogUnavailable(f"{path} is damaged ({error}): stop, then restore a copy of it or move it aside")
    return LogUnavailable(f"{path} cannot be used ({error}): check the disk and the folder's rights, then retry")


def _no_room(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < NO_ROOM_BYTES
    except OSError:  # the folder is gone or unreadable, so that is what the caller is told
        return False


def is_corrupt(error: sqlite3.Error) -> bool:
    """Tell whether the file itself is damaged, so that no retry can help."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def open_writer(path: Path, durability: str, schema: Sequence[str], max_bytes: int = 0) -> sqlite3.Connection:
    """Open or make a file for writing. Raises sqlite3.Error; LogUnavailable when a newer version made it, or when the
    folder does not take it.

    ``max_bytes``: the most that the file may grow to, 0 = no limit. It checkpoints by itself; see ``no_checkpoints``.
    """
    try:
        path.touch(mode=0o600)  # the files that SQLite puts beside it take its mode
    except OSError as error:
        raise LogUnavailable(
            f"{path} cannot be made ({error.strerror}): check the disk and the folder's rights, then retry"
        ) from error
    connection = _connect(path, "rw")
    try:
        if not use_write_ahead_log(connection, BUSY_S):
            raise LogUnavailable(f"{path} cannot use a write-ahead log: put the data folder on a local disk")
        connection.execute(f"PRAGMA synchronous={SYNCHRONOUS[durability]}")
        connection.execute(f"PRAGMA journal_size_limit={64 << 20}")
        if max_bytes:
            connection.execute(f"PRAGMA max_page_count={max(1, max_bytes // PAGE_BYTES)}")
        _check(connection, path)
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in schema:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def no_checkpoints(connection: sqlite3.Connection) -> None:
    """Leave checkpoints to a ``Checkpointer``, unless the write-ahead log grows beyond all measure."""
    connection.execute(f"PRAGMA wal_autocheckpoint={EMERGENCY_PAGES}")


def open_copier(path: Path) -> sqlite3.Connection:
    """Open an existing file for checkpoints only. Raises sqlite3.Error."""
    return _connect(path, "rw")


def open_reader(path: Path) -> sqlite3.Connection:
    """Open an existing file for reading only. Raises sqlite3.Error."""
    connection = _connect(path, "ro")
    try:
        connection.execute("PRAGMA query_only=ON")
        _check_version(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # One thread at a time uses a connection, but the one that closes it may be another than the one that opened it.
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
    )


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Look for damage where that is quick; a larger file is checked where it is read, by its records' checksums."""
    _check_version(connection, path)
    if path.stat().st_size <= CHECK_BELOW_BYTES:
        found: Any = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            error = sqlite3.DatabaseError(found)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise LogUnavailable(f"{path} was made by a newer version (format {version}): update this program")
