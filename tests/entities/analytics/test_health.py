"""A device's health: its own habit says what a gap is, and when it is silent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotsphere.entities.analytics.health import BATTERY_POINTS, INTERVALS, MOST_GAPS, Health, HealthRule, slope_per_day

SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
RULE = HealthRule()


def told(times: list[int], received: list[int] | None = None) -> Health:
    """A device that measured at these seconds, and was heard of then."""
    health = Health(times[0] * SECOND, times[0] * SECOND, times[0] * SECOND)
    for offset, (at, heard) in enumerate(zip(times, received or times, strict=True)):
        health.take(at * SECOND, heard * SECOND, offset, True, RULE)
    return health


def test_the_habit_is_the_median_distance() -> None:
    assert told([0, 10, 20, 30, 40]).cadence is None
    health = told([0, 10, 20, 30, 41, 50])
    assert (health.cadence, health.messages, health.last_offset) == (10 * SECOND, 6, 5)
    assert health.uptime == 1.0


def test_a_hole_is_a_gap_and_lowers_the_uptime() -> None:
    health = told([*range(0, 110, 10), *range(200, 300, 10)])
    assert [[begin // SECOND, end // SECOND] for begin, end in health.gaps] == [[100, 200]]
    assert health.gap_us == 100 * SECOND
    assert health.uptime == pytest.approx(1 - 100 / 290)
    assert health.cadence == 10 * SECOND  # the hole is no habit


@pytest.mark.parametrize("size", [2, 3, 5, 10])
def test_who_sends_several_messages_at_once_has_the_habit_of_its_bursts(size: int) -> None:
    """A device with a topic for each of its sensors, a message a second, every five minutes."""
    health = told([burst * 300 + message for burst in range(40) for message in range(size)])
    assert health.cadence == (300 - size + 1) * SECOND
    assert (health.gaps, health.uptime) == ([], 1.0)
    assert health.patience(RULE) == 5 * health.cadence
    begin = health.newest
    health.take(begin + 1_800 * SECOND, begin + 1_800 * SECOND, 999, True, RULE)
    assert health.gaps == [[begin, begin + 1_800 * SECOND]]


def test_pauses_that_are_not_alike_are_gaps_and_no_habit() -> None:
    times, at = [0], 0
    for pause in (120, 900, 300, 4_000):
        for distance in (*[10] * 7, pause):
            at += distance
            times.append(at)
    health = told(times)
    assert health.cadence == 10 * SECOND
    assert [end - begin for begin, end in health.gaps] == [pause * SECOND for pause in (120, 900, 300, 4_000)]


def test_who_takes_on_another_pace_changes_its_habit_and_what_was_a_gap_by_the_old_one_is_none() -> None:
    quick = list(range(0, 1_000, 10))
    health = told([*quick, *range(1_050, 1_050 + 10 * 60, 60)])
    assert health.cadence == 10 * SECOND
    assert len(health.gaps) == 10
    health = told([*quick, *range(1_050, 1_050 + 40 * 60, 60)])
    assert (health.cadence, health.gaps, health.uptime) == (60 * SECOND, [], 1.0)


def test_what_comes_late_fills_its_gap() -> None:
    live = [*range(0, 110, 10), *range(200, 300, 10)]
    backlog = list(range(110, 200, 10))
    for order in (backlog, backlog[::-1]):
        health = told(live + order, live + [300] * len(order))
        assert (health.gaps, health.uptime, health.newest) == ([], 1.0, 290 * SECOND)
    health = told([*live, 150], [*live, 300])
    assert [[begin // SECOND, end // SECOND] for begin, end in health.gaps] == [[100, 150], [150, 200]]


def test_silence_is_by_its_own_habit() -> None:
    quick, slow = told(list(range(0, 1_000, 20))), told(list(range(0, 36_000, 600)))
    assert (quick.patience(RULE), slow.patience(RULE)) == (100 * SECOND, 3_000 * SECOND)
    assert told([0]).patience(RULE) == HOUR
    assert not quick.fall_silent(quick.heard + 100 * SECOND, RULE)
    assert quick.fall_silent(quick.heard + 101 * SECOND, RULE)
    assert not quick.fall_silent(quick.heard + 500 * SECOND, RULE)  # it was told already
    assert quick.silent_since == 980 * SECOND
    assert quick.take(2_000 * SECOND, 2_000 * SECOND, 99, True, RULE)
    assert quick.silent_since == 0


def test_a_message_of_before_the_silence_does_not_end_it() -> None:
    health = told(list(range(0, 1_000, 20)))
    health.fall_silent(DAY, RULE)
    assert not health.take(500 * SECOND, 980 * SECOND, 99, True, RULE)
    assert health.silent_since == 980 * SECOND


def test_a_clock_that_is_not_believed_makes_no_gap() -> None:
    health = told(list(range(0, 200, 10)))
    health.take(10_000 * SECOND, 10_000 * SECOND, 99, False, RULE)
    assert (health.gaps, health.newest, health.heard) == ([], 190 * SECOND, 10_000 * SECOND)
    assert health.untrusted == 1


def test_the_battery_goes_down_by_so_much_a_day() -> None:
    health = told([0, 10])
    for hour in range(100):
        health.charge(hour * HOUR, 90 - hour * 0.1)
        health.charge(hour * HOUR + SECOND, 90 - hour * 0.1)  # an hour apart is enough
    assert len(health.battery) == BATTERY_POINTS
    assert health.slope == pytest.approx(-2.4)
    assert health.level == pytest.approx(80.1)


def test_a_few_wild_values_do_not_move_the_trend() -> None:
    points = [[hour * HOUR, 90 - hour * 0.1] for hour in range(30)]
    for index in (3, 11, 17, 25):
        points[index][1] = 5.0
    assert slope_per_day(points) == pytest.approx(-2.4, abs=0.05)
    assert slope_per_day(points[:2]) is None
    assert slope_per_day([[0, 1.0]] * 5) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.booleans()), max_size=200))
def test_memory_is_bounded_and_survives_storing(messages: list[tuple[int, int, bool]]) -> None:
    health = Health(0, 0, 0)
    for offset, (at, received, trusted) in enumerate(messages):
        health.take(at * SECOND, received * SECOND, offset, trusted, RULE)
        assert 0.0 <= health.uptime <= 1.0
    assert len(health.gaps) <= MOST_GAPS + 1
    assert len(health.intervals) <= INTERVALS
    assert Health.unpack(health.pack()) == health
