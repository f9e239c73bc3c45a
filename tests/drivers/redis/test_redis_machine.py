"""Random histories: the Redis log and queue are indistinguishable from those in memory, also when they are reopened."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from typing import ClassVar

import pytest
from hypothesis.stateful import run_state_machine_as_test

from iotsphere.drivers.redis.log import RedisMessagingDriver
from iotsphere.drivers.redis.queue import RedisWorkQueue
from iotsphere.use_cases.ports.message_log import MessageLog
from iotsphere.use_cases.ports.work_queue import WorkQueue
from tests.contracts.log_machine import LogMachine
from tests.support.examples import tried
from tests.support.servers import Server

from .patience import PATIENT


class RedisMachine(LogMachine):
    """Each run has keys of its own."""

    # Retention counts the bytes that are stored, and memory those of the bodies.
    exact_bytes = False
    port: ClassVar[int]
    runs: ClassVar[count[int]] = count()

    def __init__(self) -> None:
        super().__init__()
        self._stack = AsyncExitStack()
        self._prefix = f"run{next(self.runs)}"

    async def open(self) -> tuple[MessageLog, WorkQueue]:
        url, options = f"redis://127.0.0.1:{self.port}", replace(PATIENT, prefix=self._prefix)
        log = await self._stack.enter_async_context(RedisMessagingDriver(url, self.clock, options=options))
        return log, RedisWorkQueue(log)

    async def shut(self) -> None:
        await self._stack.aclose()


@pytest.mark.timeout(600)  # each step waits for the disk
def test_it_is_indistinguishable_from_memory(redis_server: Server) -> None:
    RedisMachine.port = redis_server.port
    run_state_machine_as_test(
        RedisMachine,
        settings=tried(8, 30),
    )
