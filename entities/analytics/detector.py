"""Readings out of the ordinary: far from the usual of their own metric, a sudden jump, or no change where there was some.

The usual is a median, and its spread the median absolute deviation, of a window of earlier readings (Hampel 1974;
Iglewicz and Hoaglin 1993). A reading is compared twice: with the level of the window, and by its distance from the few
readings before it, which finds a spike inside a wide daily swing. An alert is raised when readings stay far out, and
cleared when they stay near, with a gap between both borders: it does not flap.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from .windows import Usual, Window

SECOND_US: Final = 1_000_000
RAISED: Final = "raised"
CLEARED: Final = "cleared"
LEVEL: Final = "level"
JUMP: Final = "jump"
STUCK: Final = "stuck"
KINDS: Final = ("", LEVEL, JUMP, STUCK)
NEARBY: Final = 5
_HEAD: Final = struct.Struct("<qqqBIIIIIddI")


@dataclass(frozen=True, slots=True)
class DetectorRule:
    """When is how much too much.

    ``window``: readings that the usual is taken from. ``warm_up``: so many are seen before anything is judged.
    ``high``, ``low``: spreads beyond which a reading is far out, and within which it is near again. ``confirm``,
    ``calm``: readings in a row that raise and that clear. ``hold_s``: seconds that they must last. ``relative``: a spread
    is at least this share of the level. ``stuck``: equal readings in a row that are an alert, where a metric changed
    often enough before; 0 = never.
    """

    window: int = 168
    warm_up: int = 48
    high: float = 6.0
    low: float = 3.0
    confirm: int = 1
    calm: int = 5
    hold_s: float = 0.0
    relative: float = 0.005
    stuck: int = 0


class Verdict(NamedTuple):
    """What became of an alert. ``change``: raised or cleared; ``raised_at``: µs, which names the alert.

    ``since``: µs, the first reading of the row that decided it. ``score``: spreads from what was expected.
    """

    change: str
    kind: str
    raised_at: int
    at: int
    since: int
    value: float
    score: float
    expected: Usual


class Detector:
    """The memory of one metric of one device, bounded by the window. Times are µs since 1970."""

    def __init__(self, rule: DetectorRule) -> None:
        self._rule = rule
        self.levels = Window(rule.window)
        self.jumps = Window(rule.window)
        self.newest = -(1 << 62)
        self.raised, self.raised_at = "", 0
        self._far = self._near = self._since = 0
        self._same, self._longest, self._step = 0, 0, 0.0
        self._quiet, self._before = 0, 0.0

    def take(self, value: float, at: int, judged: bool = True) -> Verdict | None:
        """Fold in a reading that is newer than all before it, and say whether an alert changes.

        ``judged``: False for one that is old news: it tells what is usual, and nothing more.
        """
        verdict = None
        nearby = _nearby(self.levels.recent)
        if judged and len(self.levels) >= self._rule.warm_up:
            verdict = self._judge(value, at, nearby)
        self._remember(value, at, nearby)
        return verdict

    def _judge(self, value: float, at: int, nearby: float) -> Verdict | None:
        rule = self._rule
        kind, score, expected = max(self._scores(value, nearby), key=lambda one: abs(one[1]))
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
        self._far = self._far + 1 if abs(score) > rule.high else 0
        self._quiet = 0 if self._far else self._quiet + 1
        self._since = at if self._far == 1 else self._since
        lasted = self._far >= rule.confirm and at - self._since >= rule.hold_s * SECOND_US
        if not stuck and not (self._far and lasted):
            return None
        since = self._since if self._far else at
        self.raised, self.raised_at, self._far, self._near = kind if self._far else STUCK, at, 0, 0
        return Verdict(RAISED, self.raised, at, at, since, value, score, expected)

    def _scores(self, value: float, nearby: float) -> list[tuple[str, float, Usual]]:
        level, jump = self.levels.usual(), self.jumps.usual()
        # A sensor that shows steps is not to be blamed for one; of one that never changed, nobody knows its step.
        least = max(2 * self._step, abs(level.median) * self._rule.relative)
        level = level._replace(spread=max(level.spread, least))
        if self._quiet >= NEARBY:
            self._before = nearby
        # Back to where it was before is no second jump.
        base = min(nearby, self._before, key=lambda one: abs(value - one))
        around = Usual(base + jump.median, max(jump.spread, least))
        return [
            (kind, (value - usual.median) / usual.spread if usual.spread else 0.0, usual)
            for kind, usual in ((LEVEL, level), (JUMP, around))
        ]

    def _patience(self) -> int:
        """Equal readings that are too many: more than it ever showed, by far."""
        return max(self._rule.stuck, 3 * self._longest + 1)

    def _remember(self, value: float, at: int, nearby: float) -> None:
        if self.levels.recent:
            change = abs(value - self.levels.recent[-1])
            if change:
                self._longest = max(self._longest, self._same + 1)
                self._step = min(self._step, change) if self._step else change
            self._same = 0 if change else self._same + 1
            self.newest = at
            if self._step and self._same > self._longest:
                return  # standing still for longer than ever teaches nothing about how it moves
            self.jumps.add(value - nearby)
        self.newest = at
        self.levels.add(value)

    def pack(self) -> bytes:
        """Turn it into bytes."""
        head = _HEAD.pack(
            *(self.newest, self.raised_at, self._since, KINDS.index(self.raised), self._far, self._near),
            *(self._same, self._longest, self._quiet, self._step, self._before, len(self.levels)),
        )
        numbers = (*self.levels.recent, *self.jumps.recent)
        return head + struct.pack(f"<{len(numbers)}d", *numbers)

    @classmethod
    def unpack(cls, stored: bytes, rule: DetectorRule) -> Self:
        """Turn the bytes back; the rule may be another one by now."""
        made = cls(rule)
        (newest, raised_at, since, kind, *counts, step, before, levels) = _HEAD.unpack_from(stored)
        numbers = struct.unpack(f"<{(len(stored) - _HEAD.size) // 8}d", stored[_HEAD.size :])
        made.levels, made.jumps = Window(rule.window, numbers[:levels]), Window(rule.window, numbers[levels:])
        made.newest, made.raised, made.raised_at = newest, KINDS[kind], raised_at
        made._far, made._near, made._same, made._longest, made._quiet = counts
        made._since, made._step, made._before = since, step, before
        return made


def _nearby(recent: list[float]) -> float:
    """The middle of the last few readings; 0 where there is none."""
    few = sorted(recent[-NEARBY:])
    return few[len(few) // 2] if few else 0.0
