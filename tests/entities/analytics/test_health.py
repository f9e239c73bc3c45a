"""A device's health: its own habit says what a gap is, and when it is silent."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iotsphere.entities.analytics.health import (
    BATTERY_POINTS,
    INTERVALS,
    MOST_GAPS,
    PAUSES,
    Health,
    HealthRule,
    slope_per_day,
)
from tests.support.habits import followed

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


def bursts(size: int, rounds: int, out: Collection[int] = ()) -> Iterator[int]:
    """Times, µs, of a device that sends so many messages 20 ms apart every five minutes, but an hour after some bursts."""
    begin = 0
    for number in range(rounds):
        yield from range(begin, begin + size * 20_000, 20_000)
        begin += HOUR if number in out else 300 * SECOND


def silences(times: Iterable[int], health: Health) -> list[int]:
    """When it would have been told silent, while these come, in whole minutes."""
    told = []
    for offset, at in enumerate(times):
        if health.fall_silent(at, RULE):
            told.append(health.silent_since // (60 * SECOND))
        health.take(at, at, offset, True, RULE)
    return told


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 200), st.integers(6, 30))
@example(12, 20)
@example(17, 20)
def test_bursts_of_any_size_are_a_habit_after_three_and_one_outage_changes_nothing(size: int, outage: int) -> None:
    health = Health(0, 0, 0)
    told = silences(bursts(size, 40, {outage}), health)
    assert [minute for minute in told if minute > 10] == [outage * 5]
    assert health.cadence == 300 * SECOND - (size - 1) * 20_000
    assert health.gaps == [[outage * 300 * SECOND + (size - 1) * 20_000, outage * 300 * SECOND + HOUR]]
    assert health.uptime == pytest.approx(1 - 3_600 / (38 * 300 + 3_600), abs=0.001)


@pytest.mark.parametrize("outages", [3, 4, 6])
def test_a_few_outages_of_who_sends_evenly_stay_gaps(outages: int) -> None:
    even = [1] * 200 + [50] + [1] * 180
    times = list(accumulate([*even, *[3_600, 1, 1, 1] * outages], initial=0))
    health = told(times)
    assert [(end - begin) // SECOND for begin, end in health.gaps] == [50, *[3_600] * outages]
    assert (health.cadence, health.patience(RULE)) == (SECOND, 60 * SECOND)
    assert health.uptime == pytest.approx(1 - (50 + 3_600 * outages) / times[-1])


def test_gaps_of_before_a_habit_of_bursts_come_back_with_the_old_habit_unless_it_lasted() -> None:
    def went(pauses: int, evenly: int) -> Health:
        return told(
            list(accumulate([*[1] * 200, 50, *[1] * 180, *[3_600, 1, 1, 1] * pauses, *[1] * evenly], initial=0))
        )

    for pauses, evenly, count, cadence in ((9, 0, 0, 3_600), (9, 40, 9, 1), (12, 0, 0, 3_600), (12, 40, 0, 1)):
        health = went(pauses, evenly)
        assert (len(health.gaps), health.cadence) == (count, cadence * SECOND)


def test_bursts_are_a_habit_no_more_once_it_sends_for_longer_than_it_paused() -> None:
    sent = list(accumulate([*[1, 1, 1, 300] * 20, *[1] * 400, 300, *[1] * 20], initial=0))
    health = told(sent)
    assert (health.cadence, health.pauses) == (SECOND, [[300 * SECOND, 401]])
    assert [(end - begin) // SECOND for begin, end in health.gaps] == [300]


@pytest.mark.parametrize("backwards", [False, True])
def test_what_comes_late_and_seldom_into_a_long_gap_keeps_the_memory_bounded(backwards: bool) -> None:
    live = [*range(40), DAY // SECOND]
    late = list(range(44, DAY // SECOND, 40))
    health = told(live + late[::-1] if backwards else live + late, live + [live[-1]] * len(late))
    assert len(health.gaps) == MOST_GAPS
    assert len(health.pack()) < 2_000
    assert health.gap_us == (live[-1] - 39) * SECOND
    # From the end on it stops where the rest of the gap has become one of the older ones.
    assert health.older_gaps == (1 if backwards else len(late) + 1 - MOST_GAPS)


def test_a_memory_of_before_pauses_were_remembered_is_read() -> None:
    stored = json.loads(told([0, 10, 20, 30, 40, 50, 150]).pack())
    for name in ("pauses", "burst", "burst_from", "doubted"):
        del stored[name]
    stored["gaps"] = [[number * HOUR, number * HOUR + 100 * SECOND] for number in range(-100, 0)]
    health = Health.unpack(json.dumps(stored).encode())
    health.take(160 * SECOND, 160 * SECOND, 9, True, RULE)
    assert (health.cadence, len(health.gaps), health.older_gaps) == (10 * SECOND, MOST_GAPS, 100 - MOST_GAPS)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.booleans()), max_size=200))
def test_memory_is_bounded_and_survives_storing(messages: list[tuple[int, int, bool]]) -> None:
    health = Health(0, 0, 0)
    for offset, (at, received, trusted) in enumerate(messages):
        health.take(at * SECOND, received * SECOND, offset, trusted, RULE)
        assert 0.0 <= health.uptime <= 1.0
        assert max(len(health.gaps), len(health.doubted)) <= MOST_GAPS
    assert len(health.intervals) <= INTERVALS
    assert len(health.pauses) <= PAUSES
    assert Health.unpack(health.pack()) == health


@st.composite
def lives(draw: st.DrawFn) -> list[int]:
    """Times of messages, µs, in the order of arrival: bursts, paces that change, outages, and messages that come late."""
    times, at = list[int](), 0
    for _ in range(draw(st.integers(1, 5))):
        size = draw(st.one_of(st.integers(1, 5), st.integers(1, 200)))
        pace = draw(st.sampled_from((20_000, SECOND, 10 * SECOND, 300 * SECOND, HOUR)))
        outage = draw(st.integers(0, 30))
        for number in range(draw(st.integers(1, max(2, 250 // size)))):
            times += range(at, at + size * 20_000, 20_000)
            at += max(pace, size * 20_000) * (12 if number == outage else 1)
    begin = draw(st.integers(0, len(times)))
    late = times[begin : begin + draw(st.integers(0, 100))]
    del times[begin : begin + len(late)]
    back = draw(st.integers(begin, len(times)))
    return times[:back] + (late[::-1] if draw(st.booleans()) else late) + times[back:]


@settings(deadline=None, max_examples=100)
@given(lives(), st.integers(1, 50))
def test_it_is_what_who_remembers_every_message_says_wherever_it_is_stored(times: list[int], each: int) -> None:
    health = Health(times[0], times[0], times[0])
    for offset, at in enumerate(times):
        health.take(at, times[0], offset, True, RULE)
        if offset % each == 0:
            health = Health.unpack(health.pack())
    truth = followed(times)
    assert (health.older_gaps + len(health.gaps), health.gap_us) == (truth.gaps, truth.gap_us)
    assert (health.cadence, health.first_at, health.newest) == (truth.usual, truth.first, truth.newest)
    assert health.uptime == pytest.approx(truth.uptime)
