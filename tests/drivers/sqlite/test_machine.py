"""Random histories: the SQLite log and queue are indistinguishable from those in memory, also when they are reopened."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis.stateful import run_state_machine_as_test

from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.drivers.sqlite.queue import SqliteWorkQueue
from iotsphere.use_cases.ports.message_log import MessageLog
from iotsphere.use_cases.ports.work_queue import WorkQueue
from tests.contracts.log_machine import LogMachine
from tests.support.examples import tried


class SqliteMachine(LogMachine):
    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="iotsphere-")
        self._stack = AsyncExitStack()
        self._opened = 0

    async def open(self) -> tuple[MessageLog, WorkQueue]:
        self._opened += 1
        durability = "logged" if self._opened % 3 == 0 else "fsynced"
        log = await self._stack.enter_async_context(SqliteLog(Path(self._folder.name), self.clock, durability))
        return log, SqliteWorkQueue(log)

    async def shut(self) -> None:
        await self._stack.aclose()

    def teardown(self) -> None:
        super().teardown()
        self._folder.cleanup()


@pytest.mark.timeout(600)  # each step waits for the disk
def test_it_is_indistinguishable_from_memory() -> None:
    run_state_machine_as_test(
        SqliteMachine,
        settings=tried(10, 30),
    )
