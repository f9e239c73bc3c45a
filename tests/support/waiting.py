"""Waiting for a condition with a deadline, never for a length of time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

POLL = 0.02


async def until(condition: Callable[[], object], what: str, within: float = 60.0) -> None:
    """Return as soon as the condition holds. Raises AssertionError with ``what`` after ``within`` seconds."""
    deadline = asyncio.get_running_loop().time() + within
    while True:
        if condition():
            return
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}")
        await asyncio.sleep(POLL)
