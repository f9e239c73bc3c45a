"""Ranges of Redis streams keep the contract, and say so when the server is away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.redis.log import RedisMessagingDriver
from iotsphere.drivers.redis.ranges import RedisRanges
from iotsphere.entities.errors import LogUnavailable
from iotsphere.entities.position import Partition
from iotsphere.use_cases.ports.log_ranges import LogRanges
from iotsphere.use_cases.ports.message_log import MessageLog
from tests.contracts.log_ranges import LogRangesContract
from tests.contracts.records import P0
from tests.support.fixtures import Starter
from tests.support.servers import Server

from .patience import PATIENT
from .test_redis_log import RedisLogContract


class TestRedisRanges(LogRangesContract):
    @pytest.fixture
    async def log(self, redis_server: Server, clock: ManualClock) -> AsyncIterator[MessageLog]:
        async with RedisMessagingDriver(f"redis://127.0.0.1:{redis_server.port}", clock, options=PATIENT) as log:
            yield log

    @pytest.fixture
    def ranges(self, log: RedisMessagingDriver, redis_server: Server) -> Iterator[LogRanges]:
        assert log.durability == "fsynced"
        with RedisRanges(f"redis://127.0.0.1:{redis_server.port}", PATIENT) as ranges:
            yield ranges

    async def damage(self, log: MessageLog, partition: Partition, offset: int) -> None:
        await RedisLogContract.damage(self, log, partition, offset)  # type: ignore[arg-type]  # it only takes the log


def test_a_server_that_is_away_is_named(start_redis: Starter) -> None:
    server = start_redis()
    with RedisRanges(f"redis://127.0.0.1:{server.port}") as ranges:
        server.kill()
        with pytest.raises(LogUnavailable, match=f"127.0.0.1:{server.port} is not available"):
            ranges.bounds(P0)
    with pytest.raises(LogUnavailable):
        ranges.bounds(P0)
