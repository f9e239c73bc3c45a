"""Reading a file while it is written: connections of their own in threads of their own, so no reader ever waits."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ...entities.errors import LogUnavailable
from .connection import open_reader, translate

T = TypeVar("T")
Connection = sqlite3.Connection


class Snapshots:
    """Questions to one file, each answered from one consistent state of it. ``opened``: connections made so far."""

    def __init__(self, path: Path, threads: int) -> None:
        self._path = path
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._idle: list[Connection] = []
        self.opened = 0

    async def open(self) -> None:
        """Start the threads. Raises LogUnavailable when the file cannot be read."""
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=f"read {self._path.name}")
        await self.run(lambda connection: connection.total_changes)

    async def close(self) -> None:
        """Let running questions end and close the file."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(pool.shutdown)
        while self._idle:
            self._idle.pop().close()

    async def run(self, question: Callable[[Connection], T]) -> T:
        """Answer a question in another thread. Raises LogUnavailable."""
        if self._pool is None:
            raise LogUnavailable(f"{self._path} is not open: it was closed, or never opened")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._answer, question)

    def _answer(self, question: Callable[[Connection], T]) -> T:
        try:
            connection = self._idle.pop()
        except IndexError:  # asking first whether there is one would be too early: threads share the list
            connection = self._connect()
        try:
            connection.execute("BEGIN")
            answer = question(connection)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            connection.close()
            raise translate(error, self._path) from error
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return answer

    def _connect(self) -> Connection:
        self.opened += 1
        try:
            return open_reader(self._path)
        except sqlite3.Error as error:
            raise translate(error, self._path) from error
