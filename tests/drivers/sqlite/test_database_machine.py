"""Random histories: the SQLite database is indistinguishable from that in memory, also when it is reopened."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis.stateful import run_state_machine_as_test

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.sqlite.database import SqliteDatabase
from iotsphere.use_cases.ports.database import Database
from tests.contracts.database_machine import DatabaseMachine
from tests.support.examples import tried


class SqliteMachine(DatabaseMachine):
    reopens = True

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="iotsphere-")
        self._stack = AsyncExitStack()

    async def open(self) -> Database:
        return await self._stack.enter_async_context(
            SqliteDatabase(Path(self._folder.name) / "state.db", SystemClock())
        )

    async def shut(self) -> None:
        await self._stack.aclose()

    def teardown(self) -> None:
        super().teardown()
        self._folder.cleanup()


@pytest.mark.timeout(600)  # each step waits for the disk
def test_it_is_indistinguishable_from_memory() -> None:
    run_state_machine_as_test(
        SqliteMachine,
        settings=tried(8, 25),
    )
