"""Documents whose time has come, in the order of that time, whatever people have written among them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from .ports.database import Database, Stored

INDEX: Final = "due"
MAX_PAGES: Final = 20


async def due_pages(
    database: Database, collection: str, equal: Sequence[Any], now: int, limit: int
) -> AsyncGenerator[Sequence[Stored], None]:
    """Documents that are due at ``now`` (ms) by the index ``due`` of a collection, in pages; close it with ``aclose``.

    What stays due, since it is damaged, is passed by in each round and keeps nothing behind it waiting. A round takes
    MAX_PAGES at most, so that whoever looks after several collections gets to each. Raises Unavailable.
    """
    after: Stored | None = None
    for _ in range(MAX_PAGES):
        page = await database.find(collection, INDEX, equal, after=after, limit=limit)
        timed = [stored for stored in page if isinstance(stored.body.get("due"), int | float)]
        ripe = [stored for stored in timed if stored.body["due"] <= now]
        if ripe:
            yield ripe
        if len(page) < limit or not ripe or len(ripe) < len(timed):
            return
        after = timed[-1]
