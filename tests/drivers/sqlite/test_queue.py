"""The SQLite work queue keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.drivers.sqlite.queue import SqliteWorkQueue
from iotsphere.use_cases.ports.work_queue import WorkQueue
from tests.contracts.work_queue import WorkQueueContract


class TestSqliteWorkQueue(WorkQueueContract):
    @pytest.fixture
    async def log(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[SqliteLog]:
        async with SqliteLog(tmp_path, clock) as log:
            yield log

    @pytest.fixture
    def queue(self, log: SqliteLog) -> WorkQueue:
        return SqliteWorkQueue(log)
