"""What a `subscribe` request asks for: filters that are granted, a start, and how a slow client is treated."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from ...entities.cursor import Cursor, scope_of
from ...entities.errors import RequestInvalid
from ...entities.principal import Principal
from ...entities.subscription import Start, Subscription
from ...entities.topic import parse_filter
from . import protocol
from .listening import Listening

MAX_SUBSCRIPTIONS: Final = 1_000
MAX_REWINDS: Final = 4  # each reads up to a mebibyte ahead

_PLAIN: Final = {text: Start(text) for text in ("live", "latest", "earliest")}

ReadCursor = Callable[[str, str], Cursor]


def open_listening(
    request: protocol.Subscribe, principal: Principal, name: str, read_cursor: ReadCursor, others: Collection[Listening]
) -> Listening:
    """A subscription that is yet to begin. Raises RequestInvalid, FilterInvalid, Forbidden and CursorInvalid."""
    if len(others) >= MAX_SUBSCRIPTIONS:
        raise RequestInvalid(f"a connection may hold {MAX_SUBSCRIPTIONS} subscriptions; unsubscribe, or join filters")
    if request.speed is not None:
        if request.group is not None:
            raise RequestInvalid("speed: a group takes each message once, so it cannot be rewound; leave group out")
        if sum(other.is_rewinding for other in others) >= MAX_REWINDS:
            raise RequestInvalid(f"a connection may play {MAX_REWINDS} subscriptions at once; unsubscribe one")
    filters = tuple(dict.fromkeys(parse_filter(text) for text in request.filters))
    scope = scope_of(principal.identity, (wanted.text for wanted in filters))
    principal.require("subscribe", filters)
    start = _start(request.start, scope, read_cursor)
    subscription = Subscription(filters, start, request.policy, request.max_rate, request.speed)
    head = b'{"type":"messages","subscription":"%s","cursor":' % name.encode()
    return Listening(name, scope, subscription, head, request.credit, request.cursors == "message")


def _start(text: str, scope: str, read_cursor: ReadCursor) -> Start:
    if text in _PLAIN:
        return _PLAIN[text]
    time = protocol.parse_time(text)
    if time is not None:
        return Start("time", time=time)
    return Start("cursor", cursor=read_cursor(text, scope))
