"""Telemetry in a real log: a few devices that measure, through the edge and the drivers that gateways use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from iotsphere.adapters.edge import Edge
from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.redis.log import RedisMessagingDriver
from iotsphere.drivers.sqlite.log import SqliteLog
from iotsphere.entities.channel import ChannelSpec
from iotsphere.entities.message import Record
from iotsphere.entities.principal import device
from iotsphere.use_cases.ports.clock import Clock
from iotsphere.use_cases.ports.message_log import MessageLog

DOMAIN = "iotsphere"
CHANNELS = {"telemetry": ChannelSpec(partitions=4), "batch": ChannelSpec(partitions=1)}


def records_of(
    log: MessageLog, count: int, *, start: int = 0, devices: int = 10, domain: str = DOMAIN, clock: Clock | None = None
) -> list[Record]:
    """Messages ``start`` to ``start + count``: message i is of device i mod ``devices`` and says that its value is i."""
    now = (clock or SystemClock()).now()
    edge = Edge(clock or SystemClock(), log.partitions)
    routes = [
        edge.route(device(domain, f"d{number}"), f"{domain}/devices/d{number}/telemetry/temperature")
        for number in range(devices)
    ]
    return [
        edge.admit(routes[index % devices], b"%d" % index, now, message_id=f"00000000-0000-8000-8000-{index:012x}")
        for index in range(start, start + count)
    ]


async def fill(log: MessageLog, count: int, *, start: int = 0, devices: int = 10, domain: str = DOMAIN) -> None:
    """Append such messages, in batches of 2,000."""
    await log.ensure(domain, CHANNELS)
    for first in range(start, start + count, 2_000):
        size = min(2_000, start + count - first)
        await log.append(records_of(log, size, start=first, devices=devices, domain=domain))


def fill_sqlite(data: Path, count: int, *, start: int = 0, devices: int = 10) -> str:
    """Append to the SQLite log of a data folder, and return its address for Spark."""

    async def work() -> None:
        async with SqliteLog(data / "log", SystemClock()) as log:
            await fill(log, count, start=start, devices=devices)

    asyncio.run(work())
    return f"sqlite:{data}"


def fill_redis(port: int, count: int, *, start: int = 0, devices: int = 10) -> str:
    """Append to a Redis log, and return its address."""

    async def work() -> None:
        async with RedisMessagingDriver(f"redis://127.0.0.1:{port}", SystemClock(), "memory") as log:
            await fill(log, count, start=start, devices=devices)

    asyncio.run(work())
    return f"redis://127.0.0.1:{port}"


def values(found: Sequence[object]) -> list[int]:
    """Sorted values of rows whose first column is one."""
    return sorted(int(row[0]) for row in found)  # type: ignore[index]  # rows are tuples
