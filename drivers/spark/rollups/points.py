"""Readings as columns: who measured what when, sorted, with those that came twice marked."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

UNTRUSTED: Final = 1
DUPLICATE: Final = 2


class Points(NamedTuple):
    """One array a column, all of the same length.

    ``series``: index of the name of domain, device and metric. ``at``: µs since 1970, UTC. ``offset``, ``sample``: the
    place in the log. ``value``: a finite number. ``identity``: a hash of the message id. ``flags``: UNTRUSTED (of a
    clock that is not believed), DUPLICATE (counted as such only). ``fresh``: came with this batch.
    """

    series: Ints
    at: Ints
    offset: Ints
    sample: Ints
    value: Floats
    identity: Ints
    flags: Ints
    fresh: Bools

    def take(self, which: Any) -> Points:
        """Some of them, by index or mask."""
        return Points(*(column[which] for column in self))

    @property
    def duplicate(self) -> Bools:
        """Which came twice."""
        return np.asarray((self.flags & DUPLICATE) != 0)


def no_points() -> Points:
    """None at all."""
    whole = np.empty(0, np.int64)
    return Points(whole, whole, whole, whole, np.empty(0), whole, whole, np.empty(0, np.bool_))


def joined(first: Points, second: Points) -> Points:
    """Both, in the order of series, time, offset and sample, with repeated samples marked."""
    points = Points(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))
    points = points.take(np.lexsort((points.sample, points.offset, points.at, points.series)))
    return points._replace(flags=points.flags | np.where(_repeated(points), DUPLICATE, 0))


def _repeated(points: Points) -> Bools:
    """Those whose sample lies at a lower offset too; one that is marked already stays out of the comparison."""
    repeated = np.zeros(len(points.at), np.bool_)
    # One sort by a mix of series, message and sample finds candidates; only they are compared exactly.
    mixed = points.identity ^ (points.series * 0x9E3779B97F4A7C1 + points.sample * 0x85EBCA77C2B2AE3)
    order = np.argsort(mixed, kind="stable")
    same = mixed[order[1:]] == mixed[order[:-1]]
    if not same.any():
        return repeated
    candidates = np.zeros(len(order), np.bool_)
    candidates[1:] |= same
    candidates[:-1] |= same
    index = order[candidates]
    few = points.take(index)
    by_offset = np.lexsort((few.offset, few.sample, few.identity, few.series))
    index, few = index[by_offset], few.take(by_offset)
    again = (
        (few.series[1:] == few.series[:-1])
        & (few.identity[1:] == few.identity[:-1])
        & (few.sample[1:] == few.sample[:-1])
    )
    repeated[index[1:]] = again
    return repeated
