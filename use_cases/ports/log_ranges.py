"""Exact ranges of the log, read again as often as wanted, by processes that wait: batch jobs and their workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self

from ...entities.position import Bounds, Partition, Position
from .message_log import Slice


class LogRanges(Protocol):
    """A log that somebody else writes, read by ranges; a context manager, used by one thread.

    Nothing here changes the log or makes retention wait. Every call may raise LogUnavailable, and may be repeated.
    """

    def __enter__(self) -> Self:
        """Open the log. Raises LogUnavailable when there is none yet."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        ...

    def partitions(self, channel: str, domains: Sequence[str] = ()) -> Sequence[Partition]:
        """The channel's partitions in these domains, or in all of them, sorted.

        Looks anew each time. Raises UnknownDomain for a domain that is named and does not have the channel.
        """
        ...

    def bounds(self, partition: Partition) -> Bounds:
        """What is retained now."""
        ...

    def at(self, partition: Partition, time: int) -> Position:
        """The position to read after in order to get all that was appended at or after ``time`` (ms)."""
        ...

    def read(self, partition: Partition, after: Position, upto: Position) -> Iterator[Slice]:
        """All entries after one position up to and with another, in slices of about 1 MiB.

        The same range gives the same entries each time. What of it cannot be had any more is told as gaps, so entries
        and gaps together cover the range. ``Position(0, 0)`` as ``after`` is the beginning of what is retained, without
        a gap. An ``upto`` that the store has forgotten ends with a gap ``rebuilt``. Raises UnknownDomain.
        """
        ...
