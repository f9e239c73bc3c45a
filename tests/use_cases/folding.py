"""A handler that keeps what it was handed, and fails where it is told to; and logs that fail in chosen places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.channel import ChannelSpec
from iotsphere.entities.errors import IotSphereError, LogUnavailable
from iotsphere.entities.message import Entry, Record
from iotsphere.entities.position import Partition, Position, partition_index
from iotsphere.entities.topic import key_of
from iotsphere.use_cases.facts.processor import Processor
from iotsphere.use_cases.facts.tools import LaneSettings, LaneTools
from iotsphere.use_cases.ports.facts import FactHandler
from iotsphere.use_cases.ports.message_log import Appended, Lease, MessageLog, Progress, Tally
from iotsphere.use_cases.publish import MessagePublishUseCase

DOMAIN = "iotsphere"
CHANNEL = "telemetry"
READER = f"{DOMAIN}/store"
CHANNELS = {CHANNEL: ChannelSpec(partitions=2), "system": ChannelSpec(partitions=1)}
QUICK = LaneSettings(attempts=3, first_wait=0.002, last_wait=0.02)
LEASE_MS = 600  # for who has to lose it; a process that merely stands still for a moment loses it too
PATIENT_MS = 60_000
Judge = Callable[[Entry], "str | IotSphereError"]
_serial = count(1)


def fact(log: MessageLog, device: str, name: str = "", **options: int) -> Record:
    """A record of a device, in its partition. ``options``: ``expires_at``."""
    partitions = log.partitions(DOMAIN, CHANNEL)
    place = partitions[partition_index(device, len(partitions))]
    number = next(_serial)
    topic = f"{DOMAIN}/devices/{device}/telemetry/{name or 'temperature'}"
    return Record(place, topic, f"{device}-{number}", b'{"n":%d}' % number, number, options.get("expires_at", 0))


class Folder:
    """Keeps the ids of what it applied, per key in order, each once; ``judge`` says what becomes of an entry, or raises.

    ``before``: awaited before each call. ``repeats``: how many entries were handed over again after they were applied.
    """

    def __init__(self, judge: Judge | None = None) -> None:
        self.judge = judge
        self.effects: dict[str, list[str]] = {}
        self.before: Callable[[Sequence[Entry]], object] = lambda _: None
        self.calls: list[list[str]] = []
        self.repeats = 0

    def handles(self, topic: str) -> bool:
        return not topic.endswith("/ignored")

    async def __call__(self, entries: Sequence[Entry]) -> list[str | IotSphereError]:
        self.calls.append([entry.record.message_id for entry in entries])
        await asyncio.sleep(0)
        self.before(entries)
        results: list[str | IotSphereError] = []
        for entry in entries:
            result = "applied" if self.judge is None else self.judge(entry)
            results.append(result)
            if isinstance(result, str):
                seen = self.effects.setdefault(key_of(entry.record.topic), [])
                if entry.record.message_id in seen:
                    self.repeats += 1
                else:
                    seen.append(entry.record.message_id)
        return results

    @property
    def count(self) -> int:
        """How many entries had their effect."""
        return sum(map(len, self.effects.values()))


class FailingLog(MemoryLog):
    """``cut``: nothing is answered. ``swallow``: so many commits are carried out, and their answer is lost."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.cut = False
        self.swallow = 0
        self.commits = 0

    def _answer(self) -> None:
        if self.cut:
            raise LogUnavailable("the network is cut: retry")

    async def append(self, records: Sequence[Record]) -> Appended:
        self._answer()
        return await super().append(records)

    async def committed(self, reader: str) -> Mapping[Partition, Progress]:
        self._answer()
        return await super().committed(reader)

    async def lease(self, reader: str, partition: Partition, owner: str, ttl: int) -> Lease:
        self._answer()
        return await super().lease(reader, partition, owner, ttl)

    async def commit(
        self,
        reader: str,
        progress: Mapping[Partition, tuple[Position, Tally]],
        fences: Mapping[Partition, int] | None = None,
    ) -> None:
        self._answer()
        await super().commit(reader, progress, fences)
        self.commits += 1
        if self.swallow:
            self.swallow -= 1
            raise LogUnavailable("the answer is lost: retry")


def bury(reader: str, entry: Entry, refusal: IotSphereError | None, attempts: int) -> Record:
    """A dead letter that says who, why and after how many attempts."""
    code = "poison" if refusal is None else refusal.code
    message_id = f"letter-{reader}-{entry.record.message_id}"
    body = f"{code} {attempts} {entry.record.message_id}".encode()
    return Record(Partition(DOMAIN, "system", 0), f"{DOMAIN}/system/dead-letters", message_id, body, 0)


async def letters(log: MessageLog) -> list[str]:
    """The dead letters so far."""
    part = await log.read(Partition(DOMAIN, "system", 0), Position(0, 0), 10_000)
    return [entry.record.body.decode() for entry in part.entries]


@asynccontextmanager
async def processing(
    log: MessageLog, handler: FactHandler, settings: LaneSettings = QUICK, lease_ms: int = PATIENT_MS
) -> AsyncIterator[Processor]:
    """A processor at work; it is cancelled in the end, as when the product stops."""
    publish = MessagePublishUseCase(log)
    tools = LaneTools(log, SystemClock(), publish, bury, settings)
    processor = Processor(tools, "store", CHANNEL, handler, lease_ms)
    task = asyncio.create_task(processor())
    try:
        yield processor
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await publish.close(60)


async def account(log: MessageLog) -> Tally:
    """What the reader did with everything; fails when a message is unaccounted for."""
    total, accepted, pending = Tally(), 0, 0
    for partition, (start, position, tally) in (await log.committed(READER)).items():
        last = (await log.bounds(partition)).last.offset
        total = total.plus(tally)
        accepted += last - start.offset
        pending += last - position.offset
    assert accepted == sum(total) + pending
    assert pending == 0, f"{pending} are pending"
    return total


async def settled(log: MessageLog, processor: Processor, within: float = 60.0) -> Tally:
    """Wait until everything is committed in every partition; what became of it."""
    deadline = asyncio.get_running_loop().time() + within
    registered = len(log.partitions(DOMAIN, CHANNEL))
    while len(await log.committed(READER)) < registered or (await processor.lag()).get(READER, 1):
        assert asyncio.get_running_loop().time() < deadline, f"{await processor.lag()} is not handled"
        await asyncio.sleep(0.005)
    return await account(log)
