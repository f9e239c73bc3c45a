"""The SQLite log keeps the contract."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.position import Partition
from iotsphere.use_cases.ports.message_log import MessageLog
from tests.contracts.message_log import MessageLogContract, StoredLogContract, WatchedLogContract


def damage(path: Path, partition: Partition, offset: int) -> None:
    """Turn one byte of a stored record over, from another connection."""
    with closing(sqlite3.connect(path)) as connection, connection:
        (number,) = connection.execute(
            "SELECT id FROM partitions WHERE domain = ? AND channel = ? AND number = ?", partition
        ).fetchone()
        first, sizes, stored = connection.execute(
            f"SELECT first, sizes, stored FROM chunks_{number} WHERE first <= ? ORDER BY first DESC LIMIT 1", (offset,)
        ).fetchone()
        lengths = memoryview(sizes).cast("I")
        place = sum(lengths[: offset - first]) + lengths[offset - first] // 2
        stored = stored[:place] + bytes((stored[place] ^ 0x10,)) + stored[place + 1 :]
        connection.execute(f"UPDATE chunks_{number} SET stored = ? WHERE first = ?", (stored, first))


class TestSqliteLog(MessageLogContract, StoredLogContract, WatchedLogContract):
    @pytest.fixture
    async def log(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[MessageLog]:
        async with SqliteLog(tmp_path, clock) as log:
            yield log

    @pytest.fixture
    async def neighbour(self, log: SqliteLog, clock: ManualClock) -> AsyncIterator[MessageLog]:
        async with SqliteLog(log.file.path.parent, clock, read_only=True) as neighbour:
            yield neighbour

    async def damage(self, log: MessageLog, partition: Partition, offset: int) -> None:
        assert isinstance(log, SqliteLog)
        damage(log.file.path, partition, offset)
