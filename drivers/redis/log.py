"""The log for production: one Redis stream per partition, durable before an append returns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from ...entities.channel import ChannelSpec, Retention
from ...entities.errors import RequestInvalid, UnknownDomain
from ...entities.message import Entry, Record
from ...entities.position import Bounds, Gap, Partition, Position
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.message_log import Appended, Lease, Progress, Slice, Tally
from .appending import Appender
from .chunks import digest
from .durability import REQUIRED
from .endpoint import Endpoint
from .following import Feed
from .keys import Keys
from .link import Link, Links, script
from .options import DEFAULTS, RedisOptions
from .readers import Readers
from .scripts import BEGIN
from .shelves import Shelves

# An append would be refused now exactly when this is: the server asks for memory, disk and role first.
_READY: Final = script("#!lua\nreturn redis.call('TIME')[1]")


class RedisMessagingDriver:
    """A ``MessageLog`` on Redis Streams, for Redis 7.0 or later and Valkey; an async context manager.

    ``url``: redis://, rediss:// or unix://. ``durability``: ``fsynced``, ``logged`` or ``memory``; a server that is
    set to keep less is refused with DurabilityTooWeak, at the start and whenever it comes back. Repeated messages are
    known for ten minutes at least; minted ones, which only this object can repeat, while they are among the newest
    4,096 of their partition or their batch has failed within fifteen minutes.
    """

    def __init__(self, url: str, clock: Clock, durability: str = "fsynced", options: RedisOptions = DEFAULTS) -> None:
        if durability not in REQUIRED:
            raise RequestInvalid(f"{durability!a} is no durability: write {', '.join(REQUIRED)}")
        self.clock = clock
        self.endpoint = Endpoint(url, durability, options)
        self.links = Links(self.endpoint)
        self.keys = Keys(options.prefix)
        self.shelves = Shelves(self.links, self.keys, self._begin)
        self._link = Link(self.endpoint)
        self._appender = Appender(self._link, self.keys, clock)
        self._feed = Feed(self.endpoint, self.keys.news, self._appender.producer)
        self._readers = Readers(self.links, self.keys, clock, self.shelves)
        self._channels: dict[str, dict[str, tuple[Partition, ...]]] = {}

    @property
    def durability(self) -> str:
        """How durable an appended batch is."""
        return self.endpoint.durability

    async def __aenter__(self) -> Self:
        """Connect, and learn the domains. Raises LogUnavailable, DurabilityTooWeak."""
        try:
            await self._link.open()
            (domains,) = await self.links.call(("SMEMBERS", self.keys.domains))
            for domain in domains:
                await self._learn(domain.decode())
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections; followers end with ShuttingDown."""
        await self._close()

    async def _close(self) -> None:
        await self._feed.close()
        await self._link.close()
        await self.links.close()

    async def ensure(self, domain: str, channels: Mapping[str, ChannelSpec]) -> None:
        """Make the channels that are missing."""
        key = self.keys.channels(domain)
        await self.links.write(
            ("SADD", self.keys.domains, domain),
            *(("HSETNX", key, channel, spec.partitions) for channel, spec in channels.items()),
        )
        await self._learn(domain)
        made = [partition for channel in channels for partition in self._channels[domain][channel]]
        await self._begin(*made)

    async def _learn(self, domain: str) -> None:
        (answer,) = await self.links.call(("HGETALL", self.keys.channels(domain)))
        known = self._channels.setdefault(domain, {})
        for channel, count in zip(answer[::2], answer[1::2], strict=True):
            name = channel.decode()
            known.setdefault(name, tuple(Partition(domain, name, number) for number in range(int(count))))
            self.shelves.add(known[name])

    async def _begin(self, *partitions: Partition) -> None:
        """Make partitions where the server does not have them, and what it must know to have them."""
        run, now = self._link.greeting.run, int(self._link.greeting.now())
        commands = []
        for partition in partitions:
            shelf = self.shelves[partition]
            count = len(self._channels[partition.domain][partition.channel])
            commands += [
                ("SADD", self.keys.domains, partition.domain),
                ("HSETNX", self.keys.channels(partition.domain), partition.channel, count),
                BEGIN(shelf.keys[1:3], run, max(now, shelf.epoch + 1)),
            ]
        if commands:
            await self.links.write(*commands)

    def domains(self) -> Sequence[str]:
        """All known domains, sorted."""
        return sorted(self._channels)

    def partitions(self, domain: str, channel: str) -> Sequence[Partition]:
        """The channel's partitions. Raises UnknownDomain."""
        try:
            return self._channels[domain][channel]
        except KeyError as error:
            raise UnknownDomain(f"there is no channel {channel!a} in a domain {domain!a}: make it first") from error

    async def append(self, records: Sequence[Record]) -> Appended:
        """Append a batch, in one round trip. Raises LogUnavailable, LogFull, UnknownDomain."""
        return await self._appender.append(records, self.shelves, self._feed)

    async def bounds(self, partition: Partition) -> Bounds:
        """What is retained."""
        return await self.shelves.bounds(partition)

    async def read(self, partition: Partition, after: Position, limit: int = 500, max_bytes: int = 1 << 20) -> Slice:
        """Entries after a position, and the gap before them."""
        piece = await self.shelves.slice(partition, after, limit, max_bytes)
        if piece.entries or piece.gap is not None:
            return piece
        return piece._replace(end=after)

    def follow(self, after: Mapping[Partition, Position]) -> AsyncGenerator[Slice, None]:
        """Slices after the given positions, for ever; an outage of the server is waited out."""
        return self._feed.follow(after, self.shelves)

    async def at(self, partition: Partition, time: int) -> Position:
        """The position before the first entry that was appended at or after ``time`` (ms)."""
        return await self.shelves.at(partition, time)

    async def find(self, domain: str, message_id: str) -> Entry | None:
        """Look in the dedupe index, then through everything, newest first."""
        partitions = [partition for partition in self.shelves if partition.domain == domain]
        field = digest(message_id)
        names = [name for one in partitions for name in self.shelves[one].keys.ids(self._link.greeting.now())]
        if names:
            offsets = await self.links.call(*(("HGET", name, field) for name in names))
            share = len(names) // len(partitions)
            for place, offset in enumerate(offsets):
                if offset is not None:
                    partition = partitions[place // share]
                    state = await self.shelves.state(partition)
                    piece = await self.read(partition, state.lineage.position(int(offset) - 1), 1)
                    if piece.entries and piece.entries[0].record.message_id == message_id:
                        return piece.entries[0]
        for partition in partitions:
            entry = await self.shelves.scan(partition, message_id)
            if entry is not None:
                return entry
        return None

    async def entries(self, places: Sequence[tuple[Partition, Position]]) -> Sequence[Entry | None]:
        """The entry at each place, in one round trip for all."""
        return await self.shelves.entries(places)

    async def register(self, reader: str, positions: Mapping[Partition, Position]) -> None:
        """Make a reader known from what the positions mean now."""
        await self._readers.register(reader, positions)

    async def commit(
        self,
        reader: str,
        progress: Mapping[Partition, tuple[Position, Tally]],
        fences: Mapping[Partition, int] | None = None,
    ) -> None:
        """Move a reader on, in all partitions or in none. Raises Fenced, RequestInvalid."""
        await self._readers.commit(reader, progress, fences or {})

    async def committed(self, reader: str) -> Mapping[Partition, Progress]:
        """The reader's progress."""
        return await self._readers.committed(reader)

    async def readers(self, domain: str) -> Sequence[str]:
        """The domain's readers, sorted."""
        return await self._readers.names(domain)

    async def forget(self, reader: str) -> None:
        """Remove a reader."""
        await self._readers.forget(reader)

    async def lease(self, reader: str, partition: Partition, owner: str, ttl: int) -> Lease:
        """Take or renew a lease. Raises LeaseHeld."""
        self.shelves[partition]
        return await self._readers.lease(reader, partition, owner, ttl)

    async def release(self, lease: Lease) -> None:
        """Give a lease back."""
        await self._readers.release(lease)

    async def retain(self, partition: Partition, retention: Retention, now: int) -> Gap | None:
        """Trim, and announce what a reader or work queue lost."""
        return await self._readers.retain(partition, retention, now)

    async def losses(self, domain: str) -> Sequence[tuple[str, Gap]]:
        """The announced losses of the domain, oldest first."""
        return await self._readers.losses(domain)

    async def ready(self) -> None:
        """Raise LogUnavailable, LogFull or DurabilityTooWeak when an append would fail now."""
        await self.links.call(_READY(()))
