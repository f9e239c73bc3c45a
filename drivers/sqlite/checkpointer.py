"""Moving what was committed from the write-ahead log into the file, beside the writer instead of in its way.

By itself SQLite does this inside some unlucky commit, and every sender then waits for it. Here another thread copies
the bulk while commits go on, and the writer only adds the small rest, after which the write-ahead log starts over.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from .connection import open_copier

COPY_AT_BYTES: Final = 2 << 20
COMMIT_BYTES: Final = 16 << 10

logger = logging.getLogger(__name__)


class Checkpointer:
    """A thread that copies when it is told to; ``wrote`` and ``close`` are called in the writer's thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._bytes = 0
        self._copying = False
        self._copied = False

    def wrote(self, writer: sqlite3.Connection, size: int) -> None:
        """Note a commit of about ``size`` bytes; ask for a copy, or finish one, when it is time."""
        self._bytes += size + COMMIT_BYTES
        if self._copied:
            self._copied = self._copying = False
            self._copy(writer)
            self._bytes = 0
        elif self._bytes >= COPY_AT_BYTES and not self._copying:
            self._copying = True
            if self._thread is None:
                name = f"copy {self._path.name}"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()
            self._requests.put(True)

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._requests.put(False)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        connection = None
        try:
            while self._requests.get():
                if connection is None:
                    connection = self._open()
                if connection is not None:
                    self._copy(connection)
                self._copied = True
        finally:
            if connection is not None:
                connection.close()

    def _open(self) -> sqlite3.Connection | None:
        try:
            return open_copier(self._path)
        except sqlite3.Error as error:
            logger.warning("%s cannot be opened to copy into it (%s); the writer does it alone", self._path, error)
            return None

    def _copy(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            # Nothing is lost by that: the write-ahead log goes on growing until a later copy succeeds.
            logger.warning("the write-ahead log of %s was not copied: %s", self._path, error)
