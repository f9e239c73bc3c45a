"""What is usual of numbers: their median and spread, which one wild number does not move, and how far they went before."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final, NamedTuple

NORMAL: Final = 1.4826  # median absolute deviation to standard deviation, of a normal distribution
MEAN_NORMAL: Final = 1.2533  # mean absolute deviation, likewise
BLOCKS: Final = 16


class Usual(NamedTuple):
    """What is usual: the median, and a robust standard deviation around it."""

    median: float
    spread: float


class Window:
    """The last ``size`` numbers. Adding one and asking cost the logarithm of the size."""

    __slots__ = ("_ordered", "_recent", "_size")

    def __init__(self, size: int, recent: Iterable[float] = ()) -> None:
        self._size = size
        self._recent = list(recent)[-size:]
        self._ordered = sorted(self._recent)

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def recent(self) -> list[float]:
        """The numbers, oldest first; not to be changed."""
        return self._recent

    def add(self, value: float) -> None:
        """Take a number in, and drop the oldest when there are too many."""
        self._recent.append(value)
        insort(self._ordered, value)
        if len(self._recent) > self._size:
            del self._ordered[bisect_left(self._ordered, self._recent.pop(0))]

    def usual(self) -> Usual:
        """Median and spread. When more than half are equal, their MAD is 0, and the mean distance stands in."""
        ordered = self._ordered
        if not ordered:
            return Usual(0.0, 0.0)
        half, odd = divmod(len(ordered), 2)
        median = ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2
        spread = NORMAL * _deviation(ordered, median)
        if not spread and ordered[0] != ordered[-1]:
            spread = MEAN_NORMAL * sum(abs(value - median) for value in ordered) / len(ordered)
        return Usual(median, spread)


def _deviation(ordered: list[float], median: float) -> float:
    """The median distance from the median; of an even number of them, the upper one.

    The ``count // 2 + 1`` nearest numbers lie side by side, so their first one is looked for by halving.
    """
    count = len(ordered) // 2 + 1
    low, high = 0, len(ordered) - count
    while low < high:
        middle = (low + high) // 2
        if median - ordered[middle] > ordered[middle + count] - median:
            low = middle + 1
        else:
            high = middle
    return max(median - ordered[low], ordered[low + count - 1] - median)


class Extremes:
    """How far numbers go now and then: the median of what was the greatest in each of the last blocks.

    A spread says nothing of a metric that mostly rests and sometimes leaps (block maxima: Gumbel 1958). Faults that are
    in fewer than half of the blocks move nothing.
    """

    __slots__ = ("_block", "_count", "_greatest", "_open", "usual")

    def __init__(self, block: int, stored: Iterable[float] = ()) -> None:
        self._block = block
        count, self._open, *self._greatest = tuple(stored) or (0.0, 0.0)
        self._count = int(count)
        self.usual = self._middle()  # the greatest distance that is usual; 0 before a block is full

    def add(self, distance: float) -> None:
        """Take in how far a number was from where it was expected, which is at least 0."""
        self._open = max(self._open, distance)
        self._count += 1
        if self._count >= self._block:
            self._greatest = [*self._greatest, self._open][-BLOCKS:]
            self._count, self._open = 0, 0.0
            self.usual = self._middle()

    def _middle(self) -> float:
        return sorted(self._greatest)[len(self._greatest) // 2] if self._greatest else 0.0

    @property
    def stored(self) -> tuple[float, ...]:
        """Everything that is known, for another one to go on with."""
        return (float(self._count), self._open, *self._greatest)
