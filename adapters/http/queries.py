"""From the texts of a query to filters, starts and times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ...entities.cursor import Cursor, scope_of
from ...entities.errors import RequestInvalid
from ...entities.principal import Principal
from ...entities.subscription import Start
from ...entities.topic import TopicFilter, parse_filter
from ...use_cases.history import Page
from .. import cursor as cursors
from ..timestamps import read_time
from .models import HistoryQuery

MAX_DIGITS: Final = 15


def read_filters(texts: Iterable[str]) -> tuple[TopicFilter, ...]:
    """Filters, each once. Raises FilterInvalid."""
    return tuple(dict.fromkeys(parse_filter(text) for text in texts))


def read_moment(text: str, what: str) -> int:
    """A time in ms, from ISO-8601 or a number of ms since 1970. Raises RequestInvalid."""
    if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS:
        return int(text)
    reading = read_time(text)
    if reading is None:
        raise RequestInvalid(f"{what}: {text[:40]!a} is no time; write it as 2026-01-31T12:00:00Z")
    return reading.time


def read_start(query: HistoryQuery, scope: str, key: bytes) -> Start:
    """Where a page of history begins. Raises CursorInvalid and RequestInvalid."""
    if query.cursor is not None:
        return Start("cursor", cursor=cursors.decode(query.cursor, scope, key))
    if query.start == "earliest":
        return Start("earliest")
    return Start("time", time=read_moment(query.start, "from"))


def write_cursor(page: Page, scope: str, key: bytes) -> str:
    """The cursor that goes on after a page."""
    return cursors.encode(Cursor(scope, page.positions), key)


def scope(principal: Principal, filters: Iterable[TopicFilter]) -> str:
    """What a cursor is bound to; the same as over WebSocket."""
    return scope_of(principal.identity, (wanted.text for wanted in filters))
