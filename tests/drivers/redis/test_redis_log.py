"""The Redis log keeps the contract on Redis 7, on Valkey, and on a cluster of one node."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.redis.log import RedisMessagingDriver
from iotsphere.entities.position import Partition
from iotsphere.use_cases.ports.message_log import MessageLog
from tests.contracts.message_log import MessageLogContract, StoredLogContract, WatchedLogContract
from tests.support.servers import Server

from .patience import PATIENT


class RedisLogContract(MessageLogContract, StoredLogContract, WatchedLogContract):
    """All contracts of logs; needs the fixture ``server``."""

    @pytest.fixture
    async def log(self, server: Server, clock: ManualClock) -> AsyncIterator[MessageLog]:
        async with RedisMessagingDriver(f"redis://127.0.0.1:{server.port}", clock, options=PATIENT) as log:
            yield log

    @pytest.fixture
    async def neighbour(self, server: Server, clock: ManualClock) -> AsyncIterator[MessageLog]:
        async with RedisMessagingDriver(f"redis://127.0.0.1:{server.port}", clock, options=PATIENT) as neighbour:
            yield neighbour

    async def damage(self, log: MessageLog, partition: Partition, offset: int) -> None:
        """Streams cannot be changed, so write this one anew with one bit turned."""
        assert isinstance(log, RedisMessagingDriver)
        port = int(log.endpoint.name.rpartition(":")[2])
        with redis.Redis(port=port) as client:
            key = log.keys.partition(partition).log
            entries = client.xrange(key)
            client.delete(key)
            for stored_id, fields in entries:
                record = bytearray(fields[b"r"])
                if stored_id.endswith(b"-%d" % offset):
                    record[-1] ^= 1
                client.xadd(key, {b"r": bytes(record)}, id=stored_id)


class TestOnRedis(RedisLogContract):
    @pytest.fixture
    def server(self, redis_server: Server) -> Server:
        return redis_server


class TestOnValkey(RedisLogContract):
    @pytest.fixture
    def server(self, valkey_server: Server) -> Server:
        return valkey_server


class TestOnRedisCluster(RedisLogContract):
    @pytest.fixture
    def server(self, redis_cluster_server: Server) -> Server:
        return redis_cluster_server
