"""One step of a rollup: what is remembered and a batch of readings become rows, and what is to be remembered then.

Readings of a series wait for ``lateness`` until they are folded, in the order of their time; until then a reading that
comes late takes its place among them. What is older than that is counted as late and changes no row. Each series has a
clock of its own for this: neither a wild clock nor a silent device matters to any other, and one that comes back with
hours of readings loses none. However a sequence is cut into batches, the last rows are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from ....entities.analytics.calendar import DAY, HOUR_US, MINUTE_US, RESOLUTIONS, Zones, days
from ....entities.analytics.counter import IMPLAUSIBLE, RESET, CounterRule, CounterState, advance
from . import percentiles
from .aggregates import Aggregates, Growth, aggregate, borders, merged
from .percentiles import Histogram
from .points import UNTRUSTED, Bools, Floats, Ints, Points, joined
from .state import NEVER, State

NAMES: Final = (*RESOLUTIONS, DAY, "late")  # a resolution's index is its place here
MINUTE, HOUR, CALENDAR_DAY, LATE = range(4)
DAY_US: Final = 24 * HOUR_US
FORGOTTEN_US: Final = 36 * DAY_US  # no reading is ever older than 30 days when it is received
MOST_POINTS: Final = 50_000


@dataclass(frozen=True, slots=True)
class Rules:
    """``lateness_us``: how long readings wait for older ones. ``counters``: by metric. ``zones``: for days.

    ``since``: an instant of the first day whose rows are whole; what was measured before that day is late. None: all are.
    """

    lateness_us: int = 30 * MINUTE_US
    counters: Mapping[str, CounterRule] = field(default_factory=dict)
    zones: Zones = field(default_factory=Zones)
    since: int | None = None


class Rows(NamedTuple):
    """Rows as they are now, of every bucket that a reading of the batch lies in; percentiles in a column each."""

    groups: Aggregates
    percentiles: list[Floats]


def step(rules: Rules, state: State, fresh: Points, received: Ints, *, whole: bool = False) -> Rows:
    """Take readings in and return the rows that they change. ``whole``: these are all, so nothing needs to be kept.

    ``fresh.series``: indexes in ``state.names``. ``received``: when each came, µs.
    """
    if rules.since is not None:
        first = _first_days(rules, state.names)
        state.frontier = np.maximum(state.frontier, first)
        # What came before that day and was measured before it was read only to find clocks that are ahead.
        known = np.maximum(fresh.at, received) >= first[fresh.series]
        fresh, received = fresh.take(known), received[known]
    on_time = fresh.at >= state.frontier[fresh.series]
    rows = _count_late(rules, state, fresh.take(~on_time))
    clock = _hear(state, fresh, received)
    state.points = joined(state.points, fresh.take(on_time))
    growth, carries = _growth(rules, state)
    rows += _changed(rules, state, growth)
    if not whole:
        state.points = state.points._replace(fresh=np.zeros(len(state.points.at), np.bool_))
        _fold(rules, state, growth, carries, clock)
    return Rows(
        Aggregates(*(np.concatenate(column) for column in zip(*(row.groups for row in rows), strict=True))),
        [np.concatenate(column) for column in zip(*(row.percentiles for row in rows), strict=True)],
    )


def _first_days(rules: Rules, names: list[str]) -> Ints:
    """Where the first day begins whose rows are whole, for each series."""
    assert rules.since is not None
    zones = [rules.zones.of(name.split("/", 2)[1]) if rules.zones.patterns else "UTC" for name in names]
    starts = {zone: days(rules.since, rules.since, zone)[0] for zone in set(zones)}
    return np.array([starts[zone] for zone in zones], np.int64)


def _count_late(rules: Rules, state: State, points: Points) -> list[Rows]:
    points = points.take(np.lexsort((points.at, points.series)))
    counted = points._replace(flags=points.flags & UNTRUSTED)
    some = aggregate(counted, _starts(rules, state, counted, CALENDAR_DAY), LATE, _no_growth(len(points.at)))
    state.late = merged(state.late, some)
    changed = state.late.take(np.isin(_keys(state.late), _keys(some)))
    return [Rows(changed, [np.full(len(changed.series), np.nan) for _ in percentiles.QUANTILES])]


def _hear(state: State, fresh: Points, received: Ints) -> int:
    """Move the clocks of the series, and return the latest of all, which the gateway's clock told."""
    np.maximum.at(state.heard, fresh.series, received)
    trusted = (fresh.flags & UNTRUSTED) == 0
    np.maximum.at(state.high, fresh.series[trusted], fresh.at[trusted])
    return int(state.heard.max(initial=NEVER))


def _growth(rules: Rules, state: State) -> tuple[Growth, dict[int, tuple[Ints, list[CounterState]]]]:
    """What the points add to counters; and for each counter its points' indexes and the state after each."""
    points = state.points
    growth = _no_growth(len(points.at))
    carries: dict[int, tuple[Ints, list[CounterState]]] = {}
    if not rules.counters:
        return growth, carries
    for index, name in enumerate(state.names):
        rule = rules.counters.get(name.split("/", 2)[2])
        if rule is None:
            continue
        first, end = np.searchsorted(points.series, [index, index + 1])
        which = first + np.flatnonzero(~points.duplicate[first:end])
        carry, after = state.carries.get(index), []
        for place in which:
            carry, made = advance(carry, float(points.value[place]), int(points.at[place]), rule)
            after.append(carry)
            growth.increase[place] = made.increase
            growth.resets[place] = made.event == RESET
            growth.implausible[place] = made.event == IMPLAUSIBLE
        # What comes between two readings changes what the later ones added.
        points.fresh[first:end] |= np.logical_or.accumulate(points.fresh[first:end])
        carries[index] = which, after
    return growth, carries


def _changed(rules: Rules, state: State, growth: Growth) -> list[Rows]:
    """The rows of the buckets that hold a fresh point."""
    rows = []
    for resolution in (MINUTE, HOUR, CALENDAR_DAY):
        start = _starts(rules, state, state.points, resolution)
        touched = _touched(state.points, start)
        points, start, added = state.points.take(touched), start[touched], growth.take(touched)
        groups = aggregate(points, start, resolution, added)
        counted = ~points.duplicate
        if resolution == MINUTE:
            index = np.searchsorted(_keys(groups), _key(points.series, MINUTE, start))
            found = percentiles.of_values(index[counted], points.value[counted], len(groups.series))
        else:
            before = np.isin(_keys(state.open), _keys(groups))
            groups, bins = _combined(state, before, groups, points, start)
            found = percentiles.of_histogram(bins, len(groups.series))
        rows.append(Rows(groups, found))
    return rows


def _combined(
    state: State, which: Bools, groups: Aggregates, points: Points, start: Ints
) -> tuple[Aggregates, Histogram]:
    """Open groups, by a mask, with what newer points of one resolution came to."""
    older = state.open.take(which)
    whole = merged(older, groups)
    keys = _keys(whole)
    kept = state.bins.take(which[state.bins.group])
    renumbered = np.searchsorted(keys, _keys(state.open))
    counted = ~points.duplicate
    resolution = groups.resolution[0] if len(groups.resolution) else HOUR
    place = np.searchsorted(keys, _key(points.series, resolution, start))[counted]
    added = percentiles.histogram(place, points.value[counted])
    kept = kept._replace(group=renumbered[kept.group])
    return whole, percentiles.total(Histogram(*(np.concatenate(pair) for pair in zip(kept, added, strict=True))))


def _fold(
    rules: Rules, state: State, growth: Growth, carries: Mapping[int, tuple[Ints, list[CounterState]]], clock: int
) -> None:
    """Move the frontiers, and fold what lies behind them."""
    state.frontier = _frontiers(rules, state, clock)
    leaving = state.points.at < state.frontier[state.points.series]
    for index, (places, after) in carries.items():
        if gone := int(leaving[places].sum()):
            state.carries[index] = after[gone - 1]
    points, added = state.points.take(leaving), growth.take(leaving)
    for resolution in (HOUR, CALENDAR_DAY):
        start = _starts(rules, state, points, resolution)
        everything = np.ones(len(state.open.series), np.bool_)
        groups = aggregate(points, start, resolution, added)
        state.open, state.bins = _combined(state, everything, groups, points, start)
    state.points = state.points.take(~leaving)
    # An open group is that of the frontier itself: what comes is not older.
    current = np.full(len(state.open.series), NEVER, np.int64)
    place = state.open.series, state.frontier[state.open.series]
    for resolution in (HOUR, CALENDAR_DAY):
        here = state.open.resolution == resolution
        current[here] = _buckets(rules, state.names, place[0][here], place[1][here], resolution)
    state.keep_open(state.open.start >= current)
    state.late = state.late.take(state.late.start > clock - FORGOTTEN_US)
    state.forget(state.heard < clock - FORGOTTEN_US)


def _frontiers(rules: Rules, state: State, clock: int) -> Ints:
    """What is older than this is late: by the series' own trusted clock, and a day later by the gateway's."""
    reached = np.maximum(state.high, state.heard - DAY_US) - rules.lateness_us
    # Who was silent for a day keeps its last minute only; who sends too much keeps its newest points.
    idle = state.heard < clock - DAY_US - rules.lateness_us
    reached = np.where(idle, np.maximum(reached, state.high), reached)
    first = borders(state.points.series) if len(state.points.series) else np.empty(0, np.int64)
    count = np.diff(np.append(first, len(state.points.series)))
    for begin, many in zip(first[count > MOST_POINTS], count[count > MOST_POINTS], strict=True):
        index = state.points.series[begin]
        reached[index] = max(reached[index], state.points.at[begin + many - MOST_POINTS])
    return np.maximum(state.frontier, np.where(reached > NEVER // 2, reached - reached % MINUTE_US, NEVER))


def _touched(points: Points, start: Ints) -> Bools:
    if not len(start):
        return points.fresh
    first = borders(points.series, start)
    any_fresh = np.logical_or.reduceat(points.fresh, first)
    return np.repeat(any_fresh, np.diff(np.append(first, len(start))))


def _starts(rules: Rules, state: State, points: Points, resolution: int) -> Ints:
    return _buckets(rules, state.names, points.series, points.at, resolution)


def _buckets(rules: Rules, names: list[str], series: Ints, at: Ints, resolution: int) -> Ints:
    """The start of the bucket that each instant lies in."""
    if resolution != CALENDAR_DAY:
        size = RESOLUTIONS[NAMES[resolution]]
        return at - at % size
    if not rules.zones.patterns:
        return at - at % DAY_US
    here, starts = np.unique(series), at - at % DAY_US
    zones = np.array([rules.zones.of(names[index].split("/", 2)[1]) for index in here], dtype=np.str_)
    of_point = zones[np.searchsorted(here, series)]
    for zone in set(zones.tolist()) - {"UTC"}:
        which = (of_point == zone) & (at > NEVER)
        if which.any():
            edges = np.array(days(int(at[which].min()), int(at[which].max()), zone), np.int64)
            starts[which] = edges[np.searchsorted(edges, at[which], side="right") - 1]
    return starts


def _keys(groups: Aggregates) -> Ints:
    return _key(groups.series, groups.resolution, groups.start)


def _key(series: Ints, resolution: Ints | int, start: Ints) -> Ints:
    """One number for series, resolution and bucket, in their order. Minutes fit for 8,000 years, and 2^28 series."""
    return ((series * 4 + resolution) << 33) + start // MINUTE_US + (1 << 32)


def _no_growth(length: int) -> Growth:
    return Growth(np.zeros(length), np.zeros(length, np.int64), np.zeros(length, np.int64))
