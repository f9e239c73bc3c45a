from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.documents import MemoryDocuments
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.channel import DEFAULT_CHANNELS
from iotsphere.entities.message import Record
from iotsphere.entities.position import Position
from iotsphere.use_cases.ports.documents import Document
from iotsphere.use_cases.publish import MessagePublishUseCase
from iotsphere.use_cases.session.presence import Presence, State


class SlowDocuments(MemoryDocuments):
    """Takes its time, differently each time, as a store behind a network does."""

    def __init__(self) -> None:
        super().__init__()
        self.chance = random.Random(5)

    async def _wait(self) -> None:
        for _ in range(self.chance.randrange(6)):
            await asyncio.sleep(0)

    async def get(self, collection: str, key: str) -> Document | None:
        await self._wait()
        found = await super().get(collection, key)
        await self._wait()
        return found

    async def put(self, collection: str, key: str, value: bytes, expected: int | None = None) -> int:
        await self._wait()
        version = await super().put(collection, key, value, expected)
        await self._wait()
        return version


class Stage:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock)
        self.documents = SlowDocuments()
        self.publish = MessagePublishUseCase(self.log)
        self.numbers = 0
        self.a = self.node("a")
        self.b = self.node("b")

    def node(self, name: str) -> Presence:
        return Presence(self.documents, self.publish, self._compose, self.clock, name)

    def _compose(self, domain: str, device_id: str, state: State, now: int) -> Record:
        self.numbers += 1
        body = json.dumps([device_id, state.state, state.epoch, state.reason, state.since]).encode()
        partition = self.log.partitions(domain, "system")[0]
        return Record(partition, f"{domain}/devices/{device_id}/presence", f"p{self.numbers}", body, now, 0, True, True)

    async def said(self, device_id: str = "d1") -> list[tuple[str, int, str]]:
        partition = self.log.partitions("iotsphere", "system")[0]
        part = await self.log.read(partition, Position(0, 0), 10_000)
        return [
            (state, epoch, reason)
            for who, state, epoch, reason, _ in (json.loads(entry.record.body) for entry in part.entries)
            if who == device_id
        ]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    await made.log.ensure("iotsphere", DEFAULT_CHANNELS)
    yield made
    await made.publish.close(1)


async def test_epochs_grow_with_each_connection(stage: Stage) -> None:
    for expected in (1, 2, 3):
        epoch = await stage.a.online("iotsphere", "d1")
        assert epoch == expected
        assert await stage.a.offline("iotsphere", "d1", epoch, "disconnected")
    assert [(state, epoch) for state, epoch, _ in await stage.said()] == [
        ("online", 1),
        ("offline", 1),
        ("online", 2),
        ("offline", 2),
        ("online", 3),
        ("offline", 3),
    ]


async def test_an_offline_of_an_older_epoch_changes_nothing(stage: Stage) -> None:
    old = await stage.a.online("iotsphere", "d1")
    new = await stage.b.online("iotsphere", "d1")
    assert (old, new) == (1, 2)
    assert not await stage.a.offline("iotsphere", "d1", old, "connection_lost")
    assert (await stage.said())[-1] == ("online", 2, "connected")
    assert await stage.b.offline("iotsphere", "d1", new, "disconnected")
    assert (await stage.said())[-1] == ("offline", 2, "disconnected")


async def test_the_same_goodbye_twice_is_said_once(stage: Stage) -> None:
    epoch = await stage.a.online("iotsphere", "d1")
    assert await stage.a.offline("iotsphere", "d1", epoch, "disconnected")
    assert not await stage.a.offline("iotsphere", "d1", epoch, "disconnected")
    assert len(await stage.said()) == 2


async def test_since_stays_while_a_device_adds_connections(stage: Stage) -> None:
    await stage.a.online("iotsphere", "d1")
    since = stage.clock.now()
    stage.clock.advance(5_000)
    await stage.a.online("iotsphere", "d1")
    document = await stage.documents.get("presence", "iotsphere/d1")
    assert document is not None
    assert json.loads(document.value)["since"] == since


async def test_after_a_crash_the_devices_of_the_same_node_are_offline(stage: Stage) -> None:
    await stage.a.online("iotsphere", "d1")
    await stage.b.online("iotsphere", "d2")
    again = stage.node("a")
    assert await again.recover() == 1
    assert (await stage.said("d1"))[-1] == ("offline", 1, "gateway_restarted")
    assert (await stage.said("d2"))[-1] == ("online", 1, "connected")
    assert await again.recover() == 0
    assert await again.online("iotsphere", "d1") == 2


@pytest.mark.parametrize("seed", range(8))
async def test_a_device_that_comes_while_a_crash_is_recovered_from_stays_online(stage: Stage, seed: int) -> None:
    for device in ("d0", "d1"):
        await stage.a.online("iotsphere", device)
    again = stage.node("a")
    stage.documents.chance.seed(seed)
    await asyncio.gather(again.recover(), again.online("iotsphere", "d1"), again.online("iotsphere", "d2"))
    assert (await stage.said("d0"))[-1] == ("offline", 1, "gateway_restarted")
    assert (await stage.said("d1"))[-1] == ("online", 2, "connected")
    assert (await stage.said("d2"))[-1] == ("online", 1, "connected")
    assert await again.recover() == 0
    assert await again.offline("iotsphere", "d2", 1, "disconnected")
    assert (await stage.said("d2"))[-1] == ("offline", 1, "disconnected")


@pytest.mark.parametrize("seed", range(8))
async def test_however_two_gateways_interleave_the_last_message_tells_the_stored_state(stage: Stage, seed: int) -> None:
    stage.documents.chance.seed(seed)
    chance = random.Random(seed)

    async def visit(node: Presence) -> None:
        for _ in range(4):
            epoch = await node.online("iotsphere", "d1")
            for _ in range(chance.randrange(8)):
                await asyncio.sleep(0)
            await node.offline("iotsphere", "d1", epoch, "disconnected")

    await asyncio.gather(*(visit(node) for node in (stage.a, stage.b, stage.a, stage.b)))
    document = await stage.documents.get("presence", "iotsphere/d1")
    assert document is not None
    stored = json.loads(document.value)
    said = await stage.said()
    assert said[-1] == (stored["state"], stored["epoch"], stored["reason"])
    assert max(epoch for _, epoch, _ in said) == 16
    assert stage.a._devices == {}
    assert stage.b._devices == {}
