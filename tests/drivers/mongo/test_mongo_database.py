"""The MongoDB database keeps the contract, for several processes at once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.mongo.database import MongoDatabase
from iotsphere.drivers.mongo.options import MongoOptions
from iotsphere.use_cases.ports.database import Database
from tests.contracts.database import COLLECTIONS, DatabaseContract, SharedDatabaseContract
from tests.contracts.database_changes import ChangesContract, SharedChangesContract

QUICK = MongoOptions(timeout=30, quiet=0.2)


class TestMongoDatabase(DatabaseContract, SharedDatabaseContract, ChangesContract, SharedChangesContract):
    @pytest.fixture
    async def database(self, mongo_url: str) -> AsyncIterator[Database]:
        async with MongoDatabase(mongo_url, SystemClock(), QUICK) as database:
            await database.ensure(COLLECTIONS)
            yield database

    @pytest.fixture
    async def neighbour(self, database: Database, mongo_url: str) -> AsyncIterator[Database]:
        await database.ready()
        async with MongoDatabase(mongo_url, SystemClock(), QUICK) as neighbour:
            await neighbour.ensure(COLLECTIONS)
            yield neighbour
