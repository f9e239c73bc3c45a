"""What health must say of a device's gaps and its usual distance: a loop that remembers every message, and is slow.

Nothing here uses the code of the product. Times are µs.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from statistics import median_high
from typing import NamedTuple

SECOND = 1_000_000


class Followed(NamedTuple):
    """What came of all messages."""

    gaps: int
    gap_us: int
    usual: int | None
    first: int
    newest: int

    @property
    def uptime(self) -> float:
        """The share of the time that lies in no gap."""
        span = self.newest - self.first
        return 1 - self.gap_us / span if span else 1.0


def followed(times: Iterable[int]) -> Followed:
    """Follow the messages of one device, in the order of their arrival. Raises ValueError where there are none."""
    known: list[int] = []  # in the order of time
    steps: list[int] = []  # in the order of arrival
    pauses: list[tuple[int, int]] = []  # each with the number of messages before it
    paused, resumed = 0, 0  # the number of messages up to the last pause, and when they went on
    spans: list[tuple[int, int]] = []  # each was a gap once, and may be one again
    gaps: list[tuple[int, int]] = []  # those that are
    settled: list[tuple[int, int]] = []  # and those that will not be measured anew
    habit: tuple[int, int] | None = None
    for at in times:
        if known and at > known[-1]:
            steps.append(at - known[-1])
            last = sorted(steps[-33:])
            if steps[-1] > SECOND and steps[-1] > 10 * last[len(last) // 4]:
                pauses.append((steps[-1], len(steps) - paused))
                paused, resumed = len(steps), at
            elif pauses and at - resumed > max(length for length, _ in pauses[-9:]):
                pauses = []
            habit = _habit(steps, pauses[-9:], len(steps) - paused)
            if habit is not None and steps[-1] > _longest(habit[0]):
                spans.append((known[-1], at))
        if habit is not None:
            usual, least = (_longest(distance) for distance in habit)
            for span in [span for span in spans if span[0] < at < span[1]]:
                short = usual if span in gaps else least
                spans.remove(span)
                spans += [part for part in ((span[0], at), (at, span[1])) if part[1] - part[0] > short]
            spans = sorted(span for span in spans if span[1] - span[0] > least)
            gaps = [span for span in spans if span[1] - span[0] > usual]
            others = [span for span in spans if span[1] - span[0] <= usual]
            settled += gaps[:-32]
            gaps = gaps[-32:]
            spans = sorted(gaps + others[-32:])
        insort(known, at)
    if not known:
        raise ValueError("there is no message")
    every = settled + gaps
    total = sum(end - begin for begin, end in every)
    return Followed(len(every), total, habit and habit[0], known[0], known[-1])


def _longest(distance: int) -> int:
    return max(3 * distance, SECOND)


def _habit(steps: Sequence[int], pauses: Sequence[tuple[int, int]], since: int) -> tuple[int, int] | None:
    """The usual distance, and by which the longest is that may still be a gap later."""
    if len(steps) < 5:
        return None
    last = sorted(steps[-33:])
    middle, low = last[len(last) // 2], last[len(last) // 4]
    if len(pauses) < 3:
        return middle, low
    usual = median_high(length for length, _ in pauses)
    most = max(33, 4 * median_high(size for _, size in pauses))
    fits = [0.5 <= length / usual <= 2 and size <= most for length, size in pauses]
    inside = sum(size for (_, size), fit in zip(pauses, fits, strict=True) if fit)
    outside = sum(size for (_, size), fit in zip(pauses, fits, strict=True) if not fit)
    believed = len(pauses) == 9 or inside >= 33 or inside >= outside
    if not believed or sum(fits) < max(3, 0.75 * len(pauses)) or since > most or pauses[-1][1] > most:
        return middle, low
    return usual, usual if all(fits) and len(fits) == 9 else min(usual, low)
