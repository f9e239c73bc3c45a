"""Flow control: what happens to a reader that cannot take messages as fast as they come.

``complete``: it leaves the live feed and reads the log at its own pace; nothing is lost or copied into memory.
``latest``: it keeps one pending mark per topic, and is sent the newest value once it has room; what a newer value
replaced is counted as superseded. A rate limit makes a reader slow in the same sense.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from .feed import Batch

if TYPE_CHECKING:
    from .reader import Reader


class Pace:
    """A token bucket for one reader: ``rate`` messages a second, bursts of one second."""

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._tokens = max(1.0, rate)
        self._at = now

    def take(self, count: int, now: float) -> float:
        """Use ``count`` tokens; returns 0, or the seconds until it may be tried again (nothing is used then).

        A batch larger than the bucket passes when the bucket is full, and is paid off afterwards.
        """
        size = max(1.0, self.rate)
        self._tokens = min(size, self._tokens + (now - self._at) * self.rate)
        self._at = now
        needed = min(float(count), size)
        if self._tokens >= needed:
            self._tokens -= count
            return 0.0
        return (needed - self._tokens) / self.rate

    def give_back(self, count: int) -> None:
        """Undo a ``take`` whose messages were not delivered after all."""
        self._tokens += count


class MessageFlowControlUseCase:
    """Decides, batch by batch, whether a reader gets it now, later from the log, or only its newest values."""

    def __init__(self, monotonic: Callable[[], float] | None = None) -> None:
        self._monotonic = monotonic or (lambda: asyncio.get_running_loop().time())
        self.deferred = 0
        self.superseded = 0
        self.delivered = 0

    def pace(self, rate: float) -> Pace | None:
        """The bucket for a reader's ``max_rate``; None without a limit."""
        return Pace(rate, self._monotonic()) if rate > 0 else None

    def offer(self, reader: Reader, batch: Batch) -> bool:
        """Deliver the batch if the reader's pace and its sink allow it now; False leaves everything as it was."""
        if reader.pace is not None:
            wait = reader.pace.take(len(batch.entries), self._monotonic())
            if wait > 0:
                reader.resume_in(wait)
                self.deferred += 1
                return False
        if not reader.sink.deliver(reader, batch):
            if reader.pace is not None:
                reader.pace.give_back(len(batch.entries))
            self.deferred += 1
            return False
        self.delivered += len(batch.entries)
        return True

    def conflate(self, reader: Reader, batch: Batch) -> None:
        """Keep only the fact that these topics have news; count each value that was not sent before."""
        stale = reader.stale
        for entry in batch.entries:
            topic = entry.record.topic
            if topic in stale:
                self.superseded += 1
                reader.superseded += 1
            else:
                stale[topic] = entry
