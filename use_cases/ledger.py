"""The ledger: proves for every channel and reader that nothing which was accepted is unaccounted for.

All figures follow from positions that are durable together with the work they count, never from counters that a crash
could lose: accepted = applied + superseded + expired + dead-lettered + lost + pending, to the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..entities.position import Partition
from ..entities.principal import OPERATOR, Principal
from ..entities.topic import CHANNELS
from .dead_letters import DeadLetters
from .ports.documents import Documents
from .ports.message_log import MessageLog, Tally
from .ports.work_queue import Backlog, WorkQueue
from .work import BURIED


@dataclass(frozen=True, slots=True)
class ChannelAccount:
    """``accepted``: messages ever; ``retained``: those still in the log."""

    channel: str
    partitions: int
    accepted: int
    retained: int


@dataclass(frozen=True, slots=True)
class ReaderAccount:
    """What became of the messages of one channel that were accepted since a reader began.

    ``kind``: ``reader`` (ordered) or ``group`` (a work queue).
    """

    reader: str
    kind: str
    channel: str
    accepted: int
    applied: int
    superseded: int
    expired: int
    dead_lettered: int
    lost: int
    pending: int

    @property
    def imbalance(self) -> int:
        """Messages that nobody can account for: anything but 0 is a fault of the product."""
        done = self.applied + self.superseded + self.expired + self.dead_lettered
        return self.accepted - done - self.lost - self.pending


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """The accounts of one domain. ``dead_letters``: how many per reason."""

    domain: str
    channels: Sequence[ChannelAccount]
    readers: Sequence[ReaderAccount]
    dead_letters: Mapping[str, int]

    @property
    def imbalance(self) -> int:
        """The sum of all imbalances, without regard to their signs."""
        return sum(abs(account.imbalance) for account in self.readers)


class Ledger:
    """Draws up the accounts; safe to ask at any time, also under load."""

    def __init__(self, log: MessageLog, queue: WorkQueue, documents: Documents, dead_letters: DeadLetters) -> None:
        self._log = log
        self._queue = queue
        self._documents = documents
        self._dead_letters = dead_letters

    async def __call__(self, principal: Principal) -> LedgerReport:
        """The accounts of the principal's domain. Raises NotFound for who is no operator."""
        principal.require_role(OPERATOR)
        return await self.of_domain(principal.domain)

    async def of_domain(self, domain: str) -> LedgerReport:
        """The accounts of a domain, without asking who wants to know."""
        channels = [await self._channel(domain, channel) for channel in CHANNELS]
        readers: list[ReaderAccount] = []
        for reader in await self._log.readers(domain):
            readers.extend(await self._reader(reader))
        for group in await self._queue.groups(domain):
            readers.extend(await self._group(group))
        return LedgerReport(domain, channels, readers, await self._dead_letters.counts(domain))

    async def _channel(self, domain: str, channel: str) -> ChannelAccount:
        partitions = self._log.partitions(domain, channel)
        accepted = retained = 0
        for partition in partitions:
            bounds = await self._log.bounds(partition)
            accepted += bounds.last.offset
            retained += bounds.last.offset - bounds.first.offset + 1
        return ChannelAccount(channel, len(partitions), accepted, retained)

    async def _reader(self, reader: str) -> list[ReaderAccount]:
        accepted: dict[str, int] = {}
        pending: dict[str, int] = {}
        tallies: dict[str, Tally] = {}
        for partition, progress in (await self._log.committed(reader)).items():
            # The end is asked after the progress, so it never lies before it.
            last = (await self._log.bounds(partition)).last.offset
            channel = partition.channel
            accepted[channel] = accepted.get(channel, 0) + last - progress.start.offset
            pending[channel] = pending.get(channel, 0) + last - progress.position.offset
            tallies[channel] = tallies.get(channel, Tally()).plus(progress.tally)
        return [
            ReaderAccount(reader, "reader", channel, accepted[channel], *tallies[channel], pending[channel])
            for channel in sorted(accepted)
        ]

    async def _group(self, group: str) -> list[ReaderAccount]:
        ends = {part.partition: await self._end(part.partition) for part in await self._queue.backlog(group)}
        accounts: dict[str, ReaderAccount] = {}
        for part in await self._queue.backlog(group):
            after = await self._end(part.partition)
            done = _settled(part)
            accepted = done
            if part.start is not None:
                # Messages may come in between the three looks: what was told must lie between the two ends.
                accepted = min(max(done, ends.get(part.partition, after) - part.start), after - part.start)
            channel = part.partition.channel
            known = accounts.get(channel, ReaderAccount(group, "group", channel, 0, 0, 0, 0, 0, 0, 0))
            accounts[channel] = ReaderAccount(
                group,
                "group",
                channel,
                known.accepted + accepted,
                known.applied + part.acknowledged,
                0,
                0,
                0,
                known.lost + part.lost,
                known.pending + part.waiting + part.pending,
            )
        buried = await self._buried(group)
        return [
            replace(
                accounts[channel],
                applied=accounts[channel].applied - buried[channel],
                dead_lettered=accounts[channel].dead_lettered + buried[channel],
            )
            for channel in sorted(accounts)
        ]

    async def _buried(self, group: str) -> Counter[str]:
        """How many messages the group gave up, per channel; the queue itself counts them as acknowledged."""
        found: Counter[str] = Counter()
        after = ""
        while page := await self._documents.scan(BURIED, f"{group}/", after):
            found.update(document.key.rpartition("/")[2].partition(".")[0] for document in page)
            after = page[-1].key
        return found

    async def _end(self, partition: Partition) -> int:
        return (await self._log.bounds(partition)).last.offset


def _settled(part: Backlog) -> int:
    return part.waiting + part.pending + part.acknowledged + part.lost
