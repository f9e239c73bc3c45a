"""The memory database keeps the contract."""

from __future__ import annotations

import pytest

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.use_cases.ports.database import Database
from tests.contracts.database import COLLECTIONS, DatabaseContract


class TestMemoryDatabase(DatabaseContract):
    @pytest.fixture
    async def database(self) -> Database:
        database = MemoryDatabase(SystemClock(), quiet=0.2)
        await database.ensure(COLLECTIONS)
        return database
