"""The epochs that one partition went through, and what a position of any of them means today."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from ..entities.position import Gap, Partition, Position

BEGINNING = Position(0, 0)


class Span(NamedTuple):
    """What can be read of a range: the offsets after ``start`` up to and with ``end``, and what is gone around them."""

    start: int
    end: int
    before: Gap | None
    beyond: Gap | None


class Lineage:
    """Which epoch each offset belongs to.

    ``starts``: (epoch, first offset that was accepted in it), both ascending. Offsets go on from epoch to epoch, so a
    position of an earlier epoch is still good up to where the next one began; what it had seen beyond was forgotten
    by the store, and the reader is told so.
    """

    __slots__ = ("_firsts", "_starts")

    def __init__(self, starts: Sequence[tuple[int, int]]) -> None:
        self._starts = list(starts)
        self._firsts = [first for _, first in self._starts]

    @property
    def epoch(self) -> int:
        """The epoch that is being written."""
        return self._starts[-1][0]

    def position(self, offset: int) -> Position:
        """The position of an offset, with the epoch in which it was accepted."""
        index = bisect_right(self._firsts, offset) - 1
        return Position(self._starts[max(index, 0)][0], offset)

    def locate(self, partition: Partition, after: Position, first: int, last: int) -> tuple[int, Gap | None]:
        """The offset to read after, and what a reader at ``after`` can no longer get.

        ``first`` and ``last``: the offsets that are retained (``first == last + 1``: none).
        """
        if after == BEGINNING:
            return first - 1, None
        for index, (epoch, _) in enumerate(self._starts):
            if epoch == after.epoch:
                end = self._firsts[index + 1] - 1 if index + 1 < len(self._starts) else last
                break
        else:
            return first - 1, Gap(partition, first, first - 1, "rebuilt")
        if after.offset > end:
            return end, Gap(partition, end + 1, end, "rebuilt")
        if after.offset < first - 1:
            return first - 1, Gap(partition, after.offset + 1, first - 1, "retention")
        return after.offset, None

    def span(self, partition: Partition, after: Position, upto: Position, first: int, last: int) -> Span:
        """What is left of the range after one position up to another, where ``first`` to ``last`` are retained."""
        start, before = self.locate(partition, after, first, last)
        end, beyond = self.locate(partition, upto, first, last)
        if beyond is not None and beyond.reason == "retention":
            end, beyond = upto.offset, None
        elif beyond is not None and upto.epoch not in (epoch for epoch, _ in self._starts):
            end = start
        return Span(start, end, clipped(before, end), beyond)


def clipped(gap: Gap | None, end: int) -> Gap | None:
    """The part of a gap up to an offset; one whose extent is not known stays."""
    if gap is None or gap.reason == "rebuilt":
        return gap
    part = gap._replace(last=min(gap.last, end))
    return part if part.missing else None
