"""A log in memory with a running feed, and sinks that keep what they are told: the machinery without any door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from iotsphere.adapters.values import pack_values, unpack_values
from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.documents import MemoryDocuments
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.drivers.memory.queue import MemoryWorkQueue
from iotsphere.entities.channel import ChannelSpec
from iotsphere.entities.message import Entry, Record
from iotsphere.entities.position import Gap, Partition, Position, partition_index
from iotsphere.entities.subscription import Start, Subscription
from iotsphere.entities.topic import CHANNELS, parse_filter, parse_topic
from iotsphere.use_cases.access.tokens import operator
from iotsphere.use_cases.feed import Batch, Feed
from iotsphere.use_cases.flow_control import MessageFlowControlUseCase
from iotsphere.use_cases.last_values import LastValues
from iotsphere.use_cases.publish import MessagePublishUseCase
from iotsphere.use_cases.reader import Reader
from iotsphere.use_cases.round import Round
from iotsphere.use_cases.subscribe import MessageSubscriptionUseCase

DOMAIN = "iotsphere"
EVERYTHING = (f"{DOMAIN}/#",)


async def soon(condition: Callable[[], object], what: str) -> None:
    """Let the event loop turn until the condition holds; everything here happens in memory."""
    deadline = asyncio.get_running_loop().time() + 60
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within 60 s: {what}"
        await asyncio.sleep(0)


class Stage:
    """The use cases over one log. ``monotonic``: the seconds that flow control sees."""

    def __init__(self, clock: ManualClock | None = None, log: MemoryLog | None = None) -> None:
        self.clock = clock or ManualClock()
        self.log = log or MemoryLog(self.clock)
        self.documents = MemoryDocuments()
        self.queue = MemoryWorkQueue(self.log)
        self.monotonic = 100.0
        self.flow = MessageFlowControlUseCase(lambda: self.monotonic)
        self.publish = MessagePublishUseCase(self.log)
        self.feed = self.new_feed()
        self.subscribe = MessageSubscriptionUseCase(self.log, self.feed, self.flow)
        self.principal = operator(DOMAIN)
        self._serial = 0

    def new_feed(self) -> Feed:
        """A feed as a restarted process has it, on the same documents."""
        return Feed(self.log, LastValues(self.documents, pack_values, unpack_values), self.clock)

    async def make(self, partitions: int = 2) -> None:
        """Make the domain's channels."""
        await self.log.ensure(DOMAIN, dict.fromkeys(CHANNELS, ChannelSpec(partitions=partitions)))

    def record(
        self,
        topic: str,
        body: bytes | None = None,
        *,
        timestamp: int | None = None,
        retain: bool = False,
        expires_at: int = 0,
    ) -> Record:
        """A record with an id of its own, in the partition that its topic's key leads to."""
        self._serial += 1
        place = parse_topic(topic)
        partitions = self.log.partitions(place.domain, place.channel)
        return Record(
            partitions[partition_index(place.key, len(partitions))],
            topic,
            f"id-{self._serial}",
            b'{"n":%d}' % self._serial if body is None else body,
            self.clock.now() if timestamp is None else timestamp,
            expires_at,
            retain,
        )

    async def say(self, *records: Record) -> list[Position]:
        """Append records, and let the feed hand them out."""
        positions = list((await self.log.append(records)).positions)
        await self.handed_out()
        return positions

    async def handed_out(self) -> None:
        """Wait until the feed has seen the whole log."""
        for partition in list(self.feed.positions):
            last = (await self.log.bounds(partition)).last
            await soon(partial(self._stands_at, partition, last), f"the feed has read {partition}")

    def _stands_at(self, partition: Partition, position: Position) -> bool:
        return self.feed.positions[partition] >= position

    async def open(self, sink: RecordingSink, *filters: str, **options: object) -> Reader:
        """Subscribe as the operator. ``options``: ``start``, ``policy``, ``max_rate``."""
        start = options.get("start", Start())
        assert isinstance(start, Start)
        wanted = tuple(parse_filter(text) for text in filters or EVERYTHING)
        subscription = Subscription(
            wanted, start, str(options.get("policy", "complete")), float(str(options.get("max_rate", 0.0)))
        )
        sink.reader = await self.subscribe(self.principal, subscription, sink)
        return sink.reader

    def entries(self, matches: Callable[[str], bool] = lambda _: True) -> list[Entry]:
        """What the log holds, per partition in order."""
        found: list[Entry] = []
        for channel in CHANNELS:
            for partition in self.log.partitions(DOMAIN, channel):
                found += [entry for entry in self.log.shelf(partition).entries if matches(entry.record.topic)]
        return found


class RecordingSink:
    """Takes batches as long as it has ``room``; keeps everything that it is told, in order."""

    def __init__(self, room: int | None = None) -> None:
        self.room = room
        self.reader: Reader | None = None
        self.batches: list[Batch] = []
        self.cursors: list[dict[Partition, Position] | None] = []
        self.gaps: list[Gap] = []
        self.lags: list[int] = []

    def deliver(self, reader: Reader, batch: Batch) -> bool:
        """Take it, or nothing."""
        if self.room == 0:
            return False
        if self.room is not None:
            self.room -= 1
        self.batches.append(batch)
        positions = reader.positions()
        self.cursors.append(None if positions is None else dict(positions))
        return True

    def take_whole(self, reader: Reader, whole: Round) -> bool:
        """Take a round, or nothing; where it stands is known at its end only."""
        if self.room == 0:
            return False
        if self.room is not None:
            self.room -= 1
        self.batches += whole.batches
        positions = reader.positions()
        assert positions is not None
        self.cursors += [*[None] * (len(whole.batches) - 1), dict(positions)]
        return True

    def missed(self, reader: Reader, gap: Gap) -> None:
        """Keep the gap."""
        assert reader.subscription.channels >= {gap.partition.channel}
        self.gaps.append(gap)

    def lagging(self, reader: Reader, lag: int) -> None:
        """Keep what was told."""
        assert not reader.closed
        self.lags.append(lag)

    def make_room(self, room: int | None = None) -> None:
        """Have room for so many batches more, or for any number."""
        self.room = room
        assert self.reader is not None
        self.reader.resume()

    @property
    def entries(self) -> list[Entry]:
        """All that was delivered, in order."""
        return [entry for batch in self.batches for entry in batch.entries]

    @property
    def ids(self) -> list[str]:
        """The message ids that were delivered, in order."""
        return [entry.record.message_id for entry in self.entries]


def by_partition(entries: Sequence[Entry]) -> dict[Partition, list[Position]]:
    """The positions per partition, in order."""
    found: dict[Partition, list[Position]] = {}
    for entry in entries:
        found.setdefault(entry.record.partition, []).append(entry.position)
    return found


@asynccontextmanager
async def open_stage(
    partitions: int = 2, clock: ManualClock | None = None, log: MemoryLog | None = None
) -> AsyncIterator[Stage]:
    """A stage with its domain made and its feed running."""
    stage = Stage(clock, log)
    await stage.make(partitions)
    await stage.feed.start()
    feed = asyncio.get_running_loop().create_task(stage.feed.run())
    try:
        yield stage
    finally:
        feed.cancel()
        await asyncio.wait((feed,))
