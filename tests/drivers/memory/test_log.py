"""The memory log keeps the contract."""

from __future__ import annotations

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.use_cases.ports.message_log import MessageLog
from tests.contracts.message_log import MessageLogContract
from tests.contracts.records import CHANNELS, DOMAIN, records


class TestMemoryLog(MessageLogContract):
    @pytest.fixture
    def log(self, clock: ManualClock) -> MessageLog:
        return MemoryLog(clock)


async def test_message_ids_are_forgotten_after_ten_minutes() -> None:
    clock = ManualClock()
    log = MemoryLog(clock)
    await log.ensure(DOMAIN, CHANNELS)
    batch = records(3)
    await log.append(batch)
    clock.advance(10 * 60 * 1000)
    assert (await log.append(batch)).duplicates == {0, 1, 2}
    clock.advance(1)
    assert (await log.append(batch)).duplicates == frozenset()
