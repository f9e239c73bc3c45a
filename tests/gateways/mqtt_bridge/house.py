"""A bridge with everything behind it in this process, beside a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import orjson

from iotsphere.adapters.bridge.file import BridgeSpec, parse_bridge
from iotsphere.adapters.edge import Edge
from iotsphere.adapters.requests import Requests
from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.memory.documents import MemoryDocuments
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.channel import DEFAULT_CHANNELS
from iotsphere.entities.message import Entry, Record
from iotsphere.entities.position import Position
from iotsphere.entities.principal import Principal, parse_grant
from iotsphere.gateways.mqtt_bridge import BridgeOptions, BridgeUseCases, MqttBridge
from iotsphere.use_cases.ports.message_log import Appended
from iotsphere.use_cases.publish import MessagePublishUseCase
from tests.support.waiting import until

IN = '[[in]]\nfrom = "tele/{device_id}/SENSOR"\nto = "iotsphere/devices/{device_id}/telemetry"\n'
OUT = '[[out]]\nfrom = "iotsphere/devices/{device_id}/commands/request"\nto = "cmnd/{device_id}"\n'
SAME = '[[in]]\nfrom = "iotsphere/devices/+/telemetry/#"\n'
QUICK = BridgeOptions(connect=60.0, first_retry=0.05, last_retry=0.4, answer=60.0)


def spec_of(
    port: int, rules: str = IN + OUT, broker: str = "", top: str = 'name = "plant"\n', scheme: str = "mqtt"
) -> BridgeSpec:
    text = f'{top}\n[broker]\nurl = "{scheme}://127.0.0.1:{port}"\n{broker}\n{rules}'
    return parse_bridge(text, PurePath("bridge.toml"), ("iotsphere",))


class Gate:
    """A log in front of another, which appends only while it is open, or fails as it is told."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.open = asyncio.Event()
        self.open.set()
        self.failures: list[Exception] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, records: Sequence[Record]) -> Appended:
        await self.open.wait()
        if self.failures:
            raise self.failures.pop(0)
        appended: Appended = await self._log.append(records)
        return appended


class House:
    """A log, and the bridges that lead to it."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.log: Any = Gate(MemoryLog(self.clock))
        self.documents = MemoryDocuments()
        self.edge = Edge(self.clock, self.log.partitions)
        self.publish = MessagePublishUseCase(self.log)
        self.bridges: list[MqttBridge] = []
        self.requests: Requests | None = None

    def bridge(self, spec: BridgeSpec, options: BridgeOptions = QUICK, **changes: Any) -> MqttBridge:
        use = BridgeUseCases(self.edge, self.publish, self.log, self.documents, self.clock, self.requests)
        bridge = MqttBridge(spec, use, replace(options, **changes))
        self.bridges.append(bridge)
        return bridge

    async def running(self, spec: BridgeSpec, options: BridgeOptions = QUICK, **changes: Any) -> MqttBridge:
        """A bridge that has connected, with its way out standing as well."""
        bridge = self.bridge(spec, options, **changes)
        await bridge.start()
        await until(lambda: bridge.connected, "the bridge is connected")
        return bridge

    async def entries(self, channel: str) -> list[Entry]:
        found: list[Entry] = []
        for partition in self.log.partitions("iotsphere", channel):
            found += (await self.log.read(partition, Position(0, 0), 100_000, 1 << 30)).entries
        return found

    async def count(self, channel: str) -> int:
        return len(await self.entries(channel))

    async def reaches(self, channel: str, count: int, within: float = 60) -> list[dict[str, Any]]:
        """Wait until so many messages lie in a channel; returns them as JSON."""
        deadline = asyncio.get_running_loop().time() + within
        while await self.count(channel) < count:
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"{await self.count(channel)} of {count} messages in {channel}")
            await asyncio.sleep(0.01)
        return [orjson.loads(entry.record.body) for entry in await self.entries(channel)]

    async def letters(self) -> list[dict[str, Any]]:
        """The payloads of the dead letters."""
        return [orjson.loads(entry.record.body)["payload"] for entry in await self.entries("system")
                if entry.record.topic.endswith("/dead-letters")]  # fmt: skip

    async def alerts(self) -> list[dict[str, Any]]:
        """The payloads of the alerts."""
        return [orjson.loads(entry.record.body)["payload"] for entry in await self.entries("system")
                if entry.record.topic.endswith("/alerts")]  # fmt: skip

    async def say(self, topic: str, payload: Any, **how: Any) -> Record:
        """A message of a service of ours."""
        grants = tuple(parse_grant(f"{action}:iotsphere/#", domain="iotsphere") for action in ("publish", "command"))
        action = "command" if topic.endswith("/request") else "publish"
        route = self.edge.route(Principal("service", "tests", "iotsphere", grants), topic, action)
        record = self.edge.admit(route, orjson.dumps(payload), self.clock.now(), **how)
        await self.publish([record])
        return record

    async def forwarded(self, bridge: MqttBridge) -> int:
        """How many entries the bridge's reader has passed."""
        progress = await self.log.committed(f"iotsphere/bridge/{bridge.spec.name}")
        return sum(each.position.offset for each in progress.values())

    async def registered(self, bridge: MqttBridge) -> None:
        """Wait until the way out stands: a new reader begins with what comes from then on."""
        deadline = asyncio.get_running_loop().time() + 60
        while not await self.log.committed(f"iotsphere/bridge/{bridge.spec.name}"):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)


@asynccontextmanager
async def open_house() -> AsyncIterator[House]:
    house = House()
    await house.log.ensure("iotsphere", DEFAULT_CHANNELS)
    try:
        yield house
    finally:
        house.log.open.set()
        for bridge in house.bridges:
            await bridge.close()
        await house.publish.close(2)
