"""The memory database keeps the contract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from iotsphere.drivers.clock import ManualClock, SystemClock
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.entities.errors import ChangesLost
from tests.contracts.database import COLLECTIONS, DatabaseContract, insert
from tests.contracts.database_changes import ChangesContract, ForgottenChangesContract, up_to_now
from tests.contracts.times import take


class TestMemoryDatabase(DatabaseContract, ChangesContract, ForgottenChangesContract):
    @pytest.fixture
    async def database(self) -> MemoryDatabase:
        database = MemoryDatabase(SystemClock(), quiet=0.2)
        await database.ensure(COLLECTIONS)
        return database

    @pytest.fixture
    def forget(self, database: MemoryDatabase) -> Callable[[], Awaitable[None]]:
        async def forget() -> None:
            database.forget()

        return forget


async def test_changes_are_kept_up_to_a_size() -> None:
    database = MemoryDatabase(ManualClock(), kept=100_000)
    await database.ensure(COLLECTIONS)
    tokens = []
    for number in range(100):
        tokens.append(await database.now())
        await insert(database, "things", {f"d/{number}": {"text": "x" * 4_789}})
    # Each takes 4,800 bytes of JSON and 200 for itself.
    assert len(await up_to_now(database, tokens[-19])) == 19
    with pytest.raises(ChangesLost):
        await take(database.changes(tokens[-21]))
