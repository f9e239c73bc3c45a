"""Rounds: what the readers of a group are handed at once, so that one frame can be made for all of them.

A round holds what came for the group in one turn of the event loop. Where many deliveries a second are due, it waits a
few milliseconds for what follows: each reader then costs one write for several messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..entities.position import Partition, Position

if TYPE_CHECKING:
    from .feed import Batch

LINGER_S: Final = 0.008
LINGERS_FROM: Final = 20_000.0  # deliveries a second to one group; below it nothing waits
LINGERS_FULLY: Final = 100_000.0
WINDOW_S: Final = 0.1
ROUND_ENTRIES: Final = 1_000
ROUND_BYTES: Final = 256 * 1024


class Round:
    """Batches of several partitions in the order in which they came.

    ``before``: where the feed stood in each of these partitions before the first of them. ``count``: entries in all,
    ``size``: their bytes. ``at``: when it was handed out, on the event loop's clock. ``encoded``: shared by all readers, so that each form of
    it is made once.
    """

    __slots__ = ("at", "batches", "before", "count", "encoded", "size")

    def __init__(self) -> None:
        self.at = 0.0
        self.batches: list[Batch] = []
        self.before: dict[Partition, Position] = {}
        self.count = 0
        self.size = 0
        self.encoded: dict[object, Any] = {}

    def add(self, batch: Batch, before: Position) -> None:
        """Take one more batch; the feed stood at ``before``."""
        self.batches.append(batch)
        self.before.setdefault(batch.partition, before)
        self.count += len(batch.entries)
        self.size += sum([len(entry.record.body) for entry in batch.entries])


class Outlet:
    """Gathers the rounds of one group and hands them to ``hand_out``, each at its time.

    A round leaves in the turn of the event loop in which it began, below ``LINGERS_FROM`` deliveries a second. From there
    it waits for what follows, up to 8 ms at ``LINGERS_FULLY``.
    """

    __slots__ = ("_count", "_hand_out", "_handle", "_rate", "_since", "pending")

    def __init__(self, hand_out: Callable[[Round], None]) -> None:
        self.pending: Round | None = None
        self._hand_out = hand_out
        self._handle: asyncio.Handle | None = None
        self._rate = 0.0
        self._count = 0
        self._since = 0.0

    def add(self, batch: Batch, before: Position, readers: int) -> None:
        """Take a batch for so many readers."""
        pending = self.pending
        if pending is None:
            pending = self.pending = Round()
            self._schedule()
        pending.add(batch, before)
        self._count += len(batch.entries) * readers
        if pending.count >= ROUND_ENTRIES or pending.size >= ROUND_BYTES:
            self.flush()

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        wait = self.linger(loop.time())
        self._handle = loop.call_later(wait, self.flush) if wait > 0 else loop.call_soon(self.flush)

    def linger(self, now: float) -> float:
        """The seconds that a round waits, from the deliveries of the last tenth of a second."""
        elapsed = now - self._since
        if elapsed >= WINDOW_S:
            self._rate = self._count / elapsed
            self._count = 0
            self._since = now
        share = (self._rate - LINGERS_FROM) / (LINGERS_FULLY - LINGERS_FROM)
        return LINGER_S * min(1.0, max(0.0, share))

    def flush(self) -> None:
        """Hand out what waits, now."""
        pending, self.pending = self.pending, None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if pending is not None:
            pending.at = asyncio.get_running_loop().time()
            self._hand_out(pending)
