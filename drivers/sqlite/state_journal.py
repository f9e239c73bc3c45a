"""The journal of the state file: which changes it still holds, how they are read on, and what is due to go."""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from ...adapters.database.body import decode
from ...adapters.database.body import read as read_body
from ...adapters.database.requests import place_of, token_of
from ...use_cases.ports.database import Change, Collection
from .state_schema import type_of, value_of
from .state_search import text_of

logger = logging.getLogger(__name__)

PAGE_ROWS: Final = 500
PAGE_BYTES: Final = 2 << 20
SWEPT_AT_ONCE: Final = 500
PROBE_BYTES: Final = 4 << 10
Connection = sqlite3.Connection


def begin_epoch(connection: Connection, path: Path) -> None:
    """Begin a new numbering of changes when the file is not the one that was last opened here, but say, a backup.

    How often the file was opened stands in the file, and in ``….opened`` beside it. Where the two differ, the numbers
    may have been given before to other changes, so tokens of the old numbering must be good no more. When a crash comes
    between the two, a new numbering begins without need, which costs its followers a look at the documents.
    """
    beside = path.with_name(f"{path.name}.opened")
    connection.execute("BEGIN IMMEDIATE")
    opened = _meta(connection, "opened")
    if not isinstance(opened, int) or _noted(beside) != opened:
        _set_meta(connection, "epoch", secrets.token_hex(4))
    opened = 1 + (opened if isinstance(opened, int) else 0)
    _set_meta(connection, "opened", opened)
    _note(beside, opened)
    connection.execute("COMMIT")


def _noted(beside: Path) -> int:
    try:
        return int(beside.read_text(encoding="ascii"))
    except (OSError, ValueError):  # none, or one that cannot be believed: a new numbering is always right
        return -1


def _note(beside: Path, opened: int) -> None:
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, f"{opened:<20d}\n".encode(), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _meta(connection: Connection, key: str) -> int | str | bytes | None:
    row = connection.execute("SELECT value FROM _meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]


def _set_meta(connection: Connection, key: str, value: int | str | bytes) -> None:
    connection.execute("INSERT OR REPLACE INTO _meta VALUES (?, ?)", (key, value))


def probe(connection: Connection) -> None:
    """Write a page that does not matter, to learn whether there is room."""
    _set_meta(connection, "probe", secrets.token_bytes(PROBE_BYTES))


class Span(NamedTuple):
    """The changes ``forgotten`` + 1 to ``last`` are there, in this epoch."""

    epoch: str
    forgotten: int
    last: int


def span(connection: Connection) -> Span:
    """What the journal holds."""
    forgotten = _meta(connection, "forgotten")
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = '_changes'").fetchone()
    return Span(str(_meta(connection, "epoch")), forgotten if isinstance(forgotten, int) else 0, row[0] if row else 0)


def read(connection: Connection, token: str, collections: Sequence[str]) -> tuple[list[Change], str]:
    """The next changes after a token, and the token after them. Raises ChangesLost."""
    epoch, forgotten, last = span(connection)
    place = place_of(token, epoch, forgotten, last)
    marks = ", ".join("?" * len(collections))
    rows = connection.execute(
        "SELECT sequence, at, kind, collection, CAST(key AS BLOB), CAST(revision AS INTEGER), CAST(before AS BLOB),"
        " CAST(after AS BLOB) FROM _changes"
        f" WHERE sequence > ? AND collection IN ({marks}) ORDER BY sequence LIMIT {PAGE_ROWS}",
        (place, *collections),
    )
    changes: list[Change] = []
    size = count = 0
    end = last
    for sequence, at, kind, collection, raw_key, revision, before, after in rows:
        count, end = count + 1, sequence
        key = text_of(raw_key)
        if key is None:
            logger.warning(
                "%s holds a document whose key is no text; it is not told, for it is none of ours", collection
            )
        else:
            was = None if before is None else decode(before)
            now, mended = (None, "") if after is None else read_body(after)
            token = token_of(epoch, sequence)
            changes.append(Change(token, at, kind, collection, key, revision, was, now, mended=mended))
        size += len(before or b"") + len(after or b"")
        if size >= PAGE_BYTES:
            break
    rows.close()
    cut = size >= PAGE_BYTES or count == PAGE_ROWS
    return changes, token_of(epoch, end if cut else last)


def trim(connection: Connection, oldest: int, kept: int) -> bool:
    """Forget a few changes that are older than ``oldest`` (ms) or beyond the newest ``kept`` bytes; True: look again."""
    row = connection.execute("SELECT total FROM _changes ORDER BY sequence DESC LIMIT 1").fetchone()
    if row is None:
        return False
    surplus = row[0] - kept
    rows = connection.execute(f"SELECT sequence, at, total FROM _changes ORDER BY sequence LIMIT {SWEPT_AT_ONCE}")
    doomed = list(takewhile(lambda row: row[1] < oldest or row[2] <= surplus, rows.fetchall()))
    if doomed:
        connection.execute("DELETE FROM _changes WHERE sequence <= ?", (doomed[-1][0],))
        _set_meta(connection, "forgotten", doomed[-1][0])
    return len(doomed) == SWEPT_AT_ONCE


def expire(connection: Connection, collection: Collection, now: int) -> bool:
    """Remove a few documents that have expired; True: look again. The triggers tell it like any other removal."""
    if collection.expires is None:
        return False
    due, kind = value_of(collection.expires), type_of(collection.expires)
    removed = connection.execute(
        f"DELETE FROM {collection.name} WHERE key IN (SELECT key FROM {collection.name}"
        f" WHERE {due} IS NOT NULL AND {due} < ? AND {kind} = 'integer' ORDER BY {due} LIMIT {SWEPT_AT_ONCE})",
        (now,),
    )
    return removed.rowcount == SWEPT_AT_ONCE
