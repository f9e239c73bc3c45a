"""Time, as the product sees it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall-clock time in whole milliseconds since 1970 UTC. Never used to measure durations."""

    def now(self) -> int:
        """The time now, in ms."""
        ...
