"""Who follows the log: new entries are handed over from memory to those that keep up, the others read the file."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from typing import Final

from ...entities.position import Partition, Position
from ...use_cases.ports.message_log import Slice

MOST_BYTES: Final = 2 << 20


class Follower:
    """One follower's place in each of its partitions, and the few slices that wait for it in memory.

    A partition is ``live`` when the waiting slices reach to the end of the log; then new ones are put behind them, as
    long as there is room. Otherwise it is behind, and its follower reads on from ``places`` in the file once it has
    taken what waits. Memory and file take turns, so that a busy partition never starves one that is behind.
    """

    __slots__ = ("_bytes", "_file_is_due", "_slices", "_waiting", "behind", "live", "places", "version", "wake")

    def __init__(self, places: Mapping[Partition, Position]) -> None:
        self.places = dict(places)
        self.live: set[Partition] = set()
        self.behind: dict[Partition, None] = dict.fromkeys(places)
        self.wake = asyncio.Event()
        self.version = (0, 0)
        self._slices: deque[tuple[Slice, int]] = deque()
        self._waiting: Counter[Partition] = Counter()
        self._bytes = 0
        self._file_is_due = False

    def offer(self, piece: Slice, size: int) -> None:
        """Take a slice that follows on from what is waiting, or fall behind."""
        partition = piece.partition
        place = self.places[partition].offset
        if partition in self.live and piece.end.offset <= place:
            return  # the file was read between the commit and its announcement
        room = not self._slices or self._bytes + size <= MOST_BYTES
        if partition in self.live and room and piece.entries[0].position.offset == place + 1:
            self._slices.append((piece, size))
            self._waiting[partition] += 1
            self._bytes += size
            self.places[partition] = piece.end
        else:
            self.live.discard(partition)
            self.behind[partition] = None
        self.wake.set()

    def next_step(self) -> Slice | Partition | None:
        """What to do: hand out a slice, read a partition from the file, or wait.

        A partition that is read is off the list; what is offered meanwhile puts it back.
        """
        partition = next((one for one in self.behind if not self._waiting[one]), None)
        if partition is not None and (self._file_is_due or not self._slices):
            self._file_is_due = False
            del self.behind[partition]
            return partition
        self._file_is_due = True
        if not self._slices:
            return None
        piece, size = self._slices.popleft()
        self._waiting[piece.partition] -= 1
        self._bytes -= size
        return piece

    def is_news(self, version: tuple[int, int]) -> bool:
        """Note the file's version; when it is another, every partition has to be read again."""
        if version == self.version:
            return False
        self.version = version
        self.behind = dict.fromkeys(self.places)
        return True

    def took(self, piece: Slice) -> bool:
        """Note what was read from the file; tells whether it is worth handing out."""
        partition = piece.partition
        if piece.end != self.places[partition]:
            self.places[partition] = piece.end
            self.behind[partition] = None
            return True
        if partition not in self.behind:
            self.live.add(partition)
        return False


class Followers:
    """All followers of one log."""

    def __init__(self) -> None:
        self._by_partition: dict[Partition, dict[Follower, None]] = {}

    def add(self, places: Mapping[Partition, Position]) -> Follower:
        """A follower that begins by reading the file from its places."""
        follower = Follower(places)
        for partition in places:
            self._by_partition.setdefault(partition, {})[follower] = None
        return follower

    def remove(self, follower: Follower) -> None:
        """Forget a follower."""
        for partition in follower.places:
            mine = self._by_partition.get(partition, {})
            mine.pop(follower, None)
            if not mine:
                self._by_partition.pop(partition, None)

    def wanted(self, partition: Partition) -> bool:
        """Tell whether anybody follows the partition."""
        return partition in self._by_partition

    def offer(self, piece: Slice, size: int) -> None:
        """Hand newly committed entries of ``size`` bytes to whoever follows their partition."""
        for follower in self._by_partition.get(piece.partition, ()):
            follower.offer(piece, size)

    def wake_all(self) -> None:
        """Let every follower look again, for the log was closed."""
        for followers in self._by_partition.values():
            for follower in followers:
                follower.wake.set()
