"""Readers with the same filters: an entry is matched once for all of them, and they are live everywhere but where noted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final

from ..entities.position import Partition
from ..entities.topic import TopicFilter
from .round import Outlet, Round

if TYPE_CHECKING:
    from .reader import Reader

KNOWN_TOPICS: Final = 4_096
NOBODY: Final[dict[Partition, set[Reader]]] = {}  # behind; shared by all groups in which all are live, never written to
NO_TOPICS: Final[dict[str, bool]] = {}  # the same for what a group was asked about


class Group:
    """All readers with the same filters. They are live in each of ``partitions``, but for those that are behind there.

    Most groups are of one idle device: nearly all that they could hold is made when it is needed. ``outlet``: by which
    they get what comes, once one of them takes whole rounds; without it they get each batch at once.
    """

    __slots__ = ("_behind", "_known", "filters", "outlet", "partitions", "readers")

    def __init__(self, filters: tuple[TopicFilter, ...], partitions: tuple[Partition, ...]) -> None:
        self.filters = filters
        self.partitions = partitions
        self.readers: dict[Reader, None] = {}
        self.outlet: Outlet | None = None
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

    def is_live(self, reader: Reader, partition: Partition) -> bool:
        """Whether a reader is live in a partition."""
        behind = self._behind.get(partition)
        return behind is None or reader not in behind

    @property
    def pending(self) -> Round | None:
        """What the feed has passed and the readers have yet to get."""
        return None if self.outlet is None else self.outlet.pending

    def flush(self) -> None:
        """Hand out what waits, now."""
        if self.outlet is not None:
            self.outlet.flush()

    def in_rounds(self, failed: Callable[[Exception], None]) -> None:
        """From now on hand out rounds; a fault in it is told to ``failed``."""
        if self.outlet is None:
            self.outlet = Outlet(lambda whole: self._hand_out(whole, failed))

    def _hand_out(self, whole: Round, failed: Callable[[Exception], None]) -> None:
        lagging: set[Reader] = set()
        lagging.update(*self._behind.values())
        for reader in tuple(self.readers):
            try:
                reader.take_round(whole, reader in lagging)
            except Exception as error:  # told, and the others get theirs all the same
                failed(error)

    def fall_behind(self, reader: Reader, partitions: Iterable[Partition]) -> None:
        """A reader is not live there any more."""
        if self._behind is NOBODY:
            self._behind = {}
        for partition in partitions:
            self._behind.setdefault(partition, set()).add(reader)

    def go_live(self, reader: Reader, partitions: Iterable[Partition]) -> None:
        """A reader is live there again, from where the feed stands: what waits for the others is not for it."""
        self.flush()
        for partition in partitions:
            behind = self._behind.get(partition)
            if behind is not None:
                behind.discard(reader)
                if not behind:
                    del self._behind[partition]
        if not self._behind:
            self._behind = NOBODY
