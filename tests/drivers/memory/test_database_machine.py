"""Random histories: two databases in memory are indistinguishable, and each token leads to the same changes."""

from __future__ import annotations

from hypothesis.stateful import run_state_machine_as_test

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.use_cases.ports.database import Database
from tests.contracts.database_machine import DatabaseMachine
from tests.support.examples import tried


class MemoryMachine(DatabaseMachine):
    async def open(self) -> Database:
        return MemoryDatabase(SystemClock())


def test_its_changes_lead_on_from_each_token() -> None:
    run_state_machine_as_test(
        MemoryMachine,
        settings=tried(15, 30),
    )
