"""Where a job stands in the log: what waits for it, for how long, and when retention will have passed that.

Retention does not wait for jobs. So whoever runs them looks here, whether the job runs or not.
"""

from __future__ import annotations

from typing import NamedTuple

from ...entities.position import Partition, Position
from ...use_cases.ports.log_ranges import LogRanges
from .places import Offsets, beginning, places


class Standing(NamedTuple):
    """``waiting``: messages. ``age_ms``: for how long the oldest of them waits. ``lost``: messages that went unread.

    ``left_ms``: until the oldest goes, at the latest, if the log is filled as it was; None where nothing waits.
    """

    waiting: int
    age_ms: int
    left_ms: int | None
    lost: int

    @property
    def is_behind(self) -> bool:
        """Whether more than half of the time is over in which the oldest message can be read."""
        return self.left_ms is not None and self.left_ms < self.age_ms


def standing(ranges: LogRanges, found: Offsets, now: int, longest_ms: int) -> Standing:
    """Where somebody stands who has read up to ``found``.

    ``now``: ms since 1970. ``longest_ms``: for how long the log keeps messages. Where it has removed some already, what
    it holds counts, if that is less: then it keeps as much as it may, not as long. Raises LogUnavailable, UnknownDomain.
    """
    waiting = age = lost = 0
    left: int | None = None
    for partition, place in places(found).items():
        bounds, first = ranges.bounds(partition), beginning(ranges, partition)
        lost += max(0, first.offset - place.offset)
        start = max(place, first)
        if start.offset >= bounds.last.offset:
            continue
        waiting += bounds.last.offset - start.offset
        kept = longest_ms
        if first.offset > 0 and (oldest := _taken(ranges, partition, first, bounds.last)) is not None:
            kept = min(kept, now - oldest)
        taken = _taken(ranges, partition, start, bounds.last)
        own = 0 if taken is None else max(0, now - taken)
        age = max(age, own)
        left = max(0, kept - own) if left is None else min(left, max(0, kept - own))
    return Standing(waiting, age, left, lost)


def _taken(ranges: LogRanges, partition: Partition, after: Position, upto: Position) -> int | None:
    """When the log took the first message behind a position (ms); None where there is none."""
    pieces = ranges.read(partition, after, upto)
    return next((entry.appended_at for piece in pieces for entry in piece.entries), None)
