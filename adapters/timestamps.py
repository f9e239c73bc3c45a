"""Times: ISO-8601 texts and epoch numbers to milliseconds and back, and whether a device's clock is believed.

Milliseconds since 1970 inside, ISO-8601 in UTC with milliseconds on every wire (RFC 3339).
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from typing import Final, NamedTuple

DAY_MS: Final = 24 * 3600 * 1000
MAX_PAST_MS: Final = 30 * DAY_MS
MAX_FUTURE_MS: Final = 5 * 60 * 1000
# Epoch numbers below are seconds: the year 5138 as seconds, March 1973 as milliseconds.
FIRST_MS: Final = 100_000_000_000
CLOCK_UNTRUSTED: Final = "clock_untrusted"
TZ_ASSUMED: Final = "tz_assumed"

# The years 1 to 9999, which is what four digits can say.
_EARLIEST: Final = -62_135_596_800_000
_LATEST: Final = 253_402_300_799_999
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()

_MILLISECONDS: Final = tuple(f"{number:03d}Z" for number in range(1000))
_ISO: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,12}))?)?"
    r" ?([Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?\Z"
)


class Reading(NamedTuple):
    """A time that a sender stated: ms since 1970, and whether UTC was assumed because it named no zone."""

    time: int
    assumed: bool = False


class Stamp(NamedTuple):
    """What a message's time is (ms), and how good it is.

    ``quality``: None, ``tz_assumed`` or ``clock_untrusted``. ``observed``: the sender's own time where it was not
    believed, else None.
    """

    timestamp: int
    quality: str | None = None
    observed: int | None = None


def within_years(time: int) -> int:
    """The nearest time (ms) that an ISO-8601 text of four year digits can name."""
    return min(max(time, _EARLIEST), _LATEST)


@lru_cache(maxsize=1_024)
def _second(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    day = date.fromordinal(days + _EPOCH_ORDINAL)
    hour, rest = divmod(rest, 3_600)
    minute, second = divmod(rest, 60)
    return f"{day.year:04d}-{day.month:02d}-{day.day:02d}T{hour:02d}:{minute:02d}:{second:02d}."


@lru_cache(maxsize=1_024)
def iso(time: int) -> str:
    """Write ms since 1970 as ISO-8601 in UTC: ``2026-01-01T00:00:00.000Z``. Beyond the years 1 to 9999: their end."""
    if not _EARLIEST <= time <= _LATEST:
        time = within_years(time)
    return _second(time // 1000) + _MILLISECONDS[time % 1000]


@lru_cache(maxsize=1_024)
def iso_bytes(time: int) -> bytes:
    """As ``iso``, but bytes, for splicing into a body."""
    return iso(time).encode()


def read_time(value: object) -> Reading | None:
    """Read an ISO-8601 text, or an epoch number by its magnitude (s, ms, µs, ns). None when it is no time.

    A text without a zone is read as UTC and marked. Digits beyond the millisecond are cut off.
    """
    if isinstance(value, str):
        return _read_text(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _read_number(value)
    return None


def _read_text(text: str) -> Reading | None:
    found = _ISO.match(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    hours, minutes, seconds = int(hour), int(minute), int(second or 0)
    # A leap second (:60, RFC 3339 section 5.6) is the first moment of the next minute.
    if hours > 23 or minutes > 59 or seconds > 60:
        return None
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH_ORDINAL
    except ValueError:  # no such day, such as 30 February
        return None
    time = ((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000
    if fraction:
        time += int(fraction[:3].ljust(3, "0"))
    if zone and zone not in "Zz":
        offset_hours, offset_minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
        if offset_hours > 23 or offset_minutes > 59:
            return None
        offset = (offset_hours * 60 + offset_minutes) * 60_000
        time += offset if zone[0] == "-" else -offset
    return Reading(time, not zone) if _EARLIEST <= time <= _LATEST else None


def _read_number(number: int | float) -> Reading | None:
    size = abs(number)
    if size < FIRST_MS:
        time = round(number * 1000)
    elif size < FIRST_MS * 1_000:
        time = int(number)
    elif size < FIRST_MS * 1_000_000:
        time = int(number // 1_000)
    elif size < FIRST_MS * 1_000_000_000:
        time = int(number // 1_000_000)
    else:
        return None
    return Reading(time) if _EARLIEST <= time <= _LATEST else None


def judge(reading: Reading, received_at: int) -> Stamp:
    """Believe a stated time from 30 days before to 5 minutes after ``received_at``; outside it, that one counts."""
    time = reading.time
    if received_at - MAX_PAST_MS <= time <= received_at + MAX_FUTURE_MS:
        return Stamp(time, TZ_ASSUMED if reading.assumed else None)
    return Stamp(received_at, CLOCK_UNTRUSTED, time)
