"""The WebSocket door over memory drivers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.client.house import Door, House, open_door, open_house


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


@pytest.fixture
async def door(house: House) -> AsyncIterator[Door]:
    async with open_door(house) as opened:
        yield opened
