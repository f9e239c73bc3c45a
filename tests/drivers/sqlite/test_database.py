"""The SQLite database keeps the contract, for several processes at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.sqlite.database import SqliteDatabase, StateOptions
from iotsphere.use_cases.ports.database import Database
from tests.contracts.database import COLLECTIONS, DatabaseContract, SharedDatabaseContract
from tests.contracts.database_changes import ChangesContract, ForgottenChangesContract, SharedChangesContract

QUICK = StateOptions(quiet=0.2, sweep=0.1)


class TestSqliteDatabase(
    DatabaseContract, SharedDatabaseContract, ChangesContract, SharedChangesContract, ForgottenChangesContract
):
    @pytest.fixture
    async def database(self, tmp_path: Path) -> AsyncIterator[Database]:
        async with SqliteDatabase(tmp_path / "data" / "state.db", SystemClock(), QUICK) as database:
            await database.ensure(COLLECTIONS)
            yield database

    @pytest.fixture
    async def neighbour(self, database: Database, tmp_path: Path) -> AsyncIterator[Database]:
        await database.ready()
        async with SqliteDatabase(tmp_path / "data" / "state.db", SystemClock(), QUICK) as neighbour:
            await neighbour.ensure(COLLECTIONS)
            yield neighbour

    @pytest.fixture
    def forget(self, database: Database, tmp_path: Path) -> Callable[[], Awaitable[None]]:
        async def forget() -> None:
            await database.ready()
            options = replace(QUICK, kept_bytes=0)
            async with SqliteDatabase(tmp_path / "data" / "state.db", SystemClock(), options) as other:
                await other.sweep()

        return forget
