"""The log in a SQLite file: the embedded default, which survives kill -9 and power loss without any server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

from ...entities.channel import ChannelSpec, Retention
from ...entities.errors import LogUnavailable, RequestInvalid
from ...entities.message import Entry, Record
from ...entities.position import Bounds, Gap, Partition, Position
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.message_log import Appended, Lease, Progress, Slice, Tally
from ..lineage import BEGINNING
from . import chunks, trimming
from . import progress as kept
from .catalogue import probe
from .file import LogFile
from .followers import Follower
from .seen import WINDOW_MS

CATCH_UP: Final = 1_000
END_OF_TIME: Final = 1 << 62
FIND_AROUND_MS: Final = 60_000
SHORTEST_PAUSE_S: Final = 0.002
LONGEST_PAUSE_S: Final = 0.05


class SqliteLog:
    """A ``MessageLog`` in ``directory``; an async context manager.

    One process writes: a second one gets LogUnavailable. Any number of others may read and follow at the same time
    with ``read_only``; they find what they follow within 50 ms, and RequestInvalid when they try to change anything.
    ``durability``: ``fsynced`` or ``logged``. ``max_bytes`` limits the file, 0 = no limit.
    """

    def __init__(
        self, directory: Path, clock: Clock, durability: str = "fsynced", read_only: bool = False, max_bytes: int = 0
    ) -> None:
        if durability not in ("fsynced", "logged"):
            raise RequestInvalid(f"{durability!a} is no durability of this log: write fsynced or logged")
        self.clock = clock
        self.file = LogFile(directory, clock, durability, read_only, max_bytes)

    @property
    def durability(self) -> str:
        """``fsynced`` or ``logged``."""
        return self.file.durability

    @property
    def quarantined(self) -> Path | None:
        """Where a file lies that was found damaged when it was opened; the log then began anew in a new epoch."""
        return self.file.quarantined

    async def __aenter__(self) -> SqliteLog:
        """Open the file. Raises LogUnavailable: another process writes it, or it cannot be used."""
        await self.file.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what is waiting and close the file. Followers get LogUnavailable."""
        await self.file.close()

    async def ensure(self, domain: str, channels: Mapping[str, ChannelSpec]) -> None:
        """Make the channels that are missing; with ``read_only``, look for them."""
        catalogue = self.file.catalogue
        if catalogue.has(domain, channels):
            return
        if self.file.read_only:
            await self.file.reload()
            if not catalogue.has(domain, channels):
                raise RequestInvalid(f"{self.file.path} lacks channels of {domain!a}: start its gateway first")
        else:
            catalogue.add(await self.file.change(lambda connection: catalogue.make(connection, domain, channels)))

    def domains(self) -> Sequence[str]:
        """All domains, sorted."""
        return self.file.catalogue.domains()

    def partitions(self, domain: str, channel: str) -> Sequence[Partition]:
        """The channel's partitions. Raises UnknownDomain."""
        return self.file.catalogue.partitions(domain, channel)

    async def append(self, records: Sequence[Record]) -> Appended:
        """Append all, or nothing. Raises LogUnavailable, LogFull, UnknownDomain."""
        shelves = self.file.catalogue.shelves
        for record in records:
            if record[0] not in shelves:
                self.file.shelf(record[0])
        self.file.demand_writing()
        return await self.file.append(records) if records else Appended([], frozenset())

    async def bounds(self, partition: Partition) -> Bounds:
        """What is retained."""
        shelf = self.file.shelf(partition)
        return await self.file.query(lambda connection: chunks.bounds(connection, shelf))

    async def read(self, partition: Partition, after: Position, limit: int = 500, max_bytes: int = 1 << 20) -> Slice:
        """Entries after a position, and the gap before them."""
        file = self.file
        shelf = file.shelf(partition)
        if file.is_open and not file.read_only and shelf.last and after == shelf.lineage.position(shelf.last):
            return Slice(partition, [], after)
        return await file.query(lambda connection: chunks.read(connection, shelf, after, limit, max_bytes))

    async def follow(self, after: Mapping[Partition, Position]) -> AsyncGenerator[Slice, None]:
        """Slices from memory as long as the consumer keeps up, else from the file."""
        places = {
            partition: await self._beginning(partition) if position == BEGINNING else position
            for partition, position in after.items()
        }
        follower = self.file.followers.add(places)
        try:
            while True:
                follower.wake.clear()
                step = follower.next_step()
                if isinstance(step, Partition):
                    piece = await self.read(step, follower.places[step], CATCH_UP)
                    if follower.took(piece):
                        yield piece
                elif step is not None:
                    yield step
                elif not self.file.is_open:
                    raise LogUnavailable("the log was closed: open it again and follow on from the last position")
                elif self.file.read_only:
                    await self._watch(follower)
                else:
                    await follower.wake.wait()
        finally:
            self.file.followers.remove(follower)

    async def _beginning(self, partition: Partition) -> Position:
        shelf = self.file.shelf(partition)
        return await self.file.query(lambda c: shelf.lineage.position(chunks.first_retained(c, shelf) - 1))

    async def _watch(self, follower: Follower) -> None:
        """Wait until another process has written to the file."""
        pause = SHORTEST_PAUSE_S
        while not follower.is_news(await self.file.version()):
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)

    async def at(self, partition: Partition, time: int) -> Position:
        """The position before the first entry that was appended at or after ``time`` (ms)."""
        shelf = self.file.shelf(partition)
        return await self.file.query(lambda connection: chunks.at(connection, shelf, time))

    async def find(self, domain: str, message_id: str) -> Entry | None:
        """Look around the time that an id of version 7 tells, then everywhere."""
        made_at = time_of(message_id)
        spans = [(0, END_OF_TIME)]
        if made_at is not None:
            spans.insert(0, (made_at - FIND_AROUND_MS, made_at + FIND_AROUND_MS))
        for since, until in spans:
            for partition, shelf in list(self.file.catalogue.shelves.items()):
                if partition.domain != domain:
                    continue
                place, last = (await self.at(partition, since)).offset + 1, (await self.at(partition, until)).offset
                while 0 < place <= last:
                    question = partial(chunks.find, shelf=shelf, message_id=message_id, start=place)
                    place, entry = await self.file.query(question)
                    if entry is not None:
                        return entry
        return None

    async def entries(self, places: Sequence[tuple[Partition, Position]]) -> Sequence[Entry | None]:
        """The entry at each place, from one question for all."""
        wanted = [(self.file.shelf(partition), position.offset) for partition, position in places]
        return await self.file.query(lambda connection: chunks.entries_at(connection, wanted))

    async def register(self, reader: str, positions: Mapping[Partition, Position]) -> None:
        """Make a reader known from what the positions mean now."""
        places = [(self.file.shelf(partition), position) for partition, position in positions.items()]
        await self.file.change(lambda connection: kept.register(connection, reader, places))

    async def commit(
        self,
        reader: str,
        progress: Mapping[Partition, tuple[Position, Tally]],
        fences: Mapping[Partition, int] | None = None,
    ) -> None:
        """Move a reader on. Raises Fenced, RequestInvalid."""
        moves = [(self.file.shelf(partition), *move) for partition, move in progress.items()]
        guards = [(self.file.shelf(partition), fence) for partition, fence in (fences or {}).items()]
        await self.file.change(lambda connection: kept.commit(connection, reader, moves, guards))

    async def committed(self, reader: str) -> Mapping[Partition, Progress]:
        """The reader's progress."""
        shelves = self.file.catalogue.shelves
        return await self.file.query(lambda connection: kept.committed(connection, shelves, reader))

    async def readers(self, domain: str) -> Sequence[str]:
        """The domain's readers, sorted."""
        return await self.file.query(lambda connection: kept.readers(connection, domain))

    async def forget(self, reader: str) -> None:
        """Remove a reader."""
        await self.file.change(lambda connection: kept.forget(connection, reader))

    async def lease(self, reader: str, partition: Partition, owner: str, ttl: int) -> Lease:
        """Take or renew a lease. Raises LeaseHeld."""
        shelf, now = self.file.shelf(partition), self.clock.now()
        wanted = Lease(reader, partition, owner, 0, now + ttl)
        return await self.file.change(lambda connection: kept.lease(connection, wanted, shelf, now))

    async def release(self, lease: Lease) -> None:
        """Give a lease back; its fence is remembered."""
        shelf = self.file.shelf(lease.partition)
        await self.file.change(lambda connection: kept.release(connection, lease, shelf))

    async def retain(self, partition: Partition, retention: Retention, now: int) -> Gap | None:
        """Trim, and announce what a reader or work queue lost; the file is cleared in small steps."""
        shelf = self.file.shelf(partition)
        gap = await self.file.change(lambda connection: kept.retain(connection, shelf, retention, now))
        since = self.clock.now() - WINDOW_MS
        while await self.file.change(lambda connection: trimming.sweep(connection, shelf, since)):
            pass
        return gap

    async def losses(self, domain: str) -> Sequence[tuple[str, Gap]]:
        """The announced losses of the domain, oldest first."""
        shelves = self.file.catalogue.shelves
        return await self.file.query(lambda connection: kept.losses(connection, shelves, domain))

    async def ready(self) -> None:
        """Write a few pages. Raises LogUnavailable, LogFull."""
        if self.file.read_only:
            await self.file.version()
        else:
            await self.file.change(probe)


def time_of(message_id: str) -> int | None:
    """When a UUID of version 7 was made, in ms (RFC 9562 section 5.7); None for any other text."""
    if len(message_id) != 36 or message_id[14] != "7":
        return None
    try:
        return int(message_id[:8] + message_id[9:13], 16)
    except ValueError:
        return None
