"""A database of this test alone, and what a person sees of it with the MongoDB shell."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pymongo
import pymongo.database
import pytest

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.mongo.database import MongoDatabase
from iotsphere.drivers.mongo.options import MongoOptions
from tests.contracts.database import COLLECTIONS

QUICK = MongoOptions(timeout=30, quiet=0.2)


@pytest.fixture
async def database(mongo_url: str) -> AsyncIterator[MongoDatabase]:
    async with MongoDatabase(mongo_url, SystemClock(), QUICK) as database:
        await database.ensure(COLLECTIONS)
        yield database


@pytest.fixture
def shell(mongo_url: str) -> Iterator[pymongo.database.Database[dict[str, Any]]]:
    with pymongo.MongoClient[dict[str, Any]](mongo_url, w="majority") as client:
        yield client.get_default_database()
