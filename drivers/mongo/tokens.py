"""Tokens of the change feed: which store, from which time on, and the last event of that time that was seen.

MongoDB's own resume tokens are good only for the same collections: the server looks for the event itself among those
that are asked for. The time and the order of events are good for all. A resume token is a text of hex digits that sorts
like the events; it begins with the type 82 and the event's time in 16 digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bson import Timestamp

from ...adapters.database.requests import changes_lost
from ...entities.errors import DatabaseUnavailable

_TEXT: Final = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{16})\.([0-9A-F]{0,8192})\Z")
_RESUME: Final = re.compile(r"82([0-9A-F]{16})[0-9A-F]*\Z")


class Place(NamedTuple):
    """Behind all events before ``time``, and those at that time whose ``_data`` is not greater than ``seen``."""

    time: Timestamp
    seen: str

    def has_seen(self, event: Mapping[str, Any]) -> bool:
        """Whether an event lies before this place."""
        data: str = event["_id"]["_data"]
        return data <= self.seen

    def text(self, epoch: str) -> str:
        """The token."""
        return f"{epoch}.{self.time.time:08x}{self.time.inc:08x}.{self.seen}"


def place_of(text: str, epoch: str) -> Place:
    """The place that a token names. Raises ChangesLost for one of another store."""
    form = _TEXT.match(text)
    if form is None or form[1] != epoch:
        raise changes_lost(text)
    return Place(_time(form[2]), form[3])


def place_after(token: Mapping[str, Any]) -> Place:
    """The place after a resume token of the server. Raises DatabaseUnavailable for a form that is not known."""
    data = token.get("_data")
    form = _RESUME.match(data) if isinstance(data, str) else None
    if form is None:
        raise DatabaseUnavailable(
            "this MongoDB forms its resume tokens in a way that is not known: use version 6, 7 or 8"
        )
    return Place(_time(form[1]), form[0])


def place_behind(time: Timestamp) -> Place:
    """The place behind everything that happened at a time."""
    return Place(Timestamp(time.time, time.inc + 1), "")


def _time(digits: str) -> Timestamp:
    return Timestamp(int(digits[:8], 16), int(digits[8:], 16))
