"""What is due is found page by page, and what is damaged among it keeps nothing waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iotsphere.use_cases.due import MAX_PAGES, due_pages
from iotsphere.use_cases.ports.database import Stored


class Sorted:
    """A database that finds these documents in this order."""

    def __init__(self, *dues: object) -> None:
        self._documents = [Stored(f"d/{number}", 1, {"due": due}) for number, due in enumerate(dues)]
        self.asked = 0

    async def find(
        self, collection: str, index: str, equal: Sequence[Any], *, after: Any = None, limit: int
    ) -> Sequence[Stored]:
        assert (collection, index, equal) == ("things", "due", (True,))
        self.asked += 1
        first = 0 if after is None else self._documents.index(after) + 1
        return self._documents[first : first + limit]


async def due(database: Any, now: int, limit: int = 2) -> list[list[object]]:
    pages = due_pages(database, "things", (True,), now, limit)
    return [[stored.body["due"] for stored in page] async for page in pages]


async def test_pages_up_to_now() -> None:
    assert await due(Sorted(1, 2, 3, 4, 5, 9), 5) == [[1, 2], [3, 4], [5]]
    assert await due(Sorted(9), 5) == []
    assert await due(Sorted(), 5) == []


async def test_what_is_no_number_is_passed_by() -> None:
    assert await due(Sorted(None, 1, True, 2.5, 3, "soon", "x", "y"), 5) == [[1], [True, 2.5], [3]]


async def test_a_round_has_an_end() -> None:
    database = Sorted(*range(100))
    assert len(await due(database, 100)) == MAX_PAGES == database.asked
