"""Coordinates without a fix: what a receiver says that sees no satellite, latitude 0 and longitude 0.

Such a pair is no place. It is taken for missing only where its own record says so: both are exactly 0, and beside them one
of ``WITNESSES`` is 0 or false. Without that word it stays what it is, a place in the Gulf of Guinea like any other.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

PAIRS: Final = (("lat", "lon"), ("lat", "lng"), ("latitude", "longitude"))
LATITUDES: Final = frozenset(latitude for latitude, _ in PAIRS)
WITNESSES: Final = ("sat", "sats", "satellites", "sat_count", "fix")
_OTHERWISE: Final = 1


def may_lack_fix(keys: Collection[str]) -> bool:
    """Whether a record with these keys can say that its coordinates are none."""
    return any(pair[0] in keys and pair[1] in keys for pair in PAIRS) and any(key in keys for key in WITNESSES)


def placed(record: dict[str, Any]) -> dict[str, Any]:
    """The record, with coordinates that are no place as null: nearly always the very same object."""
    for latitude, longitude in PAIRS:
        if _is_nought(record.get(latitude)) and _is_nought(record.get(longitude)):
            if any(record.get(key, _OTHERWISE) == 0 for key in WITNESSES):  # false is 0
                return {**record, latitude: None, longitude: None}
            break
    return record


def _is_nought(value: Any) -> bool:
    return (type(value) is int or type(value) is float) and value == 0
