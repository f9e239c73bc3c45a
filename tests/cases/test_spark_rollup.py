"""Field cases A08, A21, A26, B29 and B30: rollups of wild clocks, counters, backlogs, skew, and days with 23 or 25 hours."""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from typing import Any, Final

import pytest

from iotsphere.drivers.spark.rollups.fold import Rules
from iotsphere.drivers.spark.rollups.state import State
from iotsphere.entities.analytics.calendar import parse_zones
from iotsphere.entities.analytics.counter import CounterRule
from tests.drivers.spark.series import DAY, HOUR, MINUTE, SECOND, Given, Key, micros, streamed, whole

METER: Final = "iotsphere/meter-02/energy_wh"
ENERGY: Final = "W3sidHMiOjE2NjQ4MzQ5MDAsInZhbHVlIjo4Mzg4MzEuMH0seyJ0cyI6MTY2NDgzNTA1MCwidmFsdWUiOjgzODg1Ny42fSx7InRzIjoxNjY0ODM1MjAwLCJ2YWx1ZSI6MTAuMn1d"
RECOVERS: Final = "W3sidHMiOjE3MDAwMDAwMDAsInZhbHVlIjoxNTUwODUxMH0seyJ0cyI6MTcwMDAwMDAxMCwidmFsdWUiOjB9LHsidHMiOjE3MDAwMDAwMjAsInZhbHVlIjoxNTUwODUxMX1d"


def samples(payload: str, series: str) -> list[Given]:
    """The samples of a recorded payload, as one message."""
    read: list[dict[str, float]] = json.loads(base64.b64decode(payload))
    return [
        Given(int(one["ts"]) * SECOND, one["value"], 1, series, sample=index, message=1)
        for index, one in enumerate(read)
    ]


def column(rows: dict[Key, dict[str, Any]], resolution: str, name: str) -> list[Any]:
    return [row[name] for key, row in sorted(rows.items()) if key[1] == resolution]


# A21: energy counters


@pytest.mark.parametrize(
    ("payload", "rule", "by_minute"),
    [
        (ENERGY, CounterRule(modulus=838_860.7), [0, 26.6, 13.3]),
        (ENERGY, CounterRule(), [0, 26.6, 10.2]),
        (RECOVERS, CounterRule(), [1]),
    ],
)
def test_a21_consumption_is_never_negative_and_never_made_up(
    payload: str, rule: CounterRule, by_minute: list[float]
) -> None:
    given, rules = samples(payload, METER), Rules(counters={"energy_wh": rule})
    for rows in (whole(given, rules), streamed([[one] for one in given], rules)[0]):
        assert column(rows, "1m", "increase") == pytest.approx(by_minute)
        assert sum(column(rows, "1d", "increase")) == pytest.approx(sum(by_minute))
        raw = [(row["least"], row["most"]) for key, row in sorted(rows.items()) if key[1] == "1d"]
        assert raw == [(min(one.value for one in given), max(one.value for one in given))]  # as they came


def test_a21_growth_beyond_what_the_meter_can_is_implausible() -> None:
    given = [Given(number * 10 * SECOND, value, number, METER) for number, value in enumerate((5, 6, 15.5e6, 7, 8))]
    (row,) = [
        row
        for key, row in whole(given, Rules(counters={"energy_wh": CounterRule(maximum=3_600)})).items()
        if key[1] == "1h"
    ]
    assert (row["increase"], row["implausible"], row["readings"], row["most"]) == (3, 1, 5, 15.5e6)


# B30: days of a zone


@pytest.mark.parametrize(
    ("zone", "first", "sums"),
    [
        ("Europe/Berlin", "2025-10-25T00:00+02:00", [1440, 1500, 1440]),
        ("Europe/Berlin", "2025-03-29T00:00+01:00", [1440, 1380, 1440]),
        ("Australia/Lord_Howe", "2025-04-05T00:00+11:00", [1440, 1470, 1440]),
        ("Australia/Lord_Howe", "2025-10-04T00:00+10:30", [1440, 1410, 1440]),
    ],
)
def test_b30_days_are_those_of_the_sites_zone(zone: str, first: str, sums: list[int]) -> None:
    start, rules = micros(first), Rules(zones=parse_zones(zone))
    minutes = [Given(start + number * MINUTE, 1, number) for number in range(sum(sums))]
    found = whole(minutes, rules), streamed([minutes[at : at + 500] for at in range(0, len(minutes), 500)], rules)[0]
    for rows in found:
        assert column(rows, "1d", "total") == sums
        assert sum(column(rows, "1h", "total")) == sum(sums)
        assert all(key[2] % HOUR == 0 for key in rows if key[1] == "1h")  # absolute instants, in UTC
    if zone == "Europe/Berlin":
        days = [key[2] for key in sorted(found[0]) if key[1] == "1d"]
        hours = Counter(sum(key[2] >= day for day in days) for key in found[0] if key[1] == "1h")
        assert [hours[day] for day in (1, 2, 3)] == [length // 60 for length in sums]


def test_b30_the_hour_that_comes_twice_is_two_buckets_with_two_offsets() -> None:
    start = micros("2025-10-26T00:00Z")
    rows = whole([Given(start + n * MINUTE, 1, n) for n in range(120)], Rules(zones=parse_zones("Europe/Berlin")))
    hours = [(row["start"], row["offset_minutes"], row["total"]) for key, row in sorted(rows.items()) if key[1] == "1h"]
    assert hours == [(start, 120, 60), (start + HOUR, 60, 60)]  # both are 02:00 on the wall


def test_b30_counters_go_on_over_the_hour_that_comes_twice() -> None:
    start = micros("2025-10-25T22:00Z")
    rules = Rules(zones=parse_zones("Europe/Berlin"), counters={"t": CounterRule()})
    rows = whole([Given(start + n * MINUTE, n, n) for n in range(25 * 60)], rules)
    (row,) = [row for key, row in rows.items() if key[1] == "1d"]
    assert (row["increase"], row["resets"], row["end"] - row["start"]) == (25 * 60 - 1, 0, 25 * HOUR)


# A08 and A26: wild clocks and backlogs


def test_a08_wild_clocks_make_no_bucket_of_their_own_and_move_nothing_for_others() -> None:
    """The reader of the log gives such a sample the time of its reception; the rest of the fleet does not notice it."""
    received = micros("2026-03-01T12:00Z")
    stated = [3 * SECOND, -1, micros("4020-01-12T00:00Z"), micros("3236-01-12T23:59:48Z")]
    assert not any(received - 30 * DAY <= at <= received + 5 * MINUTE for at in stated)
    wild = [Given(received + n, 7, 50 + n, "iotsphere/pow-01/energy", untrusted=True) for n in range(len(stated))]
    others = [Given(received - (60 - n) * MINUTE, n, n, "iotsphere/pow-02/energy") for n in range(60)]
    alone, _ = streamed([others[:30], others[30:]])
    together, _ = streamed([[*others[:30], *wild], others[30:]])
    assert {key: row for key, row in together.items() if key[0] != "iotsphere/pow-01/energy"} == alone
    of_wild = [row for key, row in together.items() if key[0] == "iotsphere/pow-01/energy"]
    assert {(row["untrusted"], row["total"]) for row in of_wild} == {(4, 28)}
    assert {row["start"] // DAY for row in of_wild} == {received // DAY}


def test_a26_a_backlog_that_comes_newest_first_is_in_its_own_buckets_and_not_the_last_value() -> None:
    now = micros("2026-03-01T12:00Z")
    live = [Given(now - n * MINUTE, 100, 1_000 - n, received=now - n * MINUTE) for n in range(5)][::-1]
    backlog = [Given(now - HOUR - n * SECOND, n, 2_000 + n, "iotsphere/d1/t", now) for n in range(1_000)]
    for rows in (whole(live + backlog), streamed([live, backlog], Rules(lateness_us=2 * HOUR))[0]):
        (day,) = [row for key, row in rows.items() if key[1] == "1d"]
        assert (day["readings"], day["last"], day["last_at"]) == (1_005, 100, now)
    counted = sum(row["readings"] for key, row in streamed([live, backlog])[0].items() if key[1] in ("1h", "late"))
    assert counted == 1_005  # later than allowed, it is counted at least


# B29: state and skew


def test_b29_state_levels_off_in_a_soak_with_unique_ids() -> None:
    """Ten hours, a batch a minute: bins of the day fill up, and nothing else grows."""
    start, noise, sizes = micros("2026-03-01T00:00Z"), random.Random(1), []
    batches = [
        [
            Given(start + number * MINUTE + n * SECOND, noise.gauss(20, 3), number * 60 + n, f"iotsphere/d{n % 5}/t")
            for n in range(60)
        ]
        for number in range(600)
    ]
    state = State()
    for first, end in ((0, 120), (120, 240), (240, 600)):
        _, state = streamed(batches[first:end], state=state)
        sizes.append(len(state.dump()))
    assert sizes[2] < sizes[1] * 1.2
    assert sizes[1] < sizes[0] * 1.3


def test_b29_one_device_with_most_of_the_rows_changes_nothing_for_the_others() -> None:
    start = micros("2026-03-01T00:00Z")
    even = [Given(start + n * SECOND, n, n, f"iotsphere/d{n % 10}/t") for n in range(1_000)]
    flood = [Given(start + n * SECOND // 9, n, 10_000 + n, "iotsphere/hot/t") for n in range(9_000)]
    mixed = sorted(even + flood, key=lambda one: one.at)
    alone, _ = streamed([even[at : at + 100] for at in range(0, 1_000, 100)])
    rows, state = streamed([mixed[at : at + 1_000] for at in range(0, len(mixed), 1_000)])
    assert {key: row for key, row in rows.items() if "/hot/" not in key[0]} == alone
    assert {row["readings"] for key, row in rows.items() if key[:2] == ("iotsphere/hot/t", "1h")} == {9_000}
    assert len(state.names) == 11
