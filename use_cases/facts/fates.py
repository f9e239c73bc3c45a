"""What became of the entries that a lane has read: which of them are done, which wait, and what may be committed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ...entities.message import Entry
from ...entities.position import Position
from ..ports.message_log import Tally


@dataclass(slots=True)
class Fate:
    """What became of what lies up to a position, after the fate before it; None: it is open."""

    position: Position
    tally: Tally | None = None


Item = tuple[Entry, Fate]


class Fates:
    """Fates in the order of the log. ``under_way``: what is being committed."""

    def __init__(self) -> None:
        self.under_way: tuple[Position, Tally] | None = None
        self._fates: deque[Fate] = deque()

    def __len__(self) -> int:
        return len(self._fates)

    def add(self, position: Position, tally: Tally | None = None) -> Fate:
        """The next one."""
        fate = Fate(position, tally)
        self._fates.append(fate)
        return fate

    def pass_to(self, position: Position) -> None:
        """Note a place behind all entries, if it is not there yet."""
        if not self._fates or self._fates[-1].position < position:
            self._fates.append(Fate(position, Tally()))

    def next_commit(self) -> tuple[Position, Tally] | None:
        """The place up to the first open fate, with what was done since the place before; None: it is where it was.

        The same again until ``committed`` is called. The log ignores a repetition, and with it its tally; were more
        added to a commit whose answer got lost, that would be ignored too, or what was committed be counted twice.
        """
        if self.under_way is None:
            position, tally = None, Tally()
            while self._fates and (done := self._fates[0].tally) is not None:
                tally = tally.plus(done)
                position = self._fates.popleft().position
            if position is not None:
                self.under_way = position, tally
        return self.under_way

    def committed(self) -> None:
        """The log has taken what ``next_commit`` returned."""
        self.under_way = None


@dataclass(slots=True)
class Queue:
    """The entries of one key that wait behind the first of them, which is tried again at ``due`` (loop seconds).

    ``blames``: how often the first one made its handler fail; ``waits``: how often it was put off.
    """

    items: deque[Item] = field(default_factory=deque)
    due: float = 0.0
    blames: int = 0
    waits: int = 0


class Parking:
    """The queues of a lane by key. ``size``: the bytes of all that wait in them; ``count``: how many entries."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.size = 0
        self.count = 0

    def queue(self, key: str) -> Queue:
        """The queue of a key, made where missing."""
        return self.queues.setdefault(key, Queue())

    def park(self, queue: Queue, item: Item) -> None:
        """Let an entry wait behind the others of its key."""
        queue.items.append(item)
        self.size += len(item[0].record.body)
        self.count += 1

    def leave(self, queue: Queue) -> None:
        """The first entry of a queue waits no longer; the next one starts with a clean record."""
        entry, _ = queue.items.popleft()
        self.size -= len(entry.record.body)
        self.count -= 1
        queue.blames = queue.waits = 0

    def due(self) -> float | None:
        """When the next one is to be tried again (loop seconds); None when nothing waits."""
        return min((queue.due for queue in self.queues.values()), default=None)
