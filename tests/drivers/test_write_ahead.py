"""A new SQLite file that two processes make at the same moment: one waits for the other, but not for ever."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from iotsphere.drivers.sqlite.connection import DOCUMENTS_SCHEMA, open_writer
from iotsphere.drivers.write_ahead import use_write_ahead_log


@pytest.fixture
def other(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another process that is at it: SQLite's timeout does not help against the lock that it holds."""
    with closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


def test_who_comes_second_waits(tmp_path: Path, other: sqlite3.Connection) -> None:
    ending = threading.Timer(0.2, other.execute, ("COMMIT",))
    ending.start()
    try:
        with closing(open_writer(tmp_path / "new.db", "fsynced", DOCUMENTS_SCHEMA)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert connection.execute("SELECT count(*) FROM documents").fetchone() == (0,)
    finally:
        ending.join()


@pytest.mark.usefixtures("other")
def test_but_not_longer_than_it_is_told_to(tmp_path: Path) -> None:
    with (
        closing(sqlite3.connect(tmp_path / "new.db")) as connection,
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        use_write_ahead_log(connection, 0.05)


def test_a_file_without_a_disk_has_none() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        assert not use_write_ahead_log(connection, 1.0)
