"""Subscriptions: what a reader asked for, and how it wants to be treated when it is slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .cursor import Cursor
from .topic import TopicFilter

POLICIES: Final = ("complete", "latest")


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading begins.

    ``at``: ``live`` (what comes from now on), ``latest`` (the last value of each topic, then live), ``earliest`` (all
    that is retained), ``cursor`` (after ``cursor``) or ``time`` (what was appended at or after ``time``, ms).
    """

    at: str = "live"
    cursor: Cursor | None = None
    time: int = 0


LIVE: Final = Start()


@dataclass(frozen=True, slots=True)
class Subscription:
    """One or more filters of one domain, a start and a policy.

    ``policy``: ``complete`` (a slow reader reads the log at its own pace) or ``latest`` (it keeps the newest value
    per topic). ``max_rate``: messages a second, 0 = no limit. ``speed``: play what lies between the start and now at
    this multiple of its own speed (0: stand still); None: as fast as it is taken.
    """

    filters: tuple[TopicFilter, ...]
    start: Start = LIVE
    policy: str = "complete"
    max_rate: float = 0.0
    speed: float | None = None

    @property
    def domain(self) -> str:
        """The domain that all filters share."""
        return self.filters[0].domain

    @property
    def channels(self) -> frozenset[str]:
        """The channels that any of its filters can select."""
        return frozenset().union(*(wanted.channels for wanted in self.filters))

    def matches(self, topic: str) -> bool:
        """Tell whether any filter selects the topic."""
        return any(wanted.matches(topic) for wanted in self.filters)
