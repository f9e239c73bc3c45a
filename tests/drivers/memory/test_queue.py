"""The memory work queue keeps the contract."""

from __future__ import annotations

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.drivers.memory.queue import MemoryWorkQueue
from iotsphere.use_cases.ports.work_queue import WorkQueue
from tests.contracts.work_queue import WorkQueueContract


class TestMemoryWorkQueue(WorkQueueContract):
    @pytest.fixture
    def log(self, clock: ManualClock) -> MemoryLog:
        return MemoryLog(clock)

    @pytest.fixture
    def queue(self, log: MemoryLog) -> WorkQueue:
        return MemoryWorkQueue(log)
