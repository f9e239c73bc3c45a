"""The use cases over memory drivers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.rooms import Rooms, open_rooms


@pytest.fixture
async def rooms() -> AsyncIterator[Rooms]:
    async with open_rooms() as opened:
        yield opened
