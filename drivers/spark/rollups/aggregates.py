"""What is known of a group of readings: count, extremes, sum, last; two parts of a group make the whole."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from .points import UNTRUSTED, Bools, Floats, Ints, Points

FAR: Final = np.iinfo(np.int64).max


class Growth(NamedTuple):
    """What each point adds to its counter, and how often it was reset or not believed; zeros for what is no counter."""

    increase: Floats
    resets: Ints
    implausible: Ints

    def take(self, which: Any) -> Growth:
        """Some of them, by index or mask."""
        return Growth(*(column[which] for column in self))


class Aggregates(NamedTuple):
    """One array a column, a group a row.

    ``start``: the bucket, µs since 1970; ``resolution``: its index. ``last``, ``last_at``: by time, then by place in the
    log; ``trusted`` says that the clock was believed, and such a one goes before the others. ``first_offset``,
    ``last_offset``: the places in the log that it was made of. A group of duplicates alone has 0 readings.
    """

    series: Ints
    resolution: Ints
    start: Ints
    readings: Ints
    total: Floats
    least: Floats
    most: Floats
    last: Floats
    last_at: Ints
    trusted: Ints
    first_offset: Ints
    last_offset: Ints
    duplicates: Ints
    untrusted: Ints
    increase: Floats
    resets: Ints
    implausible: Ints

    def take(self, which: Any) -> Aggregates:
        """Some of them, by index or mask."""
        return Aggregates(*(column[which] for column in self))


def no_aggregates() -> Aggregates:
    """None at all."""
    whole, real = np.empty(0, np.int64), np.empty(0)
    return Aggregates(*(whole, whole, whole, whole), *(real, real, real, real), *(whole,) * 6, real, whole, whole)


def borders(*columns: Ints) -> Ints:
    """Where a new group begins, in rows that lie group by group."""
    changed = np.ones(len(columns[0]), np.bool_)
    if len(changed) > 1:
        changed[1:] = False
        for column in columns:
            changed[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changed)


def aggregate(points: Points, start: Ints, resolution: int, growth: Growth) -> Aggregates:
    """The groups of points that lie in order of series and time; ``start``: the bucket of each."""
    if not len(points.at):
        return no_aggregates()
    first = borders(points.series, start)
    counted = ~points.duplicate
    untrusted = (points.flags & UNTRUSTED) != 0
    value = points.value
    index = np.arange(len(value))
    believed = np.maximum.reduceat(np.where(counted & ~untrusted, index, -1), first)
    last = np.where(believed >= 0, believed, np.maximum.reduceat(np.where(counted, index, -1), first))
    return Aggregates(
        series=points.series[first],
        resolution=np.full(len(first), resolution, np.int64),
        start=start[first],
        readings=_sum(counted, first),
        total=np.add.reduceat(np.where(counted, value, 0.0), first),
        least=np.minimum.reduceat(np.where(counted, value, np.inf), first),
        most=np.maximum.reduceat(np.where(counted, value, -np.inf), first),
        last=value[last],
        last_at=points.at[last],
        trusted=(believed >= 0).astype(np.int64),
        first_offset=np.minimum.reduceat(points.offset, first),
        last_offset=np.maximum.reduceat(points.offset, first),
        duplicates=_sum(points.duplicate, first),
        untrusted=_sum(counted & untrusted, first),
        increase=np.add.reduceat(growth.increase, first),
        resets=np.add.reduceat(growth.resets, first),
        implausible=np.add.reduceat(growth.implausible, first),
    )


def merged(earlier: Aggregates, later: Aggregates) -> Aggregates:
    """Both, where groups that are in both become one; within a group, ``earlier`` holds the older times."""
    both = Aggregates(*(np.concatenate(pair) for pair in zip(earlier, later, strict=True)))
    if not len(both.series):
        return both
    order = np.lexsort((np.arange(len(both.series)), both.start, both.resolution, both.series))
    both = both.take(order)
    first = borders(both.series, both.resolution, both.start)
    last = np.append(first[1:], len(both.series)) - 1
    # A group has one part or two; the later one has the last reading, unless only the earlier one's clock was right.
    older = (both.trusted[first] > both.trusted[last]) | (both.readings[last] == 0)
    newest = np.where(older, first, last)
    least, most, add = np.minimum.reduceat, np.maximum.reduceat, np.add.reduceat
    return Aggregates(
        series=both.series[first],
        resolution=both.resolution[first],
        start=both.start[first],
        readings=add(both.readings, first),
        total=add(both.total, first),
        least=least(both.least, first),
        most=most(both.most, first),
        last=both.last[newest],
        last_at=both.last_at[newest],
        trusted=most(both.trusted, first),
        first_offset=least(both.first_offset, first),
        last_offset=most(both.last_offset, first),
        duplicates=add(both.duplicates, first),
        untrusted=add(both.untrusted, first),
        increase=add(both.increase, first),
        resets=add(both.resets, first),
        implausible=add(both.implausible, first),
    )


def _sum(flags: Bools, first: Ints) -> Ints:
    return np.asarray(np.add.reduceat(flags.astype(np.int64), first))
