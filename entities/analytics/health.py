"""How a device is: when it was heard of, what it left out, whether it is silent, and where its battery is going.

Each is measured by itself: the usual distance of its own messages says what a gap is, and after how long it is silent.
Of a device that sends several messages at once it is that of its bursts, and a device that takes on another pace changes
its habit: gaps that are none by the new one count no more, and are forgotten once all that is remembered is of the new
one. Times are µs since 1970. ``received`` is the gateway's clock, ``at`` the time of the measurement.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Self

SECOND_US: Final = 1_000_000
HOUR_US: Final = 3_600 * SECOND_US
DAY_US: Final = 24 * HOUR_US
INTERVALS: Final = 33
LEAST_INTERVALS: Final = 5
# A pause is so many times the lower quartile of the distances, since of pairs half of the distances are pauses.
PAUSE: Final = 10
PAUSES: Final = 9
LEAST_PAUSES: Final = 3
ALIKE: Final = 2  # from half of their median to twice their median
MOST_BURST: Final = 4  # times the usual number of messages
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

    ``intervals``: distances of its last messages, those of gaps too. ``pauses``: the last ones, each with its length and
    the number of messages before it; ``burst`` and ``burst_from``: how many came since, and from when on. ``gaps``: the
    newest, each with begin and end; ``doubted``: what counted as one and does not by the present habit; ``older_gaps`` and
    ``older_gap_us``: how many there were before, and how long. ``battery``: (time, value), an hour apart at least.
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
    pauses: list[list[int]] = field(default_factory=list)
    burst: int = 0
    burst_from: int = 0
    gaps: list[list[int]] = field(default_factory=list)
    doubted: list[list[int]] = field(default_factory=list)
    older_gaps: int = 0
    older_gap_us: int = 0
    battery: list[list[float]] = field(default_factory=list)
    slope: float | None = None
    level: float | None = None
    silent_since: int = 0

    @property
    def cadence(self) -> int | None:
        """The usual distance of two messages, or of two bursts of them, µs; None while it is not known."""
        habit = self._habit()
        return None if habit is None else habit[0]

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
        self._remember(at)
        distance = at - self.newest
        if (distance > SECOND_US or self.gaps or self.doubted) and (limits := self._limits(rule)):
            found = [[self.newest, at]] if distance > limits[0] else []
            self._judge([*self.doubted, *self.gaps, *found], *limits)
        self.newest = at

    def _remember(self, at: int) -> None:
        """Remember how long nothing came, and whether that was a pause."""
        distance = at - self.newest
        self.intervals = [*self.intervals[1 - INTERVALS :], distance]
        self.burst += 1
        if self._is_pause(distance):
            self.pauses = [*self.pauses[1 - PAUSES :], [distance, self.burst]]
            self.burst, self.burst_from = 0, at
        elif self.pauses and at - self.burst_from > max(length for length, _ in self.pauses):
            self.pauses = []  # it has been sending for longer than it paused: these are no bursts

    def _is_pause(self, distance: int) -> bool:
        if distance <= max(PAUSE * min(self.intervals), SECOND_US):  # less than a second is no gap either
            return False
        return distance > PAUSE * sorted(self.intervals)[len(self.intervals) // 4]

    def _habit(self) -> tuple[int, int] | None:
        """The usual distance, and the least one that is usual by a part of what is remembered, µs."""
        if len(self.intervals) < LEAST_INTERVALS:
            return None
        ordered = sorted(self.intervals)
        low = ordered[len(ordered) // 4]
        if not (alike := self._alike()):
            return _median(ordered), low
        pause = _median([length for length, _ in self.pauses])
        return pause, pause if len(alike) == PAUSES else min(pause, low)

    def _alike(self) -> list[int]:
        """The sizes of its bursts that are alike, as are the pauses behind them; none, where it does not send in bursts."""
        if len(self.pauses) < LEAST_PAUSES:
            return []
        lengths, sizes = zip(*self.pauses, strict=True)
        most = max(INTERVALS, MOST_BURST * _median(sizes))
        if max(self.burst, sizes[-1]) > most:
            return []
        pause = _median(lengths)
        alike = [size for length, size in self.pauses if pause <= ALIKE * length <= ALIKE**2 * pause and size <= most]
        # A few outages soon after each other look like pauses between bursts: until there were nine, bursts are to hold
        # more messages than came otherwise, or as many as are remembered.
        lasting = len(sizes) == PAUSES or sum(alike) >= min(INTERVALS, sum(sizes) - sum(alike))
        mostly = len(alike) >= LEAST_PAUSES and 4 * len(alike) >= 3 * len(sizes)
        return alike if lasting and mostly else []

    def fill(self, at: int, rule: HealthRule) -> None:
        """Fold in an earlier sample: it may lie in a gap."""
        self.first_at = min(self.first_at, at)
        if not (self.gaps or self.doubted) or (limits := self._limits(rule)) is None:
            return
        for gaps, limit in zip((self.gaps, self.doubted), limits, strict=True):
            for index, (begin, end) in enumerate(gaps):
                if begin < at < end:
                    parts = [[begin, at], [at, end]]
                    gaps[index : index + 1] = [part for part in parts if part[1] - part[0] > limit]
                    self._judge([*self.doubted, *self.gaps], *limits)
                    return

    def _limits(self, rule: HealthRule) -> tuple[int, int] | None:
        """How long a gap is at least, by the usual distance and by the least one, µs."""
        if (habit := self._habit()) is None:
            return None
        usual, least = (int(max(rule.gap * distance, SECOND_US)) for distance in habit)
        return usual, least

    def _judge(self, spans: list[list[int]], usual: int, least: int) -> None:
        """Tell what counts as a gap by the present habit, and forget what would be none by any that is remembered."""
        spans = sorted(span for span in spans if span[1] - span[0] > least)
        self.doubted = [span for span in spans if span[1] - span[0] <= usual][-MOST_GAPS:]
        gaps = [span for span in spans if span[1] - span[0] > usual]
        self.gaps = gaps[-MOST_GAPS:]
        for begin, end in gaps[:-MOST_GAPS]:
            self.older_gaps, self.older_gap_us = self.older_gaps + 1, self.older_gap_us + end - begin

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


def _median(some: Sequence[int]) -> int:
    """The upper one, where there are two."""
    return sorted(some)[len(some) // 2]


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
