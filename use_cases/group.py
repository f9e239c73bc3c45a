"""Readers with the same filters: an entry is matched once for all of them, and they are live everywhere but where noted."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from ..entities.position import Partition
from ..entities.topic import TopicFilter

if TYPE_CHECKING:
    from .reader import Reader

KNOWN_TOPICS: Final = 4_096
NOBODY: Final[dict[Partition, set[Reader]]] = {}  # behind; shared by all groups in which all are live, never written to
NO_TOPICS: Final[dict[str, bool]] = {}  # the same for what a group was asked about


class Group:
    """All readers with the same filters. They are live in each of ``partitions``, but for those that are behind there.

    Most groups are of one idle device: nearly all that they could hold is made when it is needed.
    """

    __slots__ = ("_behind", "_known", "filters", "partitions", "readers")

    def __init__(self, filters: tuple[TopicFilter, ...], partitions: tuple[Partition, ...]) -> None:
        self.filters = filters
        self.partitions = partitions
        self.readers: dict[Reader, None] = {}
        self._behind = NOBODY
        self._known = NO_TOPICS

    def selects(self, topic: str) -> bool:
        """Whether any of the filters selects the topic; topics come again and again."""
        found = self._known.get(topic)
        if found is None:
            if self._known is NO_TOPICS or len(self._known) >= KNOWN_TOPICS:
                self._known = {}
            found = self._known[topic] = any(wanted.matches(topic) for wanted in self.filters)
        return found

    def live(self, partition: Partition) -> Collection[Reader]:
        """Those that are live in a partition, as they are now."""
        behind = self._behind.get(partition)
        if behind is None:
            return tuple(self.readers)
        return [reader for reader in self.readers if reader not in behind]

    def fall_behind(self, reader: Reader, partitions: Iterable[Partition]) -> None:
        """A reader is not live there any more."""
        if self._behind is NOBODY:
            self._behind = {}
        for partition in partitions:
            self._behind.setdefault(partition, set()).add(reader)

    def go_live(self, reader: Reader, partitions: Iterable[Partition]) -> None:
        """A reader is live there again."""
        for partition in partitions:
            behind = self._behind.get(partition)
            if behind is not None:
                behind.discard(reader)
                if not behind:
                    del self._behind[partition]
        if not self._behind:
            self._behind = NOBODY
