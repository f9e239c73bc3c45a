"""Catching up: a reader that is behind reads the log by itself, partition by partition, until it meets the feed."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from ..entities.errors import Unavailable
from ..entities.message import Entry
from ..entities.position import Partition, Position
from .feed import Batch, Feed
from .ports.message_log import MessageLog, Slice

if TYPE_CHECKING:
    from .reader import Reader

READ_ENTRIES: Final = 128  # about a millisecond's work, for which all others wait
READ_BYTES: Final = 256 * 1024
RETRY_S: Final = 0.25
FLUSH_ENTRIES: Final = 200


class CatchUp:
    """Takes one reader from where it is behind to where the feed stands, and ends."""

    __slots__ = ("_ahead", "_feed", "_log", "_reader")

    def __init__(self, reader: Reader, feed: Feed, log: MessageLog) -> None:
        self._reader = reader
        self._feed = feed
        self._log = log
        self._ahead: tuple[Partition, Position, asyncio.Future[Slice]] | None = None

    async def run(self) -> None:
        """Go on until the reader is live in all partitions, with no last value left to be sent, or closed."""
        reader = self._reader
        if reader.playback is not None:
            await reader.playback.run(reader)
            reader.playback = None
        try:
            while (reader.behind or reader.stale) and not reader.closed:
                await self._send_stale()
                partitions = list(reader.behind)
                for partition, following in zip(partitions, [*partitions[1:], *partitions[:1]], strict=True):
                    await self._read_on(partition, following)
        finally:
            self._forget()

    async def _send_stale(self) -> None:
        """Send the value of each topic with news: the newest one, or (complete) the one that was last at the start."""
        reader, feed = self._reader, self._feed
        newest = reader.subscription.policy == "latest"
        while reader.stale and not reader.closed:
            reader.group.flush()  # or a value that waits there would be sent twice: here as the newest one
            by_partition: dict[Partition, list[Entry]] = {}
            for topic, entry in list(islice(reader.stale.items(), FLUSH_ENTRIES)):
                partition = entry.record.partition
                chosen = (feed.last_values.get(partition, topic) or entry) if newest else entry
                by_partition.setdefault(partition, []).append(chosen)
            for partition, entries in by_partition.items():
                sent = {entry.record.topic: reader.stale.pop(entry.record.topic) for entry in entries}
                if not reader.offer(Batch(partition, entries, feed.positions[partition], values=True)):
                    reader.stale = {**sent, **reader.stale}  # first in turn, or others would take its tokens for ever
                    await reader.until_room()
                    break
        reader.held = None

    async def _read_on(self, partition: Partition, following: Partition) -> None:
        """Take one slice of a partition; the ``following`` one is asked for while this one is on its way to the client."""
        reader = self._reader
        after = reader.behind[partition]
        try:
            part = await self._asked(partition, after)
        except Unavailable:
            await asyncio.sleep(RETRY_S)  # the log is coming back; the publisher counts and reports its absence
            return
        if reader.closed or partition not in reader.behind:
            return
        if part.gap is not None:
            reader.sink.missed(reader, part.gap)
            after = part.entries[0].position.before if part.entries else part.end
        if part.entries and following in reader.behind:
            self._ask(following, part.end if following == partition else reader.behind[following])
        entries = reader.wanted(part.entries)
        if entries:
            reader.behind[partition] = part.end
            if not reader.offer(Batch(partition, entries, part.end)):
                # What was read is read again later: a thousand stalled readers must not keep a slice each.
                reader.behind[partition] = after
                self._forget()
                await reader.until_room()
                return
        reader.behind[partition] = part.end
        if part.end >= self._feed.positions[partition]:
            reader.join(partition, part.end)
        await asyncio.sleep(0)  # what was asked for may be there already, and others have their turn all the same

    def _ask(self, partition: Partition, after: Position) -> None:
        self._forget()
        limit = int(min(READ_ENTRIES, max(1.0, self._reader.subscription.max_rate or READ_ENTRIES)))
        read = asyncio.ensure_future(self._log.read(partition, after, limit, READ_BYTES))
        self._ahead = (partition, after, read)

    async def _asked(self, partition: Partition, after: Position) -> Slice:
        if self._ahead is None or self._ahead[:2] != (partition, after):
            self._ask(partition, after)
        assert self._ahead is not None
        read = self._ahead[2]
        try:
            return await read
        finally:
            if self._ahead is not None and self._ahead[2] is read and read.done():
                self._ahead = None

    def _forget(self) -> None:
        """Nobody waits any more for what was asked for."""
        if self._ahead is not None:
            self._ahead[2].cancel()
            self._ahead[2].add_done_callback(_look_away)
            self._ahead = None


def _look_away(read: asyncio.Future[Slice]) -> None:
    """Whatever it came to, it was not needed; the next one to ask hears of a fault."""
    if not read.cancelled():
        read.exception()
