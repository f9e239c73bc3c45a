"""The machine's clock, and one that tests can turn."""

from __future__ import annotations

import time


class SystemClock:
    """Wall-clock time of this machine."""

    def now(self) -> int:
        """The time now, ms since 1970."""
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until it is turned."""

    def __init__(self, start: int = 1_767_225_600_000) -> None:
        self.time = start

    def now(self) -> int:
        """The time that was set, ms since 1970."""
        return self.time

    def advance(self, milliseconds: int) -> None:
        """Turn the clock on."""
        self.time += milliseconds
