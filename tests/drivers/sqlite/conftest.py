"""An open SQLite log whose clock is turned by hand, and a disk that is soon full."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.sqlite.log import SqliteLog
from tests.contracts.records import CHANNELS, DOMAIN


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def log(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteLog]:
    async with SqliteLog(tmp_path, clock) as log:
        await log.ensure(DOMAIN, CHANNELS)
        yield log
