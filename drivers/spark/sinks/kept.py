"""Results as documents, each set as a whole under its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol


class Kept(NamedTuple):
    """A document. ``body``: JSON values and moments (UTC, whole milliseconds).

    ``first``, ``last``: the offsets in the log between which it knows all that it is about; or 0 and a number that grows
    with what is known, such as a time. ``expires``: when it may go.
    ``new``: there is hardly one of this key yet; a sink may try that first.
    """

    key: str
    body: Mapping[str, Any]
    first: int
    last: int
    expires: datetime | None = None
    new: bool = False


def whole_ms(moment: datetime) -> datetime:
    """The moment in whole milliseconds, which is what every store keeps of it."""
    return moment.replace(microsecond=moment.microsecond // 1_000 * 1_000)


class DocumentSink(Protocol):
    """Keeps documents by collection and key, for other programs to read at any time."""

    def write(self, collection: str, documents: Sequence[Kept]) -> int:
        """Set documents, and return how many were set; they are durable then (MongoDB: majority, SQLite: fsync).

        One that is there stays, and is not counted, where it knows more, with a lower ``first`` or a higher ``last``: so repeating is
        harmless, and whoever begins anew from the start of the log takes no row back. Raises DatabaseUnavailable: some
        may have been set, and all are to be set again.
        """
        ...

    def find(self, collection: str, state: str) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Key and body of the documents whose field ``state`` is this. Raises DatabaseUnavailable."""
        ...
