"""Work queues: several members share the messages of their filters, each handed to one of them and acknowledged.

What a member does not acknowledge in time goes to another one. After ``max_attempts`` deliveries, counted by the
store, the message becomes a dead letter (poison) and the queue moves on.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..entities.errors import Conflict, RequestInvalid
from ..entities.message import Entry, Record
from ..entities.position import Partition, Position
from ..entities.principal import Principal
from ..entities.subscription import Subscription
from .feed import Feed
from .ports.documents import Documents
from .ports.message_log import MessageLog
from .ports.work_queue import Delivery, WorkQueue
from .publish import MessagePublishUseCase

COLLECTION: Final = "groups"
BURIED: Final = "buried"
IDLE_POLL_S: Final = 0.5
LONE_ATTEMPT: Final = 3


@dataclass(frozen=True, slots=True)
class WorkSettings:
    """``visibility``: ms until an unacknowledged delivery goes to another member."""

    visibility: int = 30_000
    max_attempts: int = 5

    @property
    def alone(self) -> int:
        """The attempt from which a message is handed out alone.

        Which of the messages that a member held has killed it shows only when each gets a try of its own.
        """
        return min(LONE_ATTEMPT, self.max_attempts)


class Handout(NamedTuple):
    """A delivery as a member sees it; ``token`` names it in acknowledgements."""

    token: str
    attempt: int
    entry: Entry


def token_of(delivery: Delivery) -> str:
    """The text that names a delivery: channel, partition, epoch and offset."""
    position = delivery.entry.position
    return f"{delivery.partition.channel}.{delivery.partition.number}.{position.epoch}.{position.offset}"


def parse_token(domain: str, token: str) -> tuple[Partition, Position]:
    """Read a delivery's name. Raises RequestInvalid."""
    parts = token.split(".")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts[1:]):
        raise RequestInvalid(f"{token[:80]!a} names no delivery; send the text that came with it")
    return Partition(domain, parts[0], int(parts[1])), Position(int(parts[2]), int(parts[3]))


@dataclass(frozen=True, slots=True)
class WorkStores:
    """Where groups and their messages live."""

    log: MessageLog
    queue: WorkQueue
    documents: Documents


class WorkQueueUseCase:
    """Open groups, hand out their messages, and dead-letter what nobody can digest."""

    def __init__(
        self,
        stores: WorkStores,
        feed: Feed,
        publish: MessagePublishUseCase,
        bury: Callable[[Delivery, int], Record],
        settings: WorkSettings,
    ) -> None:
        self._log = stores.log
        self._queue = stores.queue
        self._documents = stores.documents
        self._feed = feed
        self._publish = publish
        self._bury = bury
        self.settings = settings
        self.dead_lettered = 0
        self.expired = 0

    async def __call__(self, principal: Principal, name: str, subscription: Subscription) -> Member:
        """Join the group, making it where missing. Raises Forbidden, and Conflict when it has other filters."""
        principal.require("subscribe", subscription.filters)
        group = f"{principal.domain}/{name}"
        filters = sorted({wanted.text for wanted in subscription.filters})
        known = await self._documents.get(COLLECTION, group)
        if known is None:
            # The queue first: a group that is known by its filters must exist. Both steps are safe to repeat.
            await self._queue.create(group, list((await self._start(subscription)).items()))
            try:
                await self._documents.put(COLLECTION, group, json.dumps({"filters": filters}).encode(), expected=0)
            except Conflict:
                known = await self._documents.get(COLLECTION, group)  # another member was faster
        if known is not None and json.loads(known.value)["filters"] != filters:
            raise Conflict(f"the group {name!a} has other filters; use another name, or the same filters")
        return Member(self, group, subscription)

    async def _start(self, subscription: Subscription) -> Mapping[Partition, Position]:
        start = subscription.start
        if start.at == "cursor" and start.cursor is not None:
            return start.cursor.positions
        partitions = [
            p for channel in sorted(subscription.channels) for p in self._log.partitions(subscription.domain, channel)
        ]
        if start.at == "earliest":
            return dict.fromkeys(partitions, Position(0, 0))
        if start.at == "time":
            return {partition: await self._log.at(partition, start.time) for partition in partitions}
        return {partition: (await self._log.bounds(partition)).last for partition in partitions}

    async def take(self, group: str, consumer: str, subscription: Subscription, limit: int) -> list[Handout]:
        """The next deliveries for this member; skips what its filters do not select, buries what is poison."""
        settings = self.settings
        while deliveries := await self._queue.take(group, consumer, limit, settings.visibility, settings.alone):
            handouts: list[Handout] = []
            passed: list[tuple[Partition, Position]] = []
            for delivery in deliveries:
                entry = delivery.entry
                if not entry.record.body or not subscription.matches(entry.record.topic):
                    passed.append((delivery.partition, entry.position))
                elif 0 < entry.record.expires_at <= self._feed.clock.now():
                    self.expired += 1
                    passed.append((delivery.partition, entry.position))
                elif delivery.attempt > settings.max_attempts:
                    await self._publish([self._bury(delivery, settings.max_attempts)])
                    await self._documents.put(BURIED, f"{group}/{token_of(delivery)}", b"{}")  # for the ledger
                    self.dead_lettered += 1
                    passed.append((delivery.partition, entry.position))
                else:
                    handouts.append(Handout(token_of(delivery), delivery.attempt, entry))
            if passed:
                await self._queue.ack(group, passed)
            if handouts:
                return handouts
        return []

    @property
    def seen(self) -> int:
        """A number that changes whenever the feed moves."""
        return self._feed.version

    async def wait(self, subscription: Subscription, seen: int, seconds: float = IDLE_POLL_S) -> None:
        """Wait until the feed moves past ``seen``, or for a while (deliveries of other members may fall due)."""
        if self._feed.version != seen:
            return
        moved = asyncio.Event()
        domain, channels = subscription.domain, subscription.channels

        def listener(partition: Partition) -> None:
            if partition.domain == domain and partition.channel in channels:
                moved.set()

        stop = self._feed.listen(listener)
        try:
            async with asyncio.timeout(seconds):
                await moved.wait()
        except TimeoutError:
            return
        finally:
            stop()

    async def acknowledge(
        self, group: str, tokens: Sequence[str], retry_in: int | None = None, counted: bool = True
    ) -> int:
        """Mark deliveries done, or give them back for ``retry_in`` ms later. Returns how many were held.

        Unless ``counted``, what is given back was no attempt: the fault was not the message's.
        """
        domain = group.partition("/")[0]
        named = [parse_token(domain, token) for token in tokens]
        if retry_in is None:
            return await self._queue.ack(group, named)
        for delivery in named:
            await self._queue.nack(group, delivery, retry_in, counted)
        return len(named)

    async def keep(self, group: str, consumer: str, tokens: Iterable[str]) -> None:
        """Hide what a member holds for its full time again; what it no longer holds stays as it is."""
        domain = group.partition("/")[0]
        named = [parse_token(domain, token) for token in tokens]
        extend, visibility = self._queue.extend, self.settings.visibility
        await asyncio.gather(*(extend(group, consumer, delivery, visibility) for delivery in named))


class Member:
    """One consumer of a group."""

    def __init__(self, work: WorkQueueUseCase, group: str, subscription: Subscription) -> None:
        self._work = work
        self.group = group
        self.subscription = subscription
        self.consumer = secrets.token_hex(8)
        self.settings = work.settings

    async def take(self, limit: int) -> list[Handout]:
        """Up to ``limit`` deliveries; waits until there is at least one."""
        while True:
            seen = self._work.seen
            if handouts := await self._work.take(self.group, self.consumer, self.subscription, limit):
                return handouts
            await self._work.wait(self.subscription, seen)

    async def acknowledge(self, tokens: Sequence[str], retry_in: int | None = None, counted: bool = True) -> int:
        """Mark deliveries done, or give them back."""
        return await self._work.acknowledge(self.group, tokens, retry_in, counted)

    async def keep(self, tokens: Iterable[str]) -> None:
        """Keep deliveries for longer."""
        await self._work.keep(self.group, self.consumer, tokens)
