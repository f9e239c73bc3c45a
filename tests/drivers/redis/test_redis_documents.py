"""Redis documents keep the contract on Redis 7, on Valkey, and on a cluster of one node."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.redis.documents import RedisDocuments
from iotsphere.drivers.redis.log import RedisMessagingDriver
from iotsphere.use_cases.ports.documents import Documents
from tests.contracts.documents import DocumentsContract, SharedDocumentsContract
from tests.support.servers import Server

from .patience import PATIENT


class RedisDocumentsContract(DocumentsContract, SharedDocumentsContract):
    """Needs the fixture ``server``."""

    @pytest.fixture
    async def documents(self, server: Server) -> AsyncIterator[Documents]:
        async with RedisMessagingDriver(f"redis://127.0.0.1:{server.port}", ManualClock(), options=PATIENT) as log:
            yield RedisDocuments(log)

    @pytest.fixture
    async def neighbour(self, server: Server) -> AsyncIterator[Documents]:
        async with RedisMessagingDriver(f"redis://127.0.0.1:{server.port}", ManualClock(), options=PATIENT) as log:
            yield RedisDocuments(log)


class TestOnRedis(RedisDocumentsContract):
    @pytest.fixture
    def server(self, redis_server: Server) -> Server:
        return redis_server


class TestOnValkey(RedisDocumentsContract):
    @pytest.fixture
    def server(self, valkey_server: Server) -> Server:
        return valkey_server


class TestOnRedisCluster(RedisDocumentsContract):
    @pytest.fixture
    def server(self, redis_cluster_server: Server) -> Server:
        return redis_cluster_server
