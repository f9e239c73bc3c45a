"""Growth of counters: wraps, resets, glitches and values that cannot be; and that it does not matter where one cuts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.entities.analytics.counter import CounterRule, CounterState, advance

SECOND = 1_000_000
PLAIN = CounterRule()


def steps(values: Sequence[float], rule: CounterRule = PLAIN, apart: int = 10 * SECOND) -> list[tuple[float, str]]:
    state, made = None, []
    for number, value in enumerate(values):
        state, step = advance(state, value, number * apart, rule)
        made.append((round(step.increase, 6), step.event))
    return made


def test_growth_is_the_difference() -> None:
    assert steps([5, 7.5, 7.5, 10]) == [(0, "first"), (2.5, "grew"), (0, "grew"), (2.5, "grew")]


def test_a_wrap_goes_on_below_the_modulus() -> None:
    rule = CounterRule(modulus=838_860.7)
    assert steps([838_831.0, 838_857.6, 10.2], rule) == [(0, "first"), (26.6, "grew"), (13.3, "rollover")]


def test_a_fall_from_far_below_the_modulus_is_a_reset() -> None:
    assert steps([100, 3], CounterRule(modulus=838_860.7)) == [(0, "first"), (3, "reset")]
    assert steps([999, 1_200, 3], CounterRule(modulus=1_000))[2] == (3, "reset")  # it never showed its modulus


def test_a_wrap_that_is_more_than_can_be_is_a_reset() -> None:
    rule = CounterRule(modulus=1_000, maximum=360)  # one in ten seconds
    assert steps([999.5, 0.2], rule)[1] == (0.7, "rollover")
    assert steps([990, 0.2], rule)[1] == (0.2, "reset")


def test_a_total_that_comes_back_books_its_growth_only() -> None:
    assert steps([15_508_510, 0, 15_508_511]) == [(0, "first"), (0, "reset"), (1, "recovered")]
    assert steps([15_508_510, 0, 2, 15_508_515])[1:] == [(0, "reset"), (2, "grew"), (3, "recovered")]
    assert steps([15_508_510, 0, 0, 15_508_511, 15_508_513])[2:] == [(0, "grew"), (1, "recovered"), (2, "grew")]
    assert steps([1_000, 3, 1, 1_002])[1:] == [(3, "reset"), (1, "reset"), (0, "recovered")]


def test_a_meter_that_was_replaced_passes_the_old_total_step_by_step() -> None:
    values = [8, 10, 0, 2, 4, 6, 8, 10, 12, 14]
    assert [increase for increase, _ in steps(values)] == [0, 2, 0, 2, 2, 2, 2, 2, 2, 2]


def test_a_glitch_above_the_maximum_is_not_believed() -> None:
    rule = CounterRule(maximum=3_600)
    assert steps([5, 6, 1e9, 7, 8], rule)[2:] == [(0, "implausible"), (1, "grew"), (1, "grew")]


def test_a_total_that_stays_after_a_jump_is_believed_at_the_second_sight() -> None:
    rule = CounterRule(maximum=3_600)
    assert steps([5, 1e6, 1e6 + 1, 1e6 + 3], rule)[1:] == [(0, "implausible"), (1, "grew"), (2, "grew")]


def test_a_long_silence_lets_it_grow_more() -> None:
    rule = CounterRule(maximum=3_600)
    assert steps([0, 600], rule, apart=600 * SECOND)[1] == (600, "grew")
    assert steps([0, 601], rule, apart=600 * SECOND)[1] == (0, "implausible")
    assert steps([0, 1], rule, apart=0)[1] == (1, "grew")


VALUES = st.lists(st.one_of(st.floats(0, 1e9), st.integers(0, 20).map(float)), max_size=40)
RULES = st.builds(
    CounterRule,
    modulus=st.one_of(st.none(), st.floats(1, 1e9)),
    maximum=st.one_of(st.none(), st.floats(0.1, 1e9)),
)


@given(VALUES, RULES)
def test_growth_is_never_negative(values: list[float], rule: CounterRule) -> None:
    assert all(increase >= 0 for increase, _ in steps(values, rule))


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=30))
def test_a_counter_that_only_grows_grows_by_last_less_first(values: list[float]) -> None:
    values.sort()
    assert sum(increase for increase, _ in steps(values)) == pytest.approx(values[-1] - values[0], abs=1e-4)


@given(VALUES, RULES, st.integers(0, 40))
def test_it_does_not_matter_where_a_sequence_is_cut(values: list[float], rule: CounterRule, cut: int) -> None:
    """The state is all that is carried over: a step depends on nothing else."""
    state: CounterState | None = None
    made: list[tuple[float, str]] = []
    for part in (values[:cut], values[cut:]):
        for value in part:
            state, step = advance(state, value, len(made) * 10 * SECOND, rule)
            made.append((round(step.increase, 6), step.event))
        state = state and CounterState(*(getattr(state, name) for name in CounterState.__slots__))  # stored and read
    assert made == steps(values, rule)
