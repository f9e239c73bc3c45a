"""The turnstile lets one writer of a document through at a time, and answers those that come too late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from iotsphere.drivers.mongo.turnstile import Turnstile
from iotsphere.entities.errors import DatabaseUnavailable
from iotsphere.use_cases.ports.database import Outcome, Stored

PLACE = ("things", "d/a")


class Document:
    """A document of which each write takes a turn of the loop; counts the writes, and those at the same time."""

    def __init__(self) -> None:
        self.stands: Stored | None = None
        self.writes = 0
        self.at_once = 0
        self.most_at_once = 0

    def change(self, before: Stored | None, remove: bool = False) -> Callable[[], Awaitable[Outcome]]:
        async def write() -> Outcome:
            self.writes += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await asyncio.sleep(0)
            self.at_once -= 1
            if before != self.stands:
                return Outcome(False, self.stands)
            self.stands = None if remove else Stored("d/a", 1 if before is None else before.revision + 1, {})
            return Outcome(True, self.stands)

        return write


async def test_of_many_with_the_same_state_only_one_asks() -> None:
    turnstile, document = Turnstile(), Document()
    outcomes = await asyncio.gather(*(turnstile(PLACE, None, document.change(None)) for _ in range(50)))
    first = Stored("d/a", 1, {})
    assert sorted(outcomes) == [Outcome(False, first)] * 49 + [Outcome(True, first)]
    assert document.writes == 1


async def test_who_knows_the_newest_state_is_let_through() -> None:
    turnstile, document = Turnstile(), Document()
    stands = (await turnstile(PLACE, None, document.change(None))).stands
    assert stands is not None
    newer = stands._replace(revision=2)
    outcomes = await asyncio.gather(
        turnstile(PLACE, stands, document.change(stands)),
        turnstile(PLACE, newer, document.change(newer)),
        turnstile(PLACE, stands, document.change(stands)),
    )
    assert [outcome.done for outcome in outcomes] == [True, True, False]
    assert outcomes[2].stands == Stored("d/a", 3, {})
    assert document.writes == 3
    assert document.most_at_once == 1


async def test_what_was_removed_meanwhile_cannot_be_replaced() -> None:
    turnstile, document = Turnstile(), Document()
    stands = (await turnstile(PLACE, None, document.change(None))).stands
    outcomes = await asyncio.gather(
        turnstile(PLACE, stands, document.change(stands, remove=True)),
        turnstile(PLACE, stands, document.change(stands)),
        turnstile(PLACE, None, document.change(None)),
    )
    assert list(outcomes) == [Outcome(True, None), Outcome(False, None), Outcome(True, Stored("d/a", 1, {}))]


async def test_what_was_learned_before_one_came_does_not_count() -> None:
    """Another process may have removed it and made it anew since: its first revision is not behind."""
    turnstile, document = Turnstile(), Document()
    for _ in range(3):
        await turnstile(PLACE, document.stands, document.change(document.stands))
    document.stands = anew = Stored("d/a", 1, {"anew": True})
    assert await turnstile(PLACE, anew, document.change(anew)) == Outcome(True, Stored("d/a", 2, {}))


async def test_documents_do_not_wait_for_each_other() -> None:
    turnstile, document = Turnstile(), Document()
    await asyncio.gather(*(turnstile(("things", f"d/{n}"), None, document.change(None)) for n in range(5)))
    assert document.most_at_once == 5


async def test_a_failure_or_a_leaver_lets_the_next_one_through() -> None:
    turnstile, document = Turnstile(), Document()
    hanging = asyncio.Event()

    async def hang() -> Outcome:
        await hanging.wait()
        raise DatabaseUnavailable("away: try again")

    first = asyncio.create_task(turnstile(PLACE, None, hang))
    leaver = asyncio.create_task(turnstile(PLACE, None, document.change(None)))
    last = asyncio.create_task(turnstile(PLACE, None, document.change(None)))
    await asyncio.sleep(0)
    leaver.cancel()
    hanging.set()
    with pytest.raises(DatabaseUnavailable):
        await first
    assert await last == Outcome(True, Stored("d/a", 1, {}))
    assert leaver.cancelled()
    assert document.writes == 1
    assert turnstile._turns == {}
