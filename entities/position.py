"""Places in the log: partitions, positions, what is retained, and what was lost.

A position is exclusive when it is read from: reading after (e, 7) begins with offset 8. Offsets of one partition are
dense (each accepted message takes the next one), so the difference of two offsets is a count of messages. The epoch
changes when the store below may have forgotten something, and grows, so positions order by (epoch, offset).
"""

from __future__ import annotations

import zlib
from typing import NamedTuple


class Partition(NamedTuple):
    """One ordered sequence of the log."""

    domain: str
    channel: str
    number: int

    def __str__(self) -> str:
        return f"{self.domain}/{self.channel}/{self.number}"


class Position(NamedTuple):
    """A place in one partition."""

    epoch: int
    offset: int

    @property
    def before(self) -> Position:
        """The position to read after in order to get what lies here first."""
        return Position(self.epoch, self.offset - 1)


class Bounds(NamedTuple):
    """What a partition retains: the entries ``first`` to ``last``, both included.

    Empty when ``first.offset == last.offset + 1``. ``last.offset`` is also the number of messages ever accepted.
    """

    first: Position
    last: Position


class Gap(NamedTuple):
    """Entries that a reader can no longer get: the offsets ``first`` to ``last``, both included.

    ``reason``: ``retention`` (trimmed past the hard cap, or before an unregistered reader came), ``corrupt`` (failed
    its checksum), ``rebuilt`` (the log was made anew; ``last`` < ``first`` then, since the extent is not known).
    """

    partition: Partition
    first: int
    last: int
    reason: str

    @property
    def missing(self) -> int:
        """How many messages are missing; 0 where it cannot be known."""
        return max(0, self.last - self.first + 1)


def partition_index(key: str, count: int) -> int:
    """Map a key to one of ``count`` partitions. The hash is CRC-32 of the UTF-8 key: stable for ever, everywhere."""
    return zlib.crc32(key.encode()) % count
