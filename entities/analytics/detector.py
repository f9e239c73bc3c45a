"""Readings out of the ordinary: far from the usual of their own metric, a sudden jump, or no change where there was some.

The usual is a median, and its spread the median absolute deviation, of a window of earlier readings (Hampel 1974;
Iglewicz and Hoaglin 1993). A reading is compared twice: with the level of the window, and with where the few readings
before it lead, which finds a spike inside a wide daily swing. Far out is also farther than the metric went in its wilder
hours: what it does every day is no alert, however rarely it does it. An alert is raised when several readings are far
out, or one by much, and cleared when they stay near, with a gap between both borders: it does not flap.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from .windows import Extremes, Usual, Window

SECOND_US: Final = 1_000_000
RAISED: Final = "raised"
CLEARED: Final = "cleared"
LEVEL: Final = "level"
JUMP: Final = "jump"
STUCK: Final = "stuck"
KINDS: Final = ("", LEVEL, JUMP, STUCK)
NEARBY: Final = 5
INTERRUPTED: Final = 4.0
_HEAD: Final = struct.Struct("<qqqBIIIIIIdddIII")


@dataclass(frozen=True, slots=True)
class DetectorRule:
    """When is how much too much.

    ``window``: readings that the usual is taken from. ``warm_up``: so many are seen before anything is judged.
    ``high``, ``low``: spreads beyond which a reading is far out, and within which it is near again. ``confirm``: so many
    of the last ``within`` readings (32 at most) must be far out; ``sure``: times ``high`` calm spreads beyond which one
    is enough, 0 = never. ``calm``: readings in a row that clear. ``hold_s``: seconds that both must last. ``relative``: a spread is
    at least this share of the level. ``margin``: times as far as in its wilder hours is far out. ``stuck``:
    equal readings in a row that are an alert, where a metric changed often enough before; 0 = never.
    """

    window: int = 168
    warm_up: int = 48
    high: float = 6.0
    low: float = 3.0
    confirm: int = 2
    within: int = 3
    sure: float = 2.0
    calm: int = 5
    hold_s: float = 0.0
    relative: float = 0.005
    margin: float = 6.0
    stuck: int = 0

    @property
    def block(self) -> int:
        """Readings of which the one farthest out is remembered for long."""
        return max(8, self.window // 4)


class Verdict(NamedTuple):
    """What became of an alert. ``change``: raised or cleared; ``raised_at``: µs, which names the alert.

    ``since``: µs, the first reading of those that decided it. ``score``: spreads from what was expected.
    """

    change: str
    kind: str
    raised_at: int
    at: int
    since: int
    value: float
    score: float
    expected: Usual


class _Expected(NamedTuple):
    """What was expected by one measure. ``calm``: the spread, without what it does in its wilder hours."""

    kind: str
    usual: Usual
    calm: float

    def score(self, value: float) -> float:
        """Spreads from what was expected."""
        return (value - self.usual.median) / self.usual.spread if self.usual.spread else 0.0

    def surely(self, value: float, border: float) -> bool:
        """Whether it is so many of the calm spreads away; never for 0."""
        return 0 < border * self.calm < abs(value - self.usual.median)


class Detector:
    """The memory of one metric of one device, bounded by the window. Times are µs since 1970."""

    def __init__(self, rule: DetectorRule) -> None:
        self._rule = rule
        self.levels = Window(rule.window)
        self.jumps = Window(rule.window)
        self._farthest = Extremes(rule.block)
        self._leaps = Extremes(rule.block)
        self.newest = -(1 << 62)
        self.raised, self.raised_at = "", 0
        self._far = self._near = self._since = 0
        self._same, self._longest, self._step = 0, 0, 0.0
        self._quiet, self._before = NEARBY, 0.0
        self._pace, self._apart = 0.0, 0
        self._base = 0.0  # what the newest reading was compared with

    def take(self, value: float, at: int, judged: bool = True) -> Verdict | None:
        """Fold in a reading that is newer than all before it, and say whether an alert changes.

        ``judged``: False for one that is old news: it tells what is usual, and nothing more.
        """
        verdict = None
        self._time(at)
        level, around = self._expected(value)
        if judged and len(self.levels) >= self._rule.warm_up:
            measures = [level] if self._apart else [level, around]
            verdict = self._judge(value, at, max(measures, key=lambda one: abs(one.score(value))))
        self._remember(value, level.usual.median, around.usual.median)
        self.newest = at
        return verdict

    def _time(self, at: int) -> None:
        """Learn how far apart readings are (Ma, Muthukrishnan and Sandler 2013), and notice where some are missing."""
        self._apart = max(0, self._apart - 1)
        if not self.levels.recent:
            return
        step, factor = float(at - self.newest), 1.05 if len(self.levels) >= self._rule.warm_up else 1.5
        self._pace = self._pace or step
        if step > INTERRUPTED * self._pace:
            self._apart = NEARBY  # what was nearby is long ago
        self._pace = max(1.0, self._pace * factor if step > self._pace else self._pace / factor)

    def _expected(self, value: float) -> tuple[_Expected, _Expected]:
        """The level, and what was to be expected after the readings before."""
        recent, rule = self.levels.recent, self._rule
        level, jump = self.levels.usual(), self.jumps.usual()
        nearby = _middle(recent[-NEARBY:]) if recent else value
        if self._quiet >= NEARBY:
            self._before = nearby
        # Back to where it was before is no second jump, and neither is going on as it went.
        bases = [nearby, self._before]
        if not self._far and len(recent) > NEARBY:
            steps = [new - old for old, new in zip(recent[-NEARBY - 1 : -1], recent[-NEARBY:], strict=True)]
            bases.append(recent[-1] + _middle(steps))
        self._base = base = min(bases, key=lambda one: abs(value - one))
        # A sensor that shows steps is not to be blamed for one; of one that never changed, nobody knows its step.
        least = max(2 * self._step, abs(level.median) * rule.relative)
        found = []
        for kind, median, spread, wildest in (
            (LEVEL, level.median, level.spread, self._farthest.usual),
            (JUMP, base + jump.median, jump.spread, self._leaps.usual),
        ):
            calm = max(spread, least)
            found.append(_Expected(kind, Usual(median, max(calm, wildest * rule.margin / rule.high)), calm))
        return found[0], found[1]

    def _judge(self, value: float, at: int, measure: _Expected) -> Verdict | None:
        rule = self._rule
        kind, score, expected = measure.kind, measure.score(value), measure.usual
        stuck = (
            bool(rule.stuck and self._step) and value == self.levels.recent[-1] and self._same + 2 >= self._patience()
        )
        if self.raised:
            calm = not stuck and value != self.levels.recent[-1] if self.raised == STUCK else abs(score) <= rule.low
            self._near = self._near + 1 if calm else 0
            self._quiet = self._quiet + 1 if calm else 0
            self._since = at if self._near == 1 else self._since
            needed = 1 if self.raised == STUCK else rule.calm
            if self._near < needed or at - self._since < rule.hold_s * SECOND_US:
                return None
            if self.raised == STUCK:
                self._same = 0  # that it stood still for so long is no measure for the next time
            kind, self.raised, self._near = self.raised, "", 0
            return Verdict(CLEARED, kind, self.raised_at, at, self._since, value, score, expected)
        far = abs(score) > rule.high
        self._since = at if far and not self._far else self._since
        self._far = (self._far << 1 | far) & ((1 << rule.within) - 1)
        self._quiet = 0 if far else self._quiet + 1
        enough = self._far.bit_count() >= rule.confirm or measure.surely(value, rule.sure * rule.high)
        decided = far and enough and at - self._since >= rule.hold_s * SECOND_US
        if not stuck and not decided:
            return None
        since = self._since if decided else at
        self.raised, self.raised_at, self._far, self._near = kind if decided else STUCK, at, 0, 0
        return Verdict(RAISED, self.raised, at, at, since, value, score, expected)

    def _patience(self) -> int:
        """Equal readings that are too many: more than it ever showed, by far."""
        return max(self._rule.stuck, 3 * self._longest + 1)

    def _remember(self, value: float, level: float, around: float) -> None:
        if self.levels.recent:
            change = abs(value - self.levels.recent[-1])
            if change:
                self._longest = max(self._longest, self._same + 1)
                self._step = min(self._step, change) if self._step else change
            self._same = 0 if change else self._same + 1
            if self._step and self._same > self._longest:
                return  # standing still for longer than ever teaches nothing about how it moves
            self._learn(value, level, around)
        self.levels.add(value)

    def _learn(self, value: float, level: float, around: float) -> None:
        known = 2 * len(self.levels) >= self._rule.warm_up
        if known:
            self._farthest.add(abs(value - level))
        if not self._apart:
            if known:
                self._leaps.add(abs(value - around))
            self.jumps.add(value - self._base)

    def pack(self) -> bytes:
        """Turn it into bytes."""
        parts = (self.levels.recent, self.jumps.recent, self._farthest.stored, self._leaps.stored)
        head = _HEAD.pack(
            *(self.newest, self.raised_at, self._since, KINDS.index(self.raised), self._far, self._near),
            *(self._same, self._longest, self._quiet, self._apart, self._step, self._before, self._pace),
            *map(len, parts[:-1]),
        )
        numbers = [number for part in parts for number in part]
        return head + struct.pack(f"<{len(numbers)}d", *numbers)

    @classmethod
    def unpack(cls, stored: bytes, rule: DetectorRule) -> Self:
        """Turn the bytes back; the rule may be another one by now."""
        made = cls(rule)
        (newest, raised_at, since, kind, *counts, step, before, pace, levels, jumps, farthest) = _HEAD.unpack_from(
            stored
        )
        numbers = struct.unpack(f"<{(len(stored) - _HEAD.size) // 8}d", stored[_HEAD.size :])
        ends = (levels, levels + jumps, levels + jumps + farthest)
        made.levels, made.jumps = (
            Window(rule.window, numbers[: ends[0]]),
            Window(rule.window, numbers[ends[0] : ends[1]]),
        )
        made._farthest = Extremes(rule.block, numbers[ends[1] : ends[2]])
        made._leaps = Extremes(rule.block, numbers[ends[2] :])
        made.newest, made.raised, made.raised_at = newest, KINDS[kind], raised_at
        made._far, made._near, made._same, made._longest, made._quiet, made._apart = counts
        made._since, made._step, made._before, made._pace = since, step, before, pace
        return made


def _middle(few: list[float]) -> float:
    """The middle one of some numbers."""
    return sorted(few)[len(few) // 2]
