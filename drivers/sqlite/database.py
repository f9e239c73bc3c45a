"""A database in one SQLite file: JSON that people can read with the sqlite3 shell, durable, shared by processes."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from ...adapters.database.body import decode, is_text_of, next_revision
from ...adapters.database.requests import Declared, stands_or_conflict, texts_of, token_of
from ...entities.errors import DatabaseUnavailable, LogFull, LogUnavailable, Unavailable
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.database import Change, Collection, Outcome, Stored, Write
from . import state_journal, state_schema, state_search
from .committer import Committer
from .connection import STATE_SCHEMA, open_writer
from .snapshots import Snapshots
from .state_search import Row
from .state_watch import Watch

T = TypeVar("T")
Connection = sqlite3.Connection
Found = tuple[bool, Row | None]
DAY_MS: Final = 24 * 60 * 60 * 1_000
READERS: Final = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StateOptions:
    """``kept_age`` (ms), ``kept_bytes``: how long, and how much of, the changes are remembered. ``quiet``: seconds
    between two words that nothing happened. ``sweep``: seconds between two looks for what is due to go. ``poll``:
    seconds between two looks for what other processes have changed."""

    kept_age: int = 7 * DAY_MS
    kept_bytes: int = 256 << 20
    quiet: float = 5.0
    sweep: float = 10.0
    poll: float = 0.03


class SqliteDatabase:
    """A ``Database`` in the file ``path``; an async context manager.

    A writer waits up to 10 s for another process's transaction; all transactions are short.
    """

    def __init__(self, path: Path, clock: Clock, options: StateOptions | None = None) -> None:
        self.options = options if options is not None else StateOptions()
        self._path = path
        self._clock = clock
        self._declared = Declared()
        self._committer = Committer(path, self._open)
        self._snapshots = Snapshots(path, READERS)
        self._watch = Watch(path, self.options.poll)
        self._sweeping: asyncio.Task[None] | None = None

    def _open(self) -> Connection:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            connection = open_writer(self._path, "fsynced", STATE_SCHEMA)
            try:
                state_journal.begin_epoch(connection, self._path)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise DatabaseUnavailable(f"{self._path} cannot be made: {error.strerror}; check its rights") from error
        return connection

    async def __aenter__(self) -> SqliteDatabase:
        """Open the file. Raises DatabaseUnavailable."""
        try:
            await _in_our_words(self._committer.open())
            await _in_our_words(self._snapshots.open())
            await _in_our_words(self._watch.open())
        except BaseException:
            await self._close()
            raise
        self._sweeping = asyncio.create_task(self._keep_sweeping())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what is waiting and close the file."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._close()

    async def _close(self) -> None:
        await self._snapshots.close()
        await self._watch.close()
        await self._committer.close()

    async def _query(self, question: Callable[[Connection], T]) -> T:
        return await _in_our_words(self._snapshots.run(question))

    async def _change(self, job: Callable[[Connection], T]) -> T:
        try:
            return await _in_our_words(self._committer.run(job))
        finally:
            self._watch.wake()

    async def ensure(self, collections: Sequence[Collection]) -> None:
        """Make tables, indexes and triggers."""
        self._declared.add(collections)
        await self._change(lambda connection: state_schema.declare(connection, collections))

    async def get(self, collection: str, key: str) -> Stored | None:
        """The document, or None."""
        table = self._declared.collection(collection).name
        row = await self._query(lambda connection: state_search.row_of(connection, table, key))
        return None if row is None else _stored(row)

    async def get_many(self, collection: str, keys: Sequence[str]) -> Mapping[str, Stored]:
        """Those of the documents that exist."""
        table = self._declared.collection(collection).name
        rows = await self._query(lambda connection: state_search.rows_of(connection, table, keys))
        return {row[0]: _stored(row) for row in rows}

    async def write(self, collection: str, writes: Sequence[Write]) -> Sequence[Outcome]:
        """Carry out several writes in one transaction, with those of others."""
        table = self._declared.collection(collection).name
        texts = texts_of(writes)
        if not writes:
            return []

        def write(connection: Connection) -> list[Found]:
            drafts = zip(writes, texts, strict=True)
            return [_write(connection, table, draft, text) for draft, text in drafts]

        return [Outcome(done, row and _stored(row)) for done, row in await self._change(write)]

    async def put(self, collection: str, write: Write) -> Stored | None:
        """Carry out one write. Raises Conflict."""
        (outcome,) = await self.write(collection, (write,))
        return stands_or_conflict(collection, write.key, outcome)

    async def find(
        self, collection: str, index: str, equal: Sequence[Any], *, after: Any = None, limit: int = 1_000
    ) -> Sequence[Stored]:
        """Documents by an index."""
        wanted = self._declared.index(collection, index, equal, after), equal, after, limit
        rows = await self._query(lambda connection: state_search.find(connection, collection, wanted))
        return list(map(_stored, rows))

    async def scan(self, collection: str, prefix: str = "", after: str = "", limit: int = 1_000) -> Sequence[Stored]:
        """Documents in key order."""
        table = self._declared.collection(collection).name
        rows = await self._query(lambda connection: state_search.scan(connection, table, prefix, after, limit))
        return list(map(_stored, rows))

    async def now(self) -> str:
        """A token for what happens from here on."""
        epoch, _, last = await self._query(state_journal.span)
        return token_of(epoch, last)

    async def changes(self, after: str, collections: Sequence[str] = ()) -> AsyncGenerator[Change, None]:
        """Changes of the watched collections after a token, for ever."""
        wanted = self._declared.watched(collections)
        loop = asyncio.get_running_loop()
        self._watch.follow()
        try:
            quiet_at = loop.time() + self.options.quiet
            while True:
                moved, before = self._watch.moved, after
                changes, after = await self._query(partial(state_journal.read, token=after, collections=wanted))
                for change in changes:
                    yield change
                if changes:
                    quiet_at = loop.time() + self.options.quiet
                if after != before:
                    continue
                try:
                    async with asyncio.timeout_at(quiet_at):
                        await moved.wait()
                except TimeoutError:
                    yield Change(after, self._clock.now(), "quiet")
                    quiet_at = loop.time() + self.options.quiet
        finally:
            await self._watch.leave()

    async def sweep(self) -> None:
        """Remove what has expired, and forget changes that are due to go. Safe to call at any time, and by several."""
        now = self._clock.now()
        for collection in list(self._declared.collections.values()):
            while await self._change(partial(state_journal.expire, collection=collection, now=now)):
                pass
        oldest, kept = now - self.options.kept_age, self.options.kept_bytes
        while await self._change(lambda c: state_journal.trim(c, oldest, kept)):
            pass

    async def _keep_sweeping(self) -> None:
        while True:
            await asyncio.sleep(self.options.sweep)
            try:
                await self.sweep()
            except Unavailable as error:
                logger.warning("what is due to go stays in %s for now: %s", self._path, error)

    async def ready(self) -> None:
        """Raise DatabaseUnavailable when a write would fail now."""
        await self._change(state_journal.probe)


async def _in_our_words(answer: Awaitable[T]) -> T:
    """The errors of a file as those of a database."""
    try:
        return await answer
    except (LogUnavailable, LogFull) as error:
        raise DatabaseUnavailable(error.message) from error


def _write(connection: Connection, table: str, write: Write, text: bytes | None) -> Found:
    key, before, _ = write
    row = state_search.row_of(connection, table, key)
    if row is None:
        if before is not None:
            return False, None
        if text is None:
            return True, None
        connection.execute(f"INSERT INTO {table}(key, revision, body) VALUES (?, ?, ?)", (key, 1, text.decode()))
        return True, (key, 1, text)
    _, revision, there = row
    if before is None or before.revision != revision or not is_text_of(there, before.body):
        return False, row
    if text is None:
        connection.execute(f"DELETE FROM {table} WHERE key = ?", (key,))
        return True, None
    following = next_revision(revision)
    connection.execute(f"UPDATE {table} SET revision = ?2, body = ?3 WHERE key = ?1", (key, following, text.decode()))
    return True, (key, following, text)


def _stored(row: Row) -> Stored:
    return Stored(row[0], row[1], decode(row[2]))
