"""One thread that writes to one file: whatever is waiting becomes one transaction, and is told in one go."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from ...entities.errors import IotSphereError, LogUnavailable
from ...entities.message import Record
from ...use_cases.ports.message_log import Appended
from .checkpointer import Checkpointer
from .connection import translate

T = TypeVar("T")
Connection = sqlite3.Connection
MOST_RECORDS: Final = 4_096
MOST_JOBS: Final = 256

logger = logging.getLogger(__name__)


class Batch(NamedTuple):
    """An append that waits. ``answer``: an asyncio future of ``Appended``."""

    records: Sequence[Record]
    answer: asyncio.Future[Appended]


class Job(NamedTuple):
    """Any other change that waits; it runs inside the transaction."""

    run: Callable[[Connection], Any]
    answer: asyncio.Future[Any]


class Written(Protocol):
    """What an appender wrote inside the open transaction: ``size`` bytes."""

    outcomes: Sequence[Appended | IotSphereError]
    size: int

    def settle(self) -> None:
        """Take note that it is committed; called in the writer thread."""
        ...

    def announce(self) -> None:
        """Tell followers; called in the event loop, after the appends were answered."""
        ...


class Appender(Protocol):
    """Writes batches of records."""

    def write(self, connection: Connection, batches: Sequence[Sequence[Record]]) -> Written:
        """Write all batches into the open transaction; one outcome each."""
        ...


Outcome = tuple["asyncio.Future[Any]", Any, "BaseException | None"]


class Committer:
    """Runs jobs and appends in group commits, each durable before it is answered.

    A job that raises is undone alone. When the transaction itself fails, each of its parts is tried again alone, so
    that an append without room never keeps a trim, which makes room, from happening.
    """

    def __init__(
        self,
        path: Path,
        connect: Callable[[], Connection],
        appender: Appender | None = None,
        checkpointer: Checkpointer | None = None,
    ) -> None:
        self._path = path
        self._connect = connect
        self._appender = appender
        self._checkpointer = checkpointer
        self._waiting: SimpleQueue[Batch | Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failing = ""

    async def open(self) -> None:
        """Start the thread and open the file. Raises what ``connect`` raises, with SQLite's errors translated."""
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, args=(opened,), name=f"write {self._path.name}", daemon=True)
        self._thread.start()
        try:
            await opened
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Write what is waiting, close the file and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            await asyncio.to_thread(thread.join)

    async def append(self, records: Sequence[Record]) -> Appended:
        """Append in the next transaction. Raises LogUnavailable, LogFull and what the appender refuses."""
        answer: asyncio.Future[Appended] = self._running().create_future()
        self._waiting.put(Batch(records, answer))
        return await answer

    async def run(self, job: Callable[[Connection], T]) -> T:
        """Run a change in the next transaction. Raises LogUnavailable, LogFull and what the job raises."""
        answer: asyncio.Future[T] = self._running().create_future()
        self._waiting.put(Job(job, answer))
        return await answer

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._thread is None or self._loop is None:
            raise LogUnavailable(f"{self._path} is not open: it was closed, or never opened")
        return self._loop

    # In the thread

    def _work(self, opened: asyncio.Future[None]) -> None:
        try:
            connection = self._connect()
        except Exception as error:  # whatever it is, whoever opens has to hear of it
            self._tell([(opened, None, self._in_our_words(error))], None)
            return
        self._tell([(opened, None, None)], None)
        try:
            group: list[Batch | Job] = []
            while self._collect(group):
                self._commit(connection, group)
                group.clear()
        finally:
            if self._checkpointer is not None:
                self._checkpointer.close()
            connection.close()

    def _in_our_words(self, error: Exception) -> Exception:
        return translate(error, self._path) if isinstance(error, sqlite3.Error) else error

    def _collect(self, group: list[Batch | Job]) -> bool:
        """Wait for something to do, then take all that is waiting. False: it is time to close."""
        item = self._waiting.get()
        size = 0
        try:
            while item is not None:
                group.append(item)
                size += len(item.records) if type(item) is Batch else 1
                if size >= MOST_RECORDS or len(group) >= MOST_JOBS:
                    return True
                item = self._waiting.get_nowait()
        except Empty:
            return True
        if group:
            self._waiting.put(None)
        return bool(group)

    def _commit(self, connection: Connection, group: Sequence[Batch | Job]) -> None:
        try:
            outcomes, written = self._attempt(connection, group)
        except Exception as error:  # the callers get it, and the thread goes on
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if len(group) > 1:
                for item in group:
                    self._commit(connection, (item,))
                return
            self._note(error)
            outcomes, written = [(group[0].answer, None, self._in_our_words(error))], None
        else:
            self._note(None)
        if written is not None:
            written.settle()
        self._tell(outcomes, written)
        if self._checkpointer is not None:
            self._checkpointer.wrote(connection, written.size if written is not None else 0)

    def _note(self, error: Exception | None) -> None:
        """Log the first of a row of failures, and that it is over."""
        failing = "" if error is None else str(error)
        if failing != self._failing:
            if failing:
                logger.warning("%s takes no changes: %s", self._path, failing)
            else:
                logger.info("%s takes changes again", self._path)
        self._failing = failing

    def _attempt(self, connection: Connection, group: Sequence[Batch | Job]) -> tuple[list[Outcome], Written | None]:
        outcomes: list[Outcome] = []
        written = None
        connection.execute("BEGIN IMMEDIATE")
        batches = [item for item in group if type(item) is Batch]
        if batches and self._appender is not None:
            written = self._appender.write(connection, [batch.records for batch in batches])
            for batch, outcome in zip(batches, written.outcomes, strict=True):
                error = outcome if isinstance(outcome, IotSphereError) else None
                outcomes.append((batch.answer, outcome, error))
        outcomes += [self._run(connection, item) for item in group if type(item) is Job]
        connection.execute("COMMIT")
        return outcomes, written

    @staticmethod
    def _run(connection: Connection, job: Job) -> Outcome:
        connection.execute("SAVEPOINT job")
        try:
            return job.answer, job.run(connection), None
        except sqlite3.Error:
            raise
        except Exception as error:  # a refusal or a mistake of this one job: the others in the group go on
            connection.execute("ROLLBACK TO job")
            return job.answer, None, error
        finally:
            if connection.in_transaction:
                connection.execute("RELEASE job")

    def _tell(self, outcomes: Sequence[Outcome], written: Written | None) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_hand_over, outcomes, written)
        except RuntimeError:
            logger.warning("the event loop was closed before %s was", self._path)


def _hand_over(outcomes: Sequence[Outcome], written: Written | None) -> None:
    for answer, result, error in outcomes:
        if answer.done():
            continue
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)
    if written is not None:
        written.announce()
