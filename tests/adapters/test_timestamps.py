"""Times: read in every spelling, written in one, believed inside the window only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.timestamps import (
    DAY_MS,
    MAX_FUTURE_MS,
    MAX_PAST_MS,
    Reading,
    Stamp,
    iso,
    iso_bytes,
    judge,
    read_time,
)

NOW = 1_767_225_600_000  # 2026-01-01T00:00:00Z
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
moments = st.datetimes(
    min_value=datetime(2, 1, 1), max_value=datetime(9998, 12, 31), timezones=st.just(UTC), allow_imaginary=False
)


def milliseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


@given(moments)
def test_iso_is_what_datetime_writes_and_reads_back(moment: datetime) -> None:
    time = milliseconds(moment)
    text = iso(time)
    assert text == moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert iso_bytes(time) == text.encode()
    assert read_time(text) == Reading(time, assumed=False)


@given(moments, st.integers(-23 * 60 - 59, 23 * 60 + 59))
def test_a_zone_is_honoured(moment: datetime, minutes: int) -> None:
    text = moment.astimezone(timezone(timedelta(minutes=minutes))).isoformat()
    assert read_time(text) == Reading(milliseconds(moment), assumed=False)


@given(moments)
def test_a_time_without_zone_is_utc_and_marked(moment: datetime) -> None:
    assert read_time(moment.replace(tzinfo=None).isoformat()) == Reading(milliseconds(moment), assumed=True)


@given(st.integers(NOW - 20 * 365 * DAY_MS, NOW + 20 * 365 * DAY_MS))
def test_epoch_numbers_are_read_by_magnitude(time: int) -> None:
    second = time // 1000
    assert read_time(second) == Reading(second * 1000)
    assert read_time(time / 1000) == Reading(time)
    assert read_time(time) == Reading(time)
    assert read_time(time * 1_000 + 999) == Reading(time)
    assert read_time(time * 1_000_000 + 999_999) == Reading(time)


@given(st.one_of(st.text(max_size=30), st.integers(), st.floats(), st.none(), st.booleans(), st.lists(st.integers())))
def test_anything_is_a_time_or_none(value: object) -> None:
    reading = read_time(value)
    if reading is not None:
        assert read_time(iso(reading.time)) == Reading(reading.time)


READ = {
    "2026-01-01T00:00:00Z": NOW,
    "2026-01-01t00:00:00.5z": NOW + 500,
    "2026-01-01 00:00:00.123456789Z": NOW + 123,
    "2026-01-01T00:00Z": NOW,
    "2026-01-01T01:30:00+01:30": NOW,
    "2025-12-31T19:00:00-0500": NOW,
    "2026-01-01T05:00:00+05": NOW,
    "2025-12-31T23:59:60Z": NOW,
    "2026-01-01T00:00:00,250Z": NOW + 250,
    "2021-09-14T06:32:07.507569+00:00": 1_631_601_127_507,
    "1969-12-31T23:59:59.999Z": -1,
    "0001-01-01T00:00:00Z": -62_135_596_800_000,
}  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_texts_that_are_times(text: str) -> None:
    assert read_time(text) == Reading(READ[text])


@pytest.mark.parametrize(
    "value",
    [
        "", "now", "10:27:02", "2026-01-01", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z",
        "2026-01-01T00:60:00Z", "2026-01-01T00:00:61Z", "2026-01-01T00:00:00+24:00", "2026-01-01T00:00:00+01:60",
        "2026-01-01T00:00:00Z ", "26-01-01T00:00:00Z", "2026-01-01T00:00:00 UTC", "\u0662\u0660\u0662\u0666-01-01T00:00:00Z",
        "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", True, None, [], {}, 1e30, -1e30, float("nan"),
        float("inf"), 10**40,
    ],
)  # fmt: skip
def test_values_that_are_no_time(value: object) -> None:
    assert read_time(value) is None


@pytest.mark.parametrize("time", [-(10**30), 10**30])
def test_iso_stays_within_four_year_digits(time: int) -> None:
    assert iso(time) in ("0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z")


@pytest.mark.parametrize(
    ("offset", "believed"),
    [
        (0, True),
        (-MAX_PAST_MS, True),
        (-MAX_PAST_MS - 1, False),
        (MAX_FUTURE_MS, True),
        (MAX_FUTURE_MS + 1, False),
    ],
)
def test_the_window_is_thirty_days_back_and_five_minutes_on(offset: int, believed: bool) -> None:
    assert (MAX_PAST_MS, MAX_FUTURE_MS) == (30 * 86_400_000, 300_000)
    stamp = judge(Reading(NOW + offset), NOW)
    assert stamp == (Stamp(NOW + offset) if believed else Stamp(NOW, "clock_untrusted", NOW + offset))


def test_an_assumed_zone_is_told_unless_the_clock_is_wrong_anyway() -> None:
    assert judge(Reading(NOW, assumed=True), NOW) == Stamp(NOW, "tz_assumed")
    assert judge(Reading(0, assumed=True), NOW) == Stamp(NOW, "clock_untrusted", 0)
