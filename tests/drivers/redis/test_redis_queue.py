"""Redis work queues keep the contract on Redis 7, on Valkey, and on a cluster of one node."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.redis.log import RedisMessagingDriver
from iotsphere.drivers.redis.queue import RedisWorkQueue
from iotsphere.use_cases.ports.work_queue import WorkQueue
from tests.contracts.work_queue import WorkQueueContract
from tests.support.servers import Server

from .patience import PATIENT


class RedisWorkQueueContract(WorkQueueContract):
    """Needs the fixture ``server``."""

    @pytest.fixture
    async def log(self, server: Server, clock: ManualClock) -> AsyncIterator[RedisMessagingDriver]:
        async with RedisMessagingDriver(f"redis://127.0.0.1:{server.port}", clock, options=PATIENT) as log:
            yield log

    @pytest.fixture
    def queue(self, log: RedisMessagingDriver) -> WorkQueue:
        return RedisWorkQueue(log)


class TestOnRedis(RedisWorkQueueContract):
    @pytest.fixture
    def server(self, redis_server: Server) -> Server:
        return redis_server


class TestOnValkey(RedisWorkQueueContract):
    @pytest.fixture
    def server(self, valkey_server: Server) -> Server:
        return valkey_server


class TestOnRedisCluster(RedisWorkQueueContract):
    @pytest.fixture
    def server(self, redis_cluster_server: Server) -> Server:
        return redis_cluster_server
