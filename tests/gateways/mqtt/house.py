"""An MQTT door with everything behind it, in this process: for tests that speak to it over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import Any

import orjson

from iotsphere.adapters.edge import Edge
from iotsphere.adapters.mqtt.wills import will_records
from iotsphere.adapters.notices import presence_record
from iotsphere.adapters.tokens import JsonWebTokens
from iotsphere.adapters.values import pack_values, unpack_values
from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.memory.documents import MemoryDocuments
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.drivers.sqlite.documents import SqliteDocuments
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.channel import DEFAULT_CHANNELS
from iotsphere.entities.message import Entry, Record
from iotsphere.entities.principal import Principal, parse_grant
from iotsphere.entities.topic import parse_filter
from iotsphere.gateways.mqtt import MqttGateway, MqttLimits, MqttUseCases
from iotsphere.use_cases.access.authenticate import Authenticate
from iotsphere.use_cases.access.devices import Credential, Devices
from iotsphere.use_cases.access.rate_limit import Rate, RateLimit
from iotsphere.use_cases.access.revocations import Revocations
from iotsphere.use_cases.access.tokens import Tokens
from iotsphere.use_cases.feed import Feed
from iotsphere.use_cases.flow_control import MessageFlowControlUseCase
from iotsphere.use_cases.last_values import LastValues
from iotsphere.use_cases.ports.message_log import Appended
from iotsphere.use_cases.publish import MessagePublishUseCase
from iotsphere.use_cases.session.presence import Presence
from iotsphere.use_cases.session.sessions import Sessions
from iotsphere.use_cases.session.wills import Wills
from iotsphere.use_cases.sharing.sharing import Sharing
from iotsphere.use_cases.subscribe import MessageSubscriptionUseCase
from tests.support import forgery
from tests.support.waiting import until

DOMAINS = ("iotsphere", "other")


class Gate:
    """A log in front of another, which appends only while it is open, or fails as it is told."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0
        self.appended = 0
        self.failure: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, records: Sequence[Record]) -> Appended:
        self.waiting += 1
        try:
            await self.open.wait()
        finally:
            self.waiting -= 1
        if self.failure is not None:
            raise self.failure
        appended: Appended = await self._log.append(records)
        self.appended += len(records)
        return appended


class House:
    """The use cases, and the doors that were opened to them. ``log`` and ``documents`` outlive a door."""

    def __init__(self, log: Any, documents: Any, clock: Any = None) -> None:
        self.clock: Any = clock or SystemClock()
        self.log: Any = Gate(log)
        self.documents = documents
        self.edge = Edge(self.clock, log.partitions)
        self.doors: list[MqttGateway] = []
        self.care: Any = None
        self.requests: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self.rates = RateLimit(Rate(1_000_000, 1 << 40), Rate(1_000_000, 1 << 40))
        self.revocations = Revocations(documents, self.clock)
        self.devices = Devices(documents, self.revocations, self.clock, b"d" * 32)
        self.formats = JsonWebTokens(forgery.SECRET, self.clock, forgery.trusted())
        self.tokens = Tokens(self.formats, self.revocations, self.clock)
        self.authenticate = Authenticate(self.devices, self.formats, self.revocations)
        self._begin()

    def _begin(self) -> None:
        self.publish = MessagePublishUseCase(self.log)
        self.last_values = LastValues(self.documents, pack_values, unpack_values)
        self.feed = Feed(self.log, self.last_values, self.clock)
        flow = MessageFlowControlUseCase()
        self.subscribe = MessageSubscriptionUseCase(self.log, self.feed, flow)
        self.sessions = Sessions(self.documents, self.log, self.clock)
        self.sharing = Sharing(self.log, self.documents, self.feed)
        self.wills = Wills(self.documents, self.publish, partial(will_records, self.edge), self.clock)
        self.presence = Presence(self.documents, self.publish, partial(presence_record, self.edge), self.clock)

    def _begin_again(self) -> None:
        """What a process makes anew, but for its log, its documents, and its feed."""
        self.sessions = Sessions(self.documents, self.log, self.clock)
        self.wills = Wills(self.documents, self.publish, partial(will_records, self.edge), self.clock)

    async def open(self) -> None:
        await self.feed.start()
        self._tasks += [asyncio.create_task(self.feed.run()), asyncio.create_task(self.sharing.run())]

    async def door(self, limits: MqttLimits | None = None, ssl: SSLContext | None = None) -> tuple[str, int]:
        """Open a door; returns its address."""
        use = MqttUseCases(
            self.authenticate,
            self.publish,
            self.subscribe,
            self.edge,
            self.last_values,
            self.sessions,
            self.presence,
            self.rates,
            self.clock,
            self.wills,
            self.care,
            self.requests,
            sharing=self.sharing,
        )
        gateway = MqttGateway(use, limits)
        self.doors.append(gateway)
        return await gateway.start("127.0.0.1", 0, ssl)

    @property
    def gateway(self) -> MqttGateway:
        return self.doors[-1]

    async def close(self) -> None:
        self.log.open.set()
        for gateway in self.doors:
            await gateway.drain(5)
            await gateway.close()
        self.doors.clear()
        await self.sharing.close()
        await self.publish.close(2)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def restart(self) -> None:
        """A new process on the same log and documents, after a clean end of the old one."""
        await self.close()
        self._begin()
        await self.open()

    # -- what tests need ----------------------------------------------------------------------------------------------

    async def device(self, device_id: str, domain: str = "iotsphere") -> Credential:
        return await self.devices.register(domain, device_id)

    def token(
        self, name: str, *grants: str, domain: str = "iotsphere", kind: str = "service", seconds: int = 600
    ) -> str:
        principal = Principal(
            kind,
            name,
            domain,
            tuple(parse_grant(grant, domain=domain, name=name) for grant in grants),
            expires_at=self.clock.now() + seconds * 1000,
            since=self.clock.now(),
        )
        return self.formats.issue(principal)

    async def entries(self, channel: str = "telemetry", domain: str = "iotsphere") -> list[Entry]:
        """All that the log holds of a channel, partition by partition."""
        found: list[Entry] = []
        for partition in self.log.partitions(domain, channel):
            bounds = await self.log.bounds(partition)
            place = bounds.first._replace(offset=bounds.first.offset - 1)
            while True:
                part = await self.log.read(partition, place)
                found += part.entries
                if part.end == place:
                    break
                place = part.end
        return found

    async def envelopes(self, channel: str = "telemetry", domain: str = "iotsphere") -> list[dict[str, Any]]:
        return [orjson.loads(entry.record.body) for entry in await self.entries(channel, domain) if entry.record.body]

    async def dead_letters(self, domain: str = "iotsphere") -> list[dict[str, Any]]:
        return [
            envelope["payload"]
            for envelope in await self.envelopes("system", domain)
            if envelope["metadata"]["topic"].endswith("/system/dead-letters")
        ]

    async def say(self, topic: str, payload: object, retain: bool = False, expires_at: int = 0) -> None:
        """Publish as an operator would; a retained value is known to whoever subscribes from now on."""
        domain = topic.partition("/")[0]
        who = Principal("service", "tester", domain, (parse_grant("publish:{domain}/#", domain=domain),))
        route = self.edge.route(who, topic)
        raw = orjson.dumps(payload)
        record = self.edge.admit(route, raw, self.clock.now(), retain=retain, expires_at=expires_at)
        await self.publish([record])
        if retain:
            kept = [parse_filter(topic)]
            await until(
                lambda: record.message_id in [one.record.message_id for one in self.last_values.retained(kept)],
                "it is kept",
            )


@asynccontextmanager
async def open_house(folder: Path | None = None, clock: Any = None) -> AsyncIterator[House]:
    """A house on memory drivers, or on SQLite in a folder. ``clock``: a manual one, for days that pass at once."""
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        log: Any = MemoryLog(clock)
        documents: Any = MemoryDocuments()
        if folder is not None:
            log = await stack.enter_async_context(SqliteLog(folder / "log", clock))
            documents = await stack.enter_async_context(SqliteDocuments(folder / "documents.db"))
        for domain in DOMAINS:
            await log.ensure(domain, DEFAULT_CHANNELS)
        house = House(log, documents, clock)
        await house.open()
        try:
            yield house
        finally:
            await house.close()
