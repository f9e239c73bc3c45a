"""The write-ahead log of a SQLite file, also where two processes make the same new file at the same moment."""

from __future__ import annotations

import sqlite3
import time
from typing import Final

PAUSE_S: Final = 0.01


def use_write_ahead_log(connection: sqlite3.Connection, patience_s: float) -> bool:
    """Switch a new file over; an older one is. Returns False where the disk does not allow it. Raises sqlite3.Error.

    While another process does the same SQLite fails at once, whatever its timeout is, as each waits for the other's lock.
    So it is tried again for ``patience_s``.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        else:
            return bool(mode == "wal")
        time.sleep(PAUSE_S)
