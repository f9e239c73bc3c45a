"""How a device is: when it was heard of, what it left out, whether it is silent, and where its battery is going.

Each is measured by itself: the usual distance of its own messages says what a gap is, and after how long it is silent.
Of a device that sends several messages at once it is that of its bursts, and a device that takes on another pace changes
its habit: gaps that are none by the new one are forgotten. Times are µs since 1970. ``received`` is the gateway's clock,
``at`` the time of the measurement.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Self

SECOND_US: Final = 1_000_000
HOUR_US: Final = 3_600 * SECOND_US
DAY_US: Final = 24 * HOUR_US
INTERVALS: Final = 33
LEAST_INTERVALS: Final = 5
# A pause is so many times the median distance; three that are alike (by their quartiles) are between bursts.
PAUSE: Final = 10
LEAST_PAUSES: Final = 3
ALIKE: Final = 2
MOST_GAPS: Final = 32
BATTERY_POINTS: Final = 49


@dataclass(frozen=True, slots=True)
class HealthRule:
    """What is too long. ``gap``, ``silent``: that many times the usual distance; ``least_s``: and at least so long.

    ``unknown_s``: after so long a device is silent whose usual distance is not known yet.
    """

    gap: float = 3.0
    silent: float = 5.0
    least_s: float = 60.0
    unknown_s: float = 3_600.0


@dataclass(slots=True)
class Health:
    """The memory of one device, of bounded size.

    ``intervals``: distances of its last messages, those of gaps too. ``gaps``: the newest, each with begin and end;
    ``older_gaps`` and ``older_gap_us``: how many there were before, and how long. ``battery``: (time, value), an hour
    apart at least.
    ``silent_since``: when it was last heard of before it fell silent; 0 where it is not.
    """

    first_at: int
    newest: int
    heard: int
    messages: int = 0
    untrusted: int = 0
    first_offset: int = 0
    last_offset: int = 0
    intervals: list[int] = field(default_factory=list)
    gaps: list[list[int]] = field(default_factory=list)
    older_gaps: int = 0
    older_gap_us: int = 0
    battery: list[list[float]] = field(default_factory=list)
    slope: float | None = None
    level: float | None = None
    silent_since: int = 0

    @property
    def cadence(self) -> int | None:
        """The usual distance of two messages, or of two bursts of them, µs; None while it is not known."""
        if len(self.intervals) < LEAST_INTERVALS:
            return None
        ordered = sorted(self.intervals)
        middle = ordered[len(ordered) // 2]
        if ordered[-1] <= PAUSE * middle:
            return middle
        pauses = ordered[bisect_right(ordered, PAUSE * middle) :]
        count = len(pauses)
        if count < LEAST_PAUSES or pauses[3 * count // 4] > ALIKE * pauses[count // 4]:
            return middle
        return pauses[count // 2]

    @property
    def gap_us(self) -> int:
        """How long all gaps were together."""
        return self.older_gap_us + sum(end - begin for begin, end in self.gaps)

    @property
    def uptime(self) -> float:
        """The share of the time from its first to its newest measurement that lies in no gap."""
        span = self.newest - self.first_at
        return 1.0 if span <= 0 else max(0.0, 1 - self.gap_us / span)

    def patience(self, rule: HealthRule) -> int:
        """After how long without a message it is silent, µs."""
        cadence = self.cadence
        if cadence is None:
            return int(rule.unknown_s * SECOND_US)
        return int(max(rule.silent * cadence, rule.least_s * SECOND_US))

    def take(self, at: int, received: int, offset: int, trusted: bool, rule: HealthRule) -> bool:
        """Fold in a message, and say whether a silence ended with it."""
        self.messages += 1
        self.untrusted += not trusted
        self.first_offset = min(self.first_offset, offset)
        self.last_offset = max(self.last_offset, offset)
        ended = bool(self.silent_since) and received > self.heard
        self.heard = max(self.heard, received)
        if ended:
            self.silent_since = 0
        if trusted or self.untrusted == self.messages:
            self._place(at, rule)
        return ended

    def _place(self, at: int, rule: HealthRule) -> None:
        """Find the message's place in time: at the end, where it may leave a gap, or in a gap that it fills."""
        if at <= self.newest:
            self.fill(at, rule)
            return
        self.intervals = [*self.intervals[1 - INTERVALS :], at - self.newest]
        limit = self._longest(rule)
        if limit is not None:
            if at - self.newest > limit:
                self.gaps.append([self.newest, at])
            self.gaps = [gap for gap in self.gaps if gap[1] - gap[0] > limit]
            if len(self.gaps) > MOST_GAPS:
                begin, end = self.gaps.pop(0)
                self.older_gaps, self.older_gap_us = self.older_gaps + 1, self.older_gap_us + end - begin
        self.newest = at

    def fill(self, at: int, rule: HealthRule) -> None:
        """Fold in an earlier sample: it may lie in a gap."""
        self.first_at = min(self.first_at, at)
        limit = self._longest(rule) or 0
        for index, (begin, end) in enumerate(self.gaps):
            if begin < at < end:
                parts = [[begin, at], [at, end]]
                self.gaps[index : index + 1] = [part for part in parts if part[1] - part[0] > limit]
                return

    def _longest(self, rule: HealthRule) -> int | None:
        cadence = self.cadence
        return None if cadence is None else int(max(rule.gap * cadence, SECOND_US))

    def charge(self, at: int, value: float) -> None:
        """Fold in what the battery shows."""
        self.level = value
        if self.battery and at - self.battery[-1][0] < HOUR_US:
            return
        self.battery = [*self.battery[1 - BATTERY_POINTS :], [at, value]]
        self.slope = slope_per_day(self.battery)

    def fall_silent(self, now: int, rule: HealthRule) -> bool:
        """Whether it falls silent now."""
        if self.silent_since or now - self.heard <= self.patience(rule):
            return False
        self.silent_since = self.heard
        return True

    def pack(self) -> bytes:
        """Turn it into bytes."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, stored: bytes) -> Self:
        """Turn the bytes back."""
        return cls(**json.loads(stored))


def slope_per_day(points: Sequence[Sequence[float]]) -> float | None:
    """The change in a day, as the median of the slopes between all pairs (Theil 1950, Sen 1968); None for less than 3.

    A third of the points may be wild, such as right after a change of the battery.
    """
    if len(points) < 3:
        return None
    slopes = sorted(
        (value - earlier) / (at - before) * DAY_US
        for index, (at, value) in enumerate(points)
        for before, earlier in points[:index]
        if at > before
    )
    return slopes[len(slopes) // 2] if slopes else None
