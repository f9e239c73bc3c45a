"""Folding readings into rows: the laws that make batch, stream and every replay agree. No JVM takes part."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotsphere.drivers.spark.rollups import fold, percentiles
from iotsphere.drivers.spark.rollups.fold import FORGOTTEN_US, Rules
from iotsphere.drivers.spark.rollups.state import State
from iotsphere.entities.analytics.calendar import parse_zones
from iotsphere.entities.analytics.counter import CounterRule
from tests.support.examples import tried

from .series import DAY, HOUR, MINUTE, SECOND, Given, Key, micros, streamed, whole

START = micros("2026-03-01T00:00Z")
SERIES = "iotsphere/d1/t"


def agree(found: dict[Key, dict[str, Any]], expected: dict[Key, dict[str, Any]]) -> None:
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        for name, value in row.items():
            close = pytest.approx(value, rel=1e-9, abs=1e-9) if isinstance(value, float) else value
            assert found[key][name] == close, (key, name)


def test_a_row_says_what_its_readings_were() -> None:
    values = [3.0, 1.0, 2.0, 2.0]
    rows = whole(Given(START + number * SECOND, value, 10 + number) for number, value in enumerate(values))
    assert [key[1] for key in rows] == ["1m", "1h", "1d"]
    for resolution, length in (("1m", MINUTE), ("1h", HOUR), ("1d", DAY)):
        row = rows[SERIES, resolution, START]
        assert row["end"] == START + length
        assert (row["readings"], row["total"], row["least"], row["most"]) == (4, 8.0, 1.0, 3.0)
        assert (row["last"], row["last_at"]) == (2.0, START + 3 * SECOND)
        assert (row["first_offset"], row["last_offset"], row["duplicates"], row["untrusted"]) == (10, 13, 0, 0)
        assert (row["increase"], row["resets"]) == (None, None)
    assert [rows[SERIES, "1m", START][name] for name in ("p50", "p95", "p99")] == [2.0, 3.0, 3.0]


def test_last_is_by_time_then_by_place_in_the_log() -> None:
    rows = whole([Given(START + 5, 1, 3), Given(START + 9, 2, 1), Given(START + 9, 3, 2), Given(START + 7, 4, 9)])
    assert rows[SERIES, "1m", START]["last"] == 3


def test_a_repeated_sample_counts_once_wherever_its_copy_comes() -> None:
    sent = [Given(START, 1, 1, message=7), Given(START, 1, 1, message=7, sample=1), Given(START + 1, 2, 2)]
    again = [Given(START, 1, 5, message=7), Given(START, 1, 5, message=7, sample=1), Given(START, 1, 9, marked=True)]
    for rows in (whole(sent + again), streamed([sent, again])[0], streamed([[one] for one in sent + again])[0]):
        row = rows[SERIES, "1h", START]
        assert (row["readings"], row["total"], row["duplicates"], row["last_offset"]) == (3, 4.0, 3, 9)


def test_other_series_may_use_the_same_message() -> None:
    rows = whole([Given(START, 1, 1, message=7), Given(START, 2, 1, "iotsphere/d1/u", message=7)])
    assert [row["duplicates"] for row in rows.values()] == [0] * 6


def test_a_group_of_copies_alone_has_no_values() -> None:
    row = whole([Given(START, 1, 1, marked=True)])[SERIES, "1m", START]
    assert (row["readings"], row["duplicates"]) == (0, 1)
    assert [row[name] for name in ("least", "most", "last", "last_at", "p50")] == [None] * 5


def test_a_clock_that_is_not_believed_gives_no_last_value() -> None:
    rows = whole([Given(START, 1, 1), Given(START + SECOND, 2, 2, untrusted=True)])
    row = rows[SERIES, "1m", START]
    assert (row["readings"], row["last"], row["untrusted"], row["total"]) == (2, 1.0, 1, 3.0)
    alone = whole([Given(START, 2, 2, untrusted=True)])[SERIES, "1m", START]
    assert (alone["last"], alone["untrusted"]) == (2.0, 1)


def test_what_comes_within_the_lateness_takes_its_place() -> None:
    rules = Rules(lateness_us=10 * MINUTE)
    early, late = Given(START, 1, 1), Given(START + 20 * MINUTE, 9, 2)
    within = Given(START + 10 * MINUTE, 4, 3)
    rows, _ = streamed([[early], [late], [within]], rules)
    agree(rows, whole([early, late, within], rules))


def test_what_comes_later_is_counted_and_changes_no_row() -> None:
    rules = Rules(lateness_us=10 * MINUTE)
    sent = [Given(START, 1, 1), Given(START + 20 * MINUTE, 9, 2)]
    late = [Given(START + 9 * MINUTE, 4, 3), Given(START + 8 * MINUTE, 6, 4)]
    rows, state = streamed([sent, late[:1], late[1:]], rules)
    kept = rows.pop((SERIES, "late", START))
    agree(rows, whole(sent, rules))
    assert (kept["readings"], kept["least"], kept["most"], kept["first_offset"], kept["last_offset"]) == (2, 4, 6, 3, 4)
    assert len(state.points.at) == 1


def test_a_run_that_begins_within_a_day_makes_whole_rows_of_that_day_and_counts_what_is_older() -> None:
    rules = Rules(since=START + 30 * HOUR, zones=parse_zones("d2=Europe/Berlin"))
    border, berlin = START + 24 * HOUR, START + 23 * HOUR
    ahead = Given(border + MINUTE, 2, 2, received=border - MINUTE)  # its clock is ahead, so it came the day before
    sent = [Given(border, 3, 3), Given(border + 5 * HOUR, 4, 4)]
    before = [Given(border - 3 * MINUTE, 1, 1)]  # read only to find such as that one
    late = [Given(border - 2 * HOUR, 9, 5, received=border + HOUR)]
    there = [Given(berlin, 7, 6, "iotsphere/d2/t"), Given(berlin - SECOND, 8, 7, "iotsphere/d2/t", received=border)]
    for rows in (
        whole([*before, ahead, *sent, *late, *there], rules),
        streamed([before, [ahead], sent, late, there], rules)[0],
    ):
        days = {key: (row["readings"], row["total"]) for key, row in rows.items() if key[1] in ("1d", "late")}
        assert days == {
            (SERIES, "1d", border): (3, 9.0),
            (SERIES, "late", START): (1, 9.0),
            ("iotsphere/d2/t", "1d", berlin): (1, 7.0),
            ("iotsphere/d2/t", "late", berlin - 24 * HOUR): (1, 8.0),
        }
        assert min(start for _, resolution, start in rows if resolution in ("1m", "1h")) == berlin


def test_a_device_that_comes_back_loses_nothing_while_others_go_on() -> None:
    others = [Given(START + hour * HOUR, hour, hour, "iotsphere/d2/t") for hour in range(30)]
    backlog = [
        Given(START + minute * MINUTE, minute, 100 + minute, received=START + 30 * HOUR) for minute in range(300)
    ]
    rows, _ = streamed([others[:15], others[15:], backlog])
    agree(rows, whole(others + backlog))


@pytest.mark.parametrize("ahead", [5 * MINUTE, 300 * DAY])
def test_a_wild_clock_moves_nobody_elses_border(ahead: int) -> None:
    wild = [Given(START + ahead, 1, 1, "iotsphere/wild/t", received=START)]
    others = [[Given(START + number * MINUTE, number, number)] for number in range(5)]
    rows, _ = streamed([wild, *others])
    agree(rows, whole(wild + [one for batch in others for one in batch]))


def test_an_untrusted_reading_does_not_make_trusted_ones_late() -> None:
    rules = Rules(lateness_us=10 * MINUTE)
    sent = [Given(START, 1, 1), Given(START + 5 * HOUR, 2, 2, untrusted=True), Given(START + MINUTE, 3, 3)]
    rows, _ = streamed([[one] for one in sent], rules)
    agree(rows, whole(sent, rules))


def test_memory_is_bounded_for_clocks_that_are_never_believed_and_for_the_silent() -> None:
    rules = Rules(lateness_us=10 * MINUTE)
    quiet = [Given(START + number * SECOND, 1, number, "iotsphere/quiet/t") for number in range(200)]
    hours = [[Given(START + n * HOUR, 1, 1_000 + n, untrusted=True)] for n in range(1, 80)]
    _, state = streamed([quiet, *hours], rules)
    assert state.names == ["iotsphere/quiet/t", SERIES]
    assert Counter(state.points.series.tolist()) == {0: 20, 1: 25}  # the last minute of the silent one, and a day
    _, state = streamed([quiet, [Given(START + FORGOTTEN_US + 10 * MINUTE, 1, 9_999, untrusted=True)]], rules)
    assert state.names == [SERIES]
    assert len(state.open.series) == 0


def test_a_flood_within_the_lateness_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MOST_POINTS", 100)
    sent = [Given(START + number * SECOND, number, number) for number in range(1_000)]
    rows, state = streamed([sent[start : start + 50] for start in range(0, 1_000, 50)])
    assert len(state.points.at) <= 100 + 60  # whole minutes are kept
    agree(rows, whole(sent))


def test_state_levels_off() -> None:
    """An hour and a day that go on grow by bins, and bins are as many as values differ; nothing else grows."""
    sizes, state = [], State()
    for batch in range(40):
        sent = [Given(START + (batch * 60 + n) * MINUTE // 6, n % 10, batch * 60 + n) for n in range(60)]
        _, state = _go_on(state, sent)
        sizes.append((len(state.points.at), len(state.open.series), len(state.bins.group)))
    assert set(sizes[5:]) == {(186, 2, 20)}


def _go_on(state: State, sent: Sequence[Given]) -> tuple[Any, State]:
    from iotsphere.drivers.spark.jobs.rollup import changed_rows

    from .series import table

    rows = changed_rows(state, Rules(), table(sent), whole=False)
    return rows, State.load(state.dump())


def test_growth_of_counters_lies_in_the_bucket_of_the_later_reading() -> None:
    rules = Rules(counters={"t": CounterRule()})
    rows = whole([Given(START + number * 30 * SECOND, 10.0 * number, number) for number in range(4)], rules)
    assert [rows[SERIES, "1m", START + m * MINUTE]["increase"] for m in (0, 1)] == [10, 20]
    assert rows[SERIES, "1h", START]["increase"] == 30


def test_a_late_reading_of_a_counter_moves_growth_between_buckets() -> None:
    rules = Rules(counters={"t": CounterRule()})
    sent = [Given(START, 10, 1), Given(START + 3 * MINUTE, 40, 2), Given(START + MINUTE, 15, 3)]
    rows, _ = streamed([[one] for one in sent], rules)
    agree(rows, whole(sent, rules))
    assert rows[SERIES, "1m", START + 3 * MINUTE]["increase"] == 25


READINGS = st.lists(
    st.builds(
        lambda device, at, value, untrusted: (device, at, value, untrusted),
        st.integers(0, 2),
        st.integers(0, 200 * 60),
        st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6)),
        st.booleans(),
    ),
    min_size=1,
    max_size=60,
)


@tried(60)
@given(READINGS, st.lists(st.integers(1, 20), max_size=20), st.booleans())
def test_however_readings_are_cut_into_batches_the_rows_are_the_same(
    plain: list[tuple[int, int, float, bool]], sizes: list[int], counter: bool
) -> None:
    """Within the lateness: all of them in one batch, one by one, or anything between."""
    zones = parse_zones("d1=Australia/Lord_Howe")
    rules = Rules(300 * MINUTE, {"t": CounterRule(modulus=1e7)} if counter else {}, zones)
    sent = [
        Given(START + at * SECOND, value, number, f"iotsphere/d{device}/t", untrusted=untrusted, message=number // 2)
        for number, (device, at, value, untrusted) in enumerate(plain)
    ]
    batches: list[list[Given]] = []
    rest = sent
    for size in sizes:
        batches, rest = [*batches, rest[:size]], rest[size:]
    rows, _ = streamed([*(batch for batch in batches if batch), rest] if rest else [b for b in batches if b], rules)
    agree(rows, whole(sent, rules))


@tried(30)
@given(READINGS, st.integers(1, 7))
def test_with_more_lateness_than_allowed_every_reading_is_in_a_row_or_counted_as_late(
    plain: list[tuple[int, int, float, bool]], size: int
) -> None:
    sent = [Given(START + at * SECOND, value, n, f"iotsphere/d{d}/t") for n, (d, at, value, _) in enumerate(plain)]
    rows, _ = streamed([sent[at : at + size] for at in range(0, len(sent), size)], Rules(lateness_us=0))
    for resolution in ("1m", "1h", "1d"):
        counted = sum(row["readings"] for key, row in rows.items() if key[1] in (resolution, "late"))
        assert counted == len(sent)


@settings(deadline=None)
@given(st.lists(st.floats(-1e9, 1e9).filter(lambda value: abs(value) > 1e-9), min_size=1, max_size=200))
def test_percentiles_of_hours_are_within_half_a_percent_of_a_reading_of_that_rank(values: list[float]) -> None:
    array = np.array(values)
    group = np.zeros(len(values), np.int64)
    found = percentiles.of_histogram(percentiles.histogram(group, array), 1)
    exact = percentiles.of_values(group, array, 1)
    for quantile, close, true in zip(percentiles.QUANTILES, found, exact, strict=True):
        assert close[0] == pytest.approx(true[0], rel=percentiles.ERROR * 1.001)
        rank = max(1, int(np.ceil(quantile * len(values) - 1e-9)))
        assert true[0] == sorted(values)[rank - 1]


def test_percentiles_of_zeros_and_of_tiny_values_are_zero() -> None:
    rows = whole([Given(START + n, value, n) for n, value in enumerate((0.0, 1e-300, -1e-300, 0.0))])
    assert rows[SERIES, "1h", START]["p50"] == pytest.approx(0, abs=1e-12)


def test_a_median_lies_within_the_extremes() -> None:
    values = [20.0] * 50
    rows = whole(Given(START + number * SECOND, value, number) for number, value in enumerate(values))
    assert rows[SERIES, "1h", START]["p50"] == statistics.median(values)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="start a new checkpoint"):
        State.load(b"\x09...")
