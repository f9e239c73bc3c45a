"""Who folds facts of the log into something else: shadows, commands, notifications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...entities.errors import IotSphereError
from ...entities.message import Entry

APPLIED = "applied"
SUPERSEDED = "superseded"
EXPIRED = "expired"

# The processors of the product, by the last level of their readers' names.
READERS = ("shadows", "commands", "notifications")


class FactHandler(Protocol):
    """Makes the effect of entries of one partition, in their order.

    It must be idempotent: after a crash, a lost lease or an error, what was not committed is handed over again, in the
    same order, and possibly cut into other slices. Entries of one key never overtake each other; those of other keys may
    come before one that has to be repeated. Slices of different partitions are handed over at the same time.
    """

    def handles(self, topic: str) -> bool:
        """Tell whether messages on this topic are its business; the others are passed by and count as applied."""
        ...

    async def __call__(self, entries: Sequence[Entry]) -> Sequence[str | IotSphereError]:
        """For each entry ``applied``, ``superseded``, ``expired``, or why it was refused.

        A refusal is final, and becomes a dead letter, unless its ``retry`` is true: then the entry is handed over again
        later, and those of its key wait. Raises Unavailable when nothing is known of any of them: the same entries are
        handed over again. Any other exception is taken as the fault of an entry, which is sought by handing them over
        one by one; who raises for an entry alone again and again makes it a dead letter (poison).
        """
        ...
