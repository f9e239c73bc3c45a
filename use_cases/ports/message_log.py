"""The durable, partitioned log, as the use cases see it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import NamedTuple, Protocol

from ...entities.channel import ChannelSpec, Retention
from ...entities.message import Entry, Record
from ...entities.position import Bounds, Gap, Partition, Position


class Appended(NamedTuple):
    """What an append did: a position per record, in order, and the indexes of those that were there already."""

    positions: Sequence[Position]
    duplicates: frozenset[int]


class Slice(NamedTuple):
    """Consecutive entries of one partition.

    ``gap``: what the reader can no longer get, lying before the entries. ``end``: where to read on after this slice
    (it moves even when ``entries`` is empty, so a gap is told once).
    """

    partition: Partition
    entries: Sequence[Entry]
    end: Position
    gap: Gap | None = None


class Tally(NamedTuple):
    """What became of the messages that a reader passed; each counts once."""

    applied: int = 0
    superseded: int = 0
    expired: int = 0
    dead_lettered: int = 0
    lost: int = 0

    def plus(self, other: Tally) -> Tally:
        """The sum, field by field."""
        return Tally(*(a + b for a, b in zip(self, other, strict=True)))


class Progress(NamedTuple):
    """How far a registered reader came in one partition: from ``start`` to ``position``, and what it did."""

    start: Position
    position: Position
    tally: Tally


class Lease(NamedTuple):
    """The exclusive right to read a partition for a reader. ``fence`` grows with each new owner."""

    reader: str
    partition: Partition
    owner: str
    fence: int
    expires_at: int


class MessageLog(Protocol):
    """Ordered partitions that keep what they accepted.

    Order: entries of one partition are read in the order in which they were appended. Durability: ``append`` returns
    once the batch is durable at ``durability``. Errors: LogUnavailable and LogFull (retry), UnknownDomain. Repeating
    ``append`` with the same records is safe: a message id that was appended within the dedupe window (10 minutes at
    least) gets its first position back and is not written again; this includes records that are ``minted`` as long
    as the repetition comes from this driver object.
    """

    @property
    def durability(self) -> str:
        """``fsynced`` (survives power loss), ``logged`` (may lose the last 2 s at power loss) or ``memory``."""
        ...

    async def ensure(self, domain: str, channels: Mapping[str, ChannelSpec]) -> None:
        """Make the domain's channels where missing. The partition count that is stored already wins. Idempotent."""
        ...

    def domains(self) -> Sequence[str]:
        """The domains that this driver object knows."""
        ...

    def partitions(self, domain: str, channel: str) -> Sequence[Partition]:
        """The channel's partitions, by index. Raises UnknownDomain. Cheap: it is in the message path."""
        ...

    async def append(self, records: Sequence[Record]) -> Appended:
        """Make the records durable, in order within each partition.

        On an error any part of the batch may be in the log, and repeating the call is safe. The same message id
        twice inside one batch is one message.
        """
        ...

    async def bounds(self, partition: Partition) -> Bounds:
        """What is retained."""
        ...

    async def read(self, partition: Partition, after: Position, limit: int = 500, max_bytes: int = 1 << 20) -> Slice:
        """Up to ``limit`` entries (and about ``max_bytes`` of bodies, at least one entry) after a position.

        Returns at once; an empty slice with ``end == after`` means that the reader has everything. A position that
        lies before what is retained, in a lost epoch, or at a corrupt entry yields a gap. ``Position(0, 0)`` means
        the beginning of what is retained, and yields no gap.
        """
        ...

    def follow(self, after: Mapping[Partition, Position]) -> AsyncGenerator[Slice, None]:
        """All slices after the given positions, then each further one as it becomes durable, for ever.

        Per partition the slices are consecutive, without a hole. What the consumer does not take stays in the log,
        not in memory. Several followers are independent. Close it with ``aclose``.
        """
        ...

    async def at(self, partition: Partition, time: int) -> Position:
        """The position to read after in order to get all that was appended at or after ``time`` (ms)."""
        ...

    async def find(self, domain: str, message_id: str) -> Entry | None:
        """Where a message id is, as long as it is retained. May scan: not for the message path."""
        ...

    async def entries(self, places: Sequence[tuple[Partition, Position]]) -> Sequence[Entry | None]:
        """The entry at each place that an append told, read together; None where it is trimmed or damaged.

        Whole entries come, so ask for tens or hundreds, not for any number.
        """
        ...

    async def register(self, reader: str, positions: Mapping[Partition, Position]) -> None:
        """Make a reader known, so that retention waits for it. Partitions that it has already keep their progress."""
        ...

    async def commit(
        self,
        reader: str,
        progress: Mapping[Partition, tuple[Position, Tally]],
        fences: Mapping[Partition, int] | None = None,
    ) -> None:
        """Move a reader on and add to its tallies, all or nothing.

        A position below the committed one is ignored together with its tally (repeating is safe). Raises Fenced when
        a fence is given and a newer lease exists, and RequestInvalid for a reader that is not registered.
        """
        ...

    async def committed(self, reader: str) -> Mapping[Partition, Progress]:
        """The reader's progress; empty when it is not registered."""
        ...

    async def readers(self, domain: str) -> Sequence[str]:
        """The names of registered readers, sorted. Names begin with their domain: ``iotsphere/…``."""
        ...

    async def forget(self, reader: str) -> None:
        """Remove a reader; retention no longer waits for it. Unknown readers are no error."""
        ...

    async def lease(self, reader: str, partition: Partition, owner: str, ttl: int) -> Lease:
        """Take or renew the exclusive right for ``ttl`` ms. Raises LeaseHeld while another owner has it."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give the lease back early. A lease that was lost already is no error."""
        ...

    async def retain(self, partition: Partition, retention: Retention, now: int) -> Gap | None:
        """Trim by the rules of ``Retention``. Returns the range that a registered reader lost, if the cap forced it.

        Such losses are remembered: ``losses`` lists them, and the reader is told by ``read``.
        """
        ...

    async def losses(self, domain: str) -> Sequence[tuple[str, Gap]]:
        """(reader, gap) for each announced loss of a registered reader, oldest first (the last 1,000)."""
        ...

    async def ready(self) -> None:
        """Raise LogUnavailable or LogFull when an append would fail now."""
        ...
