"""A door and an operator's client of it, for the tests of the HTTP gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.support.http_door import Door, open_door


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with open_door() as opened:
        yield opened


@pytest.fixture
async def api(door: Door) -> AsyncIterator[httpx.AsyncClient]:
    async with door.client() as client:
        yield client
