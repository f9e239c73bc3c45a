"""Catching up: a reader that is behind reads the log by itself, partition by partition, until it meets the feed."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from ..entities.errors import Unavailable
from ..entities.message import Entry
from ..entities.position import Partition
from .feed import Batch, Feed
from .ports.message_log import MessageLog

if TYPE_CHECKING:
    from .reader import Reader

READ_ENTRIES: Final = 128  # about a millisecond's work, for which all others wait
READ_BYTES: Final = 256 * 1024
RETRY_S: Final = 0.25
FLUSH_ENTRIES: Final = 200


class CatchUp:
    """Takes one reader from where it is behind to where the feed stands, and ends."""

    __slots__ = ("_feed", "_log", "_reader")

    def __init__(self, reader: Reader, feed: Feed, log: MessageLog) -> None:
        self._reader = reader
        self._feed = feed
        self._log = log

    async def run(self) -> None:
        """Go on until the reader is live in all partitions, with no last value left to be sent, or closed."""
        reader = self._reader
        if reader.playback is not None:
            await reader.playback.run(reader)
            reader.playback = None
        while (reader.behind or reader.stale) and not reader.closed:
            await self._send_stale()
            for partition in list(reader.behind):
                await self._read_on(partition)

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

    async def _read_on(self, partition: Partition) -> None:
        reader = self._reader
        after = reader.behind[partition]
        limit = int(min(READ_ENTRIES, max(1.0, reader.subscription.max_rate or READ_ENTRIES)))
        try:
            part = await self._log.read(partition, after, limit, READ_BYTES)
        except Unavailable:
            await asyncio.sleep(RETRY_S)  # the log is coming back; the publisher counts and reports its absence
            return
        if reader.closed or partition not in reader.behind:
            return
        if part.gap is not None:
            reader.sink.missed(reader, part.gap)
            after = part.entries[0].position.before if part.entries else part.end
        entries = reader.wanted(part.entries)
        if entries:
            reader.behind[partition] = part.end
            if not reader.offer(Batch(partition, entries, part.end)):
                # What was read is read again later: a thousand stalled readers must not keep a slice each.
                reader.behind[partition] = after
                await reader.until_room()
                return
        reader.behind[partition] = part.end
        if part.end >= self._feed.positions[partition]:
            reader.join(partition, part.end)
        elif not part.entries:
            await asyncio.sleep(0)
