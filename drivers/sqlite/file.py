"""The file of a log, opened: one writer thread, reading threads, and the catalogue of what is in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from ...entities.errors import RequestInvalid, UnknownDomain
from ...entities.position import Partition
from ...use_cases.ports.clock import Clock
from .appender import GroupAppender
from .catalogue import Catalogue, begin_epoch
from .checkpointer import Checkpointer
from .chunks import Shelf
from .committer import Committer
from .connection import LOG_SCHEMA, is_corrupt, no_checkpoints, open_writer
from .followers import Followers
from .ownership import Ownership
from .seen import WINDOW_MS
from .snapshots import Snapshots

T = TypeVar("T")
Connection = sqlite3.Connection
FILE_NAME: Final = "log.db"


class LogFile:
    """A log's folder, for its one writer or for one of its many readers; ``SqliteLog`` says what the arguments are.

    ``quarantined``: where a file lies that was found damaged when it was opened.
    """

    def __init__(self, directory: Path, clock: Clock, durability: str, read_only: bool, max_bytes: int) -> None:
        self.path = directory / FILE_NAME
        self.clock = clock
        self.durability = durability
        self.read_only = read_only
        self.is_open = False
        self.quarantined: Path | None = None
        self.catalogue = Catalogue()
        self.followers = Followers()
        self._max_bytes = max_bytes
        self._ownership = Ownership(directory)
        self._appender = GroupAppender(self.catalogue.shelves, clock, self.followers)
        self._committer = Committer(self.path, self._open_writer, self._appender, Checkpointer(self.path))
        self.append = self._committer.append
        self._snapshots = Snapshots(self.path, 1 if read_only else 2)

    async def open(self) -> None:
        """Open the file. Raises LogUnavailable: another process writes it, or it cannot be used."""
        try:
            if self.read_only:
                await self._snapshots.open()
                await self.reload()
            else:
                self._ownership.take()
                await self._committer.open()
                await self._snapshots.open()
        except BaseException:
            await self.close()
            raise
        self.is_open = True

    async def close(self) -> None:
        """Write what is waiting and close the file."""
        self.is_open = False
        self.followers.wake_all()
        await self._snapshots.close()
        await self._committer.close()
        self._ownership.give_up()

    def _open_writer(self) -> Connection:
        """In the writer thread: open the file, or put a damaged one aside and begin anew."""
        try:
            return self._open_and_load()
        except sqlite3.Error as error:
            if not is_corrupt(error):
                raise
            self.catalogue.clear()
            epoch = max(self._ownership.epoch, self.clock.now() // 1_000)
            self.quarantined = self._ownership.put_aside(self.path, epoch, error)
        return self._open_and_load()

    def _open_and_load(self) -> Connection:
        now = self.clock.now()
        connection = open_writer(self.path, self.durability, LOG_SCHEMA, self._max_bytes)
        try:
            no_checkpoints(connection)
            self._ownership.note(begin_epoch(connection, self.durability, now, self._ownership.epoch))
            self.catalogue.load(connection)
            self._appender.restore(connection, self.catalogue.secret, now - WINDOW_MS)
        except BaseException:
            connection.close()
            raise
        return connection

    async def change(self, job: Callable[[Connection], T]) -> T:
        """Run a change in the next transaction. Raises LogUnavailable, LogFull, and what the job raises."""
        self.demand_writing()
        return await self._committer.run(job)

    def demand_writing(self) -> None:
        """Raise RequestInvalid when the file was opened for reading only."""
        if self.read_only:
            raise RequestInvalid("this log was opened for reading only: ask the process that writes it")

    async def query(self, question: Callable[[Connection], T]) -> T:
        """Read one consistent state of the file, in another thread. Raises LogUnavailable."""
        if not self.read_only:
            return await self._snapshots.run(question)

        def up_to_date(connection: Connection) -> T:
            self.catalogue.follow_epoch(connection)
            return question(connection)

        return await self._snapshots.run(up_to_date)

    async def reload(self) -> None:
        """Look what partitions another process has made."""
        await self._snapshots.run(self.catalogue.load)

    async def version(self) -> tuple[int, int]:
        """Something that changes whenever another process has written. Use it on a file opened for reading only."""
        number = await self._snapshots.run(lambda c: int(c.execute("PRAGMA data_version").fetchone()[0]))
        return self._snapshots.opened, number

    def shelf(self, partition: Partition) -> Shelf:
        """A partition's place. Raises UnknownDomain."""
        try:
            return self.catalogue.shelves[partition]
        except KeyError as error:
            raise UnknownDomain(f"there is no partition {partition}: make its channel first") from error
