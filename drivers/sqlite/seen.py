"""Which message ids were appended lately: a compact index from the hash of an id to its place in the log.

The ids of ten minutes at 20,000 messages a second would take gigabytes as Python objects. Here each takes 16 to 32
bytes, in open-addressing tables of anonymous memory; a table is dropped once its newest id is older than the window.
The index is not stored: it is made again from the hashes that lie beside the records.
"""

from __future__ import annotations

import mmap
from collections import deque
from typing import Final

WINDOW_MS: Final = 10 * 60 * 1000
_SMALLEST: Final = 1 << 12
_LARGEST: Final = 1 << 20


class _Table:
    """Keys and values side by side; a key of 0 is an empty slot. At most half full, so probes stay short."""

    __slots__ = ("count", "keys", "mask", "newest", "values")

    def __init__(self, slots: int) -> None:
        self.mask = slots - 1
        self.keys = memoryview(mmap.mmap(-1, slots * 8)).cast("Q")
        self.values = memoryview(mmap.mmap(-1, slots * 8)).cast("Q")
        self.count = 0
        self.newest = 0

    def add(self, key: int, value: int) -> None:
        keys, mask = self.keys, self.mask
        slot = key & mask
        while keys[slot]:
            slot = (slot + 1) & mask
        keys[slot] = key
        self.values[slot] = value
        self.count += 1


class SeenIds:
    """An index from 64-bit hashes (not 0) to 64-bit places (not 0), which forgets by age.

    Two ids may share a hash, so the caller compares the id at the place that it is told.
    """

    def __init__(self) -> None:
        self._tables: deque[_Table] = deque((_Table(_SMALLEST),))

    def __len__(self) -> int:
        return sum(table.count for table in self._tables)

    def add(self, key: int, place: int, now: int) -> None:
        """Remember a hash at time ``now`` (ms); times may not go back by more than the window."""
        table = self._tables[-1]
        if table.count * 2 > table.mask:
            while self._tables and self._tables[0].newest < now - WINDOW_MS:
                self._tables.popleft()
            table = _Table(min(_LARGEST, (table.mask + 1) * 4))
            self._tables.append(table)
        table.add(key, place)
        table.newest = max(table.newest, now)

    def find(self, key: int) -> int:
        """Where it was first seen; 0 when it is not known. Newer tables first: repetitions come soon."""
        for table in reversed(self._tables):
            keys, mask = table.keys, table.mask
            slot = key & mask
            while found := keys[slot]:
                if found == key:
                    return table.values[slot]
                slot = (slot + 1) & mask
        return 0
