"""Random histories: the MongoDB database is indistinguishable from that in memory, also when it is opened anew."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack
from typing import ClassVar

import pytest
from hypothesis.stateful import run_state_machine_as_test

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.mongo.database import MongoDatabase
from iotsphere.drivers.mongo.options import MongoOptions
from iotsphere.use_cases.ports.database import Database
from tests.contracts.database_machine import DatabaseMachine
from tests.support import mongo
from tests.support.examples import tried
from tests.support.servers import Server


class MongoMachine(DatabaseMachine):
    reopens = True
    port: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        self._name = f"machine_{secrets.token_hex(4)}"
        self._stack = AsyncExitStack()

    async def open(self) -> Database:
        url = f"mongodb://127.0.0.1:{self.port}/{self._name}?replicaSet={mongo.NAME}"
        return await self._stack.enter_async_context(
            MongoDatabase(url, SystemClock(), MongoOptions(timeout=30, quiet=0.2))
        )

    async def shut(self) -> None:
        await self._stack.aclose()

    def teardown(self) -> None:
        super().teardown()
        with mongo.direct(self.port) as client:
            client.drop_database(self._name)


@pytest.mark.slow
def test_it_is_indistinguishable_from_memory(shared_mongo: Server) -> None:
    MongoMachine.port = shared_mongo.port
    run_state_machine_as_test(
        MongoMachine,
        settings=tried(4, 20),
    )
