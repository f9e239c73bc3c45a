"""One write at a time per document: of many callers that race for a hot one, only one asks the server.

Of fifty that saw the same state one can win, and the others would learn one by one, over the network, that they lost.
Those who were waiting meanwhile are told by the outcome of the one before them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ...use_cases.ports.database import Outcome, Stored


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    callers: int = 0
    count: int = 0
    stands: Stored | None = None


class Turnstile:
    """Holds something only for documents that are being written to just now."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, str], _Turn] = {}

    async def __call__(
        self, place: tuple[str, str], before: Stored | None, write: Callable[[], Awaitable[Outcome]]
    ) -> Outcome:
        """Write to a document (collection, key) when it is one's turn, or tell who comes too late what stands there."""
        turn = self._turns.setdefault(place, _Turn())
        turn.callers += 1
        came = turn.count
        try:
            async with turn.lock:
                # Only what was learned while we waited counts; and another process may be ahead of it.
                if turn.count > came and _is_behind(before, turn.stands):
                    return Outcome(False, turn.stands)
                outcome = await write()
                turn.stands = outcome.stands
                turn.count += 1
                return outcome
        finally:
            turn.callers -= 1
            if not turn.callers:
                del self._turns[place]


def _is_behind(before: Stored | None, stands: Stored | None) -> bool:
    if before is None or stands is None:
        return before is not stands
    return before.revision < stands.revision
