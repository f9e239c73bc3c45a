"""The use cases of a gateway over memory drivers and a clock that tests turn, wired as the product wires them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import orjson

from iotsphere.adapters.edge import Edge
from iotsphere.adapters.notices import presence_record
from iotsphere.adapters.poison import poison_letters
from iotsphere.adapters.redrive import DeadLetterFormat
from iotsphere.adapters.values import pack_values, unpack_values
from iotsphere.containers.state import COLLECTIONS, Ground, State
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.drivers.memory.queue import MemoryWorkQueue
from iotsphere.entities.channel import DEFAULT_CHANNELS
from iotsphere.entities.errors import Forbidden, MessageRefused, TopicInvalid
from iotsphere.entities.message import Entry, Record
from iotsphere.entities.principal import Principal, device
from iotsphere.entities.topic import is_told_by_gateway, parse_topic
from iotsphere.use_cases.access.rate_limit import Rate, RateLimit
from iotsphere.use_cases.access.tokens import operator
from iotsphere.use_cases.dead_letters import DeadLetters
from iotsphere.use_cases.feed import Feed
from iotsphere.use_cases.history import History
from iotsphere.use_cases.last_values import LastValues
from iotsphere.use_cases.ledger import Ledger
from iotsphere.use_cases.publish import MessagePublishUseCase
from iotsphere.use_cases.session.presence import State as Presence
from iotsphere.use_cases.trace import Trace
from tests.support.identity import Identity

DOMAINS = ("iotsphere", "other")


class Rooms(Identity):
    """One process's use cases. Enter ``open_rooms`` to get one with its domains made."""

    def __init__(self, log_class: type[MemoryLog] = MemoryLog) -> None:
        super().__init__()
        clock = self.clock
        self.log = log_class(clock)
        self.queue = MemoryWorkQueue(self.log)
        self.edge = Edge(clock, self.log.partitions)
        self.publish = MessagePublishUseCase(self.log)
        self.last_values = LastValues(self.documents, pack_values, unpack_values)
        self.feed = Feed(self.log, self.last_values, clock)
        self.history = History(self.log, self.last_values)
        self.dead_letters = DeadLetters(self.log, self.documents, self.publish, DeadLetterFormat(self.edge), clock)
        self.ledger = Ledger(self.log, self.queue, self.documents, self.dead_letters)
        self.trace = Trace(self.log, self.dead_letters)
        self.bury = poison_letters(self.edge, clock)
        self.rates = RateLimit(Rate(), Rate())
        self.database = MemoryDatabase(clock)

    async def open_state(self) -> None:
        """Make the collections, and what stands on them."""
        await self.database.ensure(COLLECTIONS)
        ground = Ground(self.database, self.edge, self.publish, self.devices, self.clock)
        self.state = State(ground, self.log, self.documents)

    def record(self, topic: str, payload: object, principal: Principal | None = None) -> Record:
        """A message as it would pass the edge, of an operator or, where nobody else may, of the gateway itself."""
        raw = payload if isinstance(payload, bytes) else orjson.dumps(payload)
        if principal is None and is_told_by_gateway(parse_topic(topic)):
            route = self.edge.own_route(topic)
        else:
            route = self.edge.route(principal or operator(topic.partition("/")[0]), topic)
        return self.edge.admit(route, raw, self.clock.now())

    async def say(self, topic: str, payload: object, principal: Principal | None = None) -> Entry:
        """Publish one message, let the feed see it, and let a millisecond pass."""
        record = self.record(topic, payload, principal)
        appended = await self.publish([record])
        entry = Entry(appended.positions[0], self.clock.now(), record)
        await self.catch_up()
        self.clock.advance(1)
        return entry

    async def come_online(self, domain: str, device_id: str) -> Record:
        """Tell that a device has connected."""
        state = Presence(state="online", since=self.clock.now(), epoch=1, node="tests", reason="connected")
        record = presence_record(self.edge, domain, device_id, state, self.clock.now())
        await self.publish([record])
        await self.catch_up()
        return record

    async def refuse(self, topic: str, payload: bytes, principal: Principal | None = None) -> Record:
        """Publish what the edge refuses; returns the dead letter's record."""
        sender = principal or device("iotsphere", "d1")
        try:
            self.edge.admit(self.edge.route(sender, topic), payload, self.clock.now())
        except (MessageRefused, TopicInvalid, Forbidden) as error:
            letter = self.edge.dead_letter(sender, topic, payload, self.clock.now(), error)
        else:
            raise AssertionError("the edge took it")
        await self.publish([letter])
        self.clock.advance(1)
        return letter

    async def catch_up(self) -> None:
        """Let the feed see all that is in the log."""
        for partition, position in list(self.feed.positions.items()):
            part = await self.log.read(partition, position)
            if part.end != position:
                self.feed.dispatch(part)


@asynccontextmanager
async def open_rooms(domains: Sequence[str] = DOMAINS, log_class: type[MemoryLog] = MemoryLog) -> AsyncIterator[Rooms]:
    """Use cases with empty domains."""
    rooms = Rooms(log_class)
    for domain in domains:
        await rooms.log.ensure(domain, DEFAULT_CHANNELS)
    await rooms.feed.start()
    await rooms.open_state()
    yield rooms
    await rooms.publish.close(1)
