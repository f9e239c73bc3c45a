"""Time for contract tests: turned by hand where the driver lets us, waited for where a server has its own clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from iotsphere.drivers.clock import ManualClock

T = TypeVar("T")
PassTime = Callable[[int], Awaitable[None]]


class TurnedByHand:
    """The fixtures ``clock`` and ``pass_time`` (ms).

    A driver that goes by its server's clock overrides ``pass_time`` with a wait: contract tests pass at most 100 ms.
    """

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def pass_time(self, clock: ManualClock) -> PassTime:
        async def turn(milliseconds: int) -> None:
            clock.advance(milliseconds)

        return turn


async def take(source: AsyncIterator[T], seconds: float = 60.0) -> T:
    """The next item, or an error that says so when none comes."""
    async with asyncio.timeout(seconds):
        return await anext(source)
