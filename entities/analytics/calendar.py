"""Buckets of time: minutes and hours as absolute instants, days as the calendar days of a site's zone.

A day has 23, 24, 25 or 24.5 hours where clocks are changed, so it is never computed by adding 24 hours. An hour that
local clocks show twice is two buckets. Times are µs since 1970, UTC.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ..errors import RequestInvalid

MINUTE_US: Final = 60_000_000
HOUR_US: Final = 60 * MINUTE_US
RESOLUTIONS: Final[Mapping[str, int]] = {"1m": MINUTE_US, "1h": HOUR_US}
DAY: Final = "1d"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Zones:
    """Which zone a device's site lies in: the first pattern (``*`` and ``?``) that fits its name decides, else UTC."""

    patterns: tuple[tuple[str, str], ...] = ()

    def of(self, device: str) -> str:
        """The name of the zone."""
        return next((zone for pattern, zone in self.patterns if fnmatchcase(device, pattern)), "UTC")

    def unused(self, devices: Collection[str]) -> Sequence[str]:
        """The patterns that fit none of these names: perhaps they are misspelt."""
        names = [pattern for pattern, _ in self.patterns]
        return [name for name in names if not any(fnmatchcase(device, name) for device in devices)]


def parse_zones(text: str) -> Zones:
    """Read ``berlin-*=Europe/Berlin,*=UTC``. Raises RequestInvalid for what is no zone."""
    patterns = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        pattern, equals, zone = part.rpartition("=")
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise RequestInvalid(f"{zone!a} is no time zone: write zones as DEVICE=Europe/Berlin,*=UTC") from error
        patterns.append((pattern if equals else "*", zone))
    return Zones(tuple(patterns))


@lru_cache(maxsize=100_000)
def day_start(day: date, zone: str) -> int:
    """The first instant whose local date is this day; that of the next day where the zone skipped the day."""
    info = ZoneInfo(zone)
    midnight = _micros(datetime(day.year, day.month, day.day, tzinfo=info).astimezone(UTC))
    # Midnight may not exist, or come twice: the border is the first instant of the day around it.
    before, after = midnight - 26 * HOUR_US, midnight + 26 * HOUR_US
    if _local(midnight, info).date() == day and _local(midnight - 1, info).date() < day:
        return midnight
    while after - before > 1:
        middle = (before + after) // 2
        if _local(middle, info).date() < day:
            before = middle
        else:
            after = middle
    return after


def days(first: int, last: int, zone: str) -> Sequence[int]:
    """The starts of the days that the instants ``first`` to ``last`` lie in, and of the one after them."""
    info = ZoneInfo(zone)
    day, end = _local(first, info).date(), _local(last, info).date()
    starts = [day_start(day, zone)]
    while day <= end:
        day += timedelta(days=1)
        if (start := day_start(day, zone)) > starts[-1]:
            starts.append(start)
    return starts


def offset_minutes(at: int, zone: str) -> int:
    """How far local time is ahead of UTC at an instant, in minutes."""
    shift = _local(at, ZoneInfo(zone)).utcoffset()
    assert shift is not None
    return int(shift.total_seconds()) // 60


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _local(at: int, info: ZoneInfo) -> datetime:
    return (_EPOCH + timedelta(microseconds=at)).astimezone(info)
