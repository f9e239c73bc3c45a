"""Percentiles: exact where the readings are at hand, else of a histogram whose bins are half a percent wide.

The histogram is that of DDSketch (Masson, Rim, Lee: "DDSketch", VLDB 2019): bin ``k`` holds the values between γ^(k-1)
and γ^k, so each answer is within ``ERROR`` of an actual reading of that rank, relatively. It is made of counts alone:
however readings are divided into batches, their histograms add up to the same one. A percentile is the reading at rank
ceil(q·n), the nearest rank, without interpolation.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from .aggregates import borders
from .points import Floats, Ints

QUANTILES: Final = (0.5, 0.95, 0.99)
ERROR: Final = 0.005
SMALLEST: Final = 1e-12  # what is nearer to zero is zero
_GAMMA: Final = (1 + ERROR) / (1 - ERROR)
_LOG: Final = float(np.log(_GAMMA))
_BIAS: Final = 1 - int(np.ceil(np.log(SMALLEST) / _LOG))
_SHIFT: Final = 18
_MIDDLE: Final = 1 << (_SHIFT - 1)


class Histogram(NamedTuple):
    """Bins of several groups, in order of group and bin; ``group``: an index, ``bin``: in order of value."""

    group: Ints
    bin: Ints
    readings: Ints

    def take(self, which: Any) -> Histogram:
        """Some of the bins, by index or mask."""
        return Histogram(*(column[which] for column in self))


def histogram(group: Ints, value: Floats) -> Histogram:
    """The bins of values; ``group``: the group of each, in any order."""
    size = np.abs(value)
    tiny = size < SMALLEST
    bins = np.ceil(np.log(np.where(tiny, 1.0, size)) / _LOG).astype(np.int64) + _BIAS
    bins = np.where(tiny, 0, np.where(value < 0, -bins, bins))
    return total(Histogram(group, bins, np.ones(len(group), np.int64)))


def total(parts: Histogram) -> Histogram:
    """The sum of the bins that are the same."""
    if not len(parts.group):
        return parts
    mixed = (parts.group << _SHIFT) + parts.bin + _MIDDLE
    order = np.argsort(mixed, kind="stable")
    mixed = mixed[order]
    first = borders(mixed)
    kept = mixed[first]
    return Histogram(
        kept >> _SHIFT, (kept & ((1 << _SHIFT) - 1)) - _MIDDLE, np.add.reduceat(parts.readings[order], first)
    )


def of_histogram(bins: Histogram, groups: int) -> list[Floats]:
    """For each of ``QUANTILES`` the value of each group; NaN for a group without a reading."""
    found = [np.full(groups, np.nan) for _ in QUANTILES]
    if not len(bins.group):
        return found
    first = borders(bins.group)
    which, count = bins.group[first], np.add.reduceat(bins.readings, first)
    # Ranks of all groups in one row of numbers: those of a group follow those of the groups before it.
    reached = np.cumsum(bins.readings)
    before = np.append(0, np.cumsum(count)[:-1])
    values = np.sign(bins.bin) * 2 * np.exp((np.abs(bins.bin) - _BIAS) * _LOG) / (_GAMMA + 1)
    for quantile, made in zip(QUANTILES, found, strict=True):
        made[which] = values[np.searchsorted(reached, before + _rank(quantile, count))]
    return found


def of_values(group: Ints, value: Floats, groups: int) -> list[Floats]:
    """The same of the readings themselves; ``group``: the group of each, ascending."""
    found = [np.full(groups, np.nan) for _ in QUANTILES]
    if not len(group):
        return found
    ordered = value[np.lexsort((value, group))]
    first = borders(group)
    count = np.diff(np.append(first, len(group)))
    for quantile, made in zip(QUANTILES, found, strict=True):
        made[group[first]] = ordered[first + _rank(quantile, count) - 1]
    return found


def _rank(quantile: float, count: Ints) -> Ints:
    # Less a hair, so that 0.95 of 20 is rank 19 and not 20.
    return np.asarray(np.maximum(np.ceil(quantile * count - 1e-9).astype(np.int64), 1))
