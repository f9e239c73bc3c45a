"""Where a reader's messages go: what a door promises for each of its connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..entities.position import Gap
from .feed import Batch

if TYPE_CHECKING:
    from .reader import Reader


class Sink(Protocol):
    """Where a reader's messages go: a door's side of one connection. All methods return at once."""

    def deliver(self, reader: Reader, batch: Batch) -> bool:
        """Take the whole batch (True), or nothing of it because it is full (False; then call ``reader.resume``)."""
        ...

    def missed(self, reader: Reader, gap: Gap) -> None:
        """Tell the client that it cannot get these entries."""
        ...

    def lagging(self, reader: Reader, lag: int) -> None:
        """Tell the client that it fell behind by about ``lag`` messages, or (0) that it has caught up."""
        ...
