"""Timers: every task has its turn, whatever becomes of the others."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from iotsphere.entities.errors import Conflict, LogUnavailable
from iotsphere.use_cases.timers import Timers

from .stage import soon


class Task:
    """Does ``count`` at each turn, or fails."""

    def __init__(self, count: int = 1, error: Exception | None = None) -> None:
        self.count = count
        self.error = error
        self.turns = 0

    async def __call__(self) -> int:
        self.turns += 1
        if self.error is not None:
            raise self.error
        return self.count


async def test_tasks_have_their_turns_and_what_they_do_is_counted() -> None:
    one, two = Task(1), Task(2)
    timers = Timers(one, two, every=0)
    running = asyncio.create_task(timers.run())
    await soon(lambda: two.turns == 3, "three rounds")
    running.cancel()
    await asyncio.wait((running,))
    assert (one.turns, two.turns, timers.done, timers.failed) == (3, 3, 9, 0)


async def test_a_task_that_fails_keeps_no_other_from_its_turn() -> None:
    bad, good = Task(error=Conflict("too many at once")), Task(1)
    timers = Timers(bad, good, every=0)
    running = asyncio.create_task(timers.run())
    await soon(lambda: good.turns == 2, "two rounds")
    running.cancel()
    await asyncio.wait((running,))
    assert (bad.turns, timers.done, timers.failed) == (2, 2, 2)


async def test_what_is_away_is_told_after_all_had_their_turn() -> None:
    away, good = Task(error=LogUnavailable("away")), Task(1)
    timers = Timers(away, good, every=0)
    with pytest.raises(LogUnavailable):
        await timers.run()
    assert (good.turns, timers.done, timers.failed) == (1, 1, 1)


async def test_a_fault_is_told_and_keeps_no_other_from_its_turn() -> None:
    """Whatever people have written in the database: one task must not end all the others."""
    bad, good = Task(error=ZeroDivisionError("nothing to divide by")), Task(1)
    timers = Timers(bad, good, every=0)
    with structlog.testing.capture_logs() as told:
        running = asyncio.create_task(timers.run())
        await soon(lambda: good.turns == 2, "two rounds")
        running.cancel()
        await asyncio.wait((running,))
    assert (bad.turns, timers.done, timers.failed) == (2, 2, 2)
    assert [line["event"] for line in told] == ["timer_failed"] * 2
    assert all(line["exc_info"] for line in told)
