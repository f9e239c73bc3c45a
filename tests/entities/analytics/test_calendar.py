"""Days of a zone: as long as its clocks make them, one after the other without a hole."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iotsphere.entities.analytics.calendar import HOUR_US, Zones, day_start, days, offset_minutes, parse_zones
from iotsphere.entities.errors import RequestInvalid

# Clocks change at midnight, by half an hour, or by a whole day in some of them.
ZONES = ("Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Asia/Beirut", "Pacific/Apia", "America/Havana")


def micros(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", date(2025, 10, 25), 24),
        ("Europe/Berlin", date(2025, 10, 26), 25),
        ("Europe/Berlin", date(2025, 3, 30), 23),
        ("Australia/Lord_Howe", date(2025, 4, 6), 24.5),
        ("Australia/Lord_Howe", date(2025, 10, 5), 23.5),
        ("America/Santiago", date(2025, 9, 7), 23),  # there is no midnight
        ("America/Havana", date(2025, 11, 2), 25),  # midnight comes twice
        ("Pacific/Apia", date(2011, 12, 30), 0),  # the day was left out
        ("UTC", date(2025, 10, 26), 24),
    ],
)
def test_length_of_a_day(zone: str, day: date, hours: float) -> None:
    assert day_start(day + timedelta(days=1), zone) - day_start(day, zone) == hours * HOUR_US


@given(st.dates(date(2008, 1, 1), date(2035, 1, 1)), st.sampled_from(ZONES))
@example(date(2011, 12, 30), "Pacific/Apia")
@example(date(2025, 9, 7), "America/Santiago")
def test_a_day_begins_where_its_date_is_first_shown(day: date, zone: str) -> None:
    start, info = day_start(day, zone), ZoneInfo(zone)

    def shown(at: int) -> date:
        return datetime.fromtimestamp(at / 1e6, info).date()

    assert shown(start - 1_000_000) < day <= shown(start)


@given(st.datetimes(datetime(2008, 1, 1), datetime(2035, 1, 1)), st.integers(0, 90), st.sampled_from(ZONES))
def test_days_cover_what_was_asked_for(first: datetime, length: int, zone: str) -> None:
    begin = micros(first.replace(tzinfo=UTC))
    end = begin + length * HOUR_US
    edges = days(begin, end, zone)
    assert edges[0] <= begin
    assert end < edges[-1]
    assert list(edges) == sorted(set(edges))
    assert len(edges) >= 2


def test_the_hour_that_is_shown_twice_has_two_offsets() -> None:
    first = micros(datetime(2025, 10, 26, 0, 30, tzinfo=UTC))
    assert [offset_minutes(first + hour * HOUR_US, "Europe/Berlin") for hour in (0, 1)] == [120, 60]
    assert offset_minutes(first, "Australia/Lord_Howe") == 660


def test_the_first_pattern_decides() -> None:
    zones = parse_zones("lh-*=Australia/Lord_Howe, b?=Europe/Berlin,*=America/Havana")
    assert [zones.of(name) for name in ("lh-1", "b1", "b12")] == [
        "Australia/Lord_Howe",
        "Europe/Berlin",
        "America/Havana",
    ]
    assert parse_zones("Europe/Berlin").of("any") == "Europe/Berlin"
    assert (parse_zones(""), parse_zones("").of("any")) == (Zones(), "UTC")


def test_patterns_that_fit_no_device_are_told() -> None:
    zones = parse_zones("lh-*=Australia/Lord_Howe,berln-*=Europe/Berlin,*=UTC")
    assert zones.unused({"lh-1", "berlin-1"}) == ["berln-*"]
    assert zones.unused(()) == ["lh-*", "berln-*", "*"]


@pytest.mark.parametrize("text", ["a=Mars/Olympus", "a=", "a=../../etc/passwd", "Europe/Berlin,b=x"])
def test_what_is_no_zone_is_refused(text: str) -> None:
    with pytest.raises(RequestInvalid, match="no time zone"):
        parse_zones(text)
