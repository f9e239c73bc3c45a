"""How much a counter grew between two readings: over wraps, resets, glitches and values that cannot be.

A meter shows a total. What people want is its growth, and that is never negative. Readings are folded in the order of
their (UTC) time; the state carries all that the next one needs, so it does not matter where a sequence is cut.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

HOUR_US: Final = 3_600_000_000
GREW: Final = "grew"
FIRST: Final = "first"
ROLLOVER: Final = "rollover"
RESET: Final = "reset"
RECOVERED: Final = "recovered"
IMPLAUSIBLE: Final = "implausible"


@dataclass(frozen=True, slots=True)
class CounterRule:
    """What is known of a counter. ``modulus``: it shows 0 instead of this. ``maximum``: the most it can grow in an hour."""

    modulus: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class CounterState:
    """What is to be remembered of the readings so far; times are µs since 1970.

    ``value``, ``at``: the last one that was believed. ``peak``, ``peak_at``: the last one before a reset that may yet
    turn out to be a glitch; ``booked``: the growth since then. ``doubted``, ``doubted_at``: the last one that was not
    believed: the next one tells whether it was right.
    """

    value: float
    at: int
    peak: float | None = None
    peak_at: int = 0
    booked: float = 0.0
    doubted: float | None = None
    doubted_at: int = 0


class Step(NamedTuple):
    """What a reading adds. ``event``: one of the words above."""

    increase: float
    event: str


def advance(state: CounterState | None, value: float, at: int, rule: CounterRule) -> tuple[CounterState, Step]:
    """Fold in one reading, which is not older than the one before it."""
    if state is None:
        return CounterState(value, at), Step(0.0, FIRST)
    growth, event = _growth(state, value, at, rule)
    if _believed(growth, at - state.at, rule):
        return _accepted(state, value, at, Step(growth, event))
    if state.doubted is not None and value - state.doubted >= 0:
        # Twice in a row is no glitch: the meter was replaced or set. Nobody knows what it counted meanwhile.
        growth = value - state.doubted
        if _believed(growth, at - state.doubted_at, rule):
            return CounterState(value, at), Step(growth, GREW)
    return replace(state, doubted=value, doubted_at=at), Step(0.0, IMPLAUSIBLE)


def _growth(state: CounterState, value: float, at: int, rule: CounterRule) -> tuple[float, str]:
    """The growth by the likeliest reading of the two values, and what that is called."""
    if value < state.value:
        if rule.modulus is not None and value < rule.modulus:
            wrapped = value - state.value + rule.modulus
            # Who wraps was near the top; a fall from the lower half is a reset, unless the growth is known to fit.
            limit = rule.modulus / 2 if rule.maximum is None else _limit(at - state.at, rule.maximum)
            if 0 <= wrapped <= limit:
                return wrapped, ROLLOVER
        return max(value, 0.0), RESET
    if state.peak is not None and value >= state.peak and _jumped(state, value, at, rule):
        return max(value - state.peak - state.booked, 0.0), RECOVERED
    return value - state.value, GREW


def _jumped(state: CounterState, value: float, at: int, rule: CounterRule) -> bool:
    """Whether the total of before the reset came back, instead of being reached again step by step."""
    assert state.peak is not None
    rise = value - state.value
    if rule.maximum is not None:
        return rise > _limit(at - state.at, rule.maximum)
    return rise > state.peak / 2 and value - state.peak < rise / 2


def _believed(growth: float, elapsed: int, rule: CounterRule) -> bool:
    return rule.maximum is None or growth <= _limit(elapsed, rule.maximum)


def _limit(elapsed: int, maximum: float) -> float:
    # Two readings of the same second may be one step of the meter apart.
    return maximum * max(elapsed, 1_000_000) / HOUR_US


def _accepted(state: CounterState, value: float, at: int, step: Step) -> tuple[CounterState, Step]:
    if step.event == RESET:
        if state.peak is not None and state.peak > state.value:  # it fell again before it recovered
            booked = state.booked + step.increase
            return CounterState(value, at, state.peak, state.peak_at, booked), step
        return CounterState(value, at, state.value, state.at, step.increase), step
    if step.event == GREW and state.peak is not None and value < state.peak:
        return CounterState(value, at, state.peak, state.peak_at, state.booked + step.increase), step
    return CounterState(value, at), step
