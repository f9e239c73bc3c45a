"""What is measured: the gateway on each of its logs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from iotsphere.drivers.clock import SystemClock
from iotsphere.drivers.redis.log import RedisMessagingDriver
from iotsphere.entities.channel import ChannelSpec
from tests.support.gateway import SOURCES, Credential, Gateway
from tests.support.servers import redis

from .programs import BenchFailed


@dataclass(frozen=True, slots=True)
class Subject:
    """A running system: where devices connect, how the listener does, and whose CPU time counts."""

    mqtt: tuple[str, int]
    listener: tuple[str, ...]
    credentials: tuple[Credential, ...]
    pids: Mapping[str, int]
    gateway: Gateway | None = None

    @property
    def running(self) -> Gateway:
        """The gateway. Raises BenchFailed where there is none, as in a peer."""
        if self.gateway is None:
            raise BenchFailed("this is no gateway")
        return self.gateway

    async def check_ledger(self, accepted: int) -> None:
        """Ask the gateway's ledger: it must have accepted exactly so many messages, and account for each of them."""
        if self.gateway is None:
            return
        async with self.gateway.api() as api:
            answer = await api.get("/api/v1/ledger")
            answer.raise_for_status()
            ledger = answer.json()
        found = sum(channel["accepted"] for channel in ledger["channels"] if channel["channel"] == "telemetry")
        if found != accepted or ledger["imbalance"]:
            raise BenchFailed(f"the ledger knows {found} of {accepted} messages, imbalance {ledger['imbalance']}")


Starter = Callable[[Path, int], AbstractAsyncContextManager[Subject]]


def iotsphere_on_redis(
    appendfsync: str, durability: str, partitions: int | None = None, sources: Path = SOURCES
) -> Starter:
    """The gateway over a Redis with its append-only file, everything else as it comes.

    ``partitions``: of the channel for telemetry, which is made beforehand and keeps them. ``sources``: where the
    gateway's package lies.
    """

    @asynccontextmanager
    async def start(folder: Path, devices: int) -> AsyncGenerator[Subject]:
        with redis(folder / "redis", options={"appendfsync": appendfsync}) as server:
            assert server.process is not None
            url = f"redis://127.0.0.1:{server.port}/0"
            if partitions is not None:
                async with RedisMessagingDriver(url, SystemClock(), durability) as log:
                    await log.ensure("iotsphere", {"telemetry": ChannelSpec(partitions)})
            settings = {"durability": durability}
            async with Gateway(folder / "data", log=url, settings=settings, sources=sources) as gateway:
                yield await subject_of(gateway, devices, {"redis": server.process.pid})

    return start


def iotsphere_embedded() -> Starter:
    """The gateway as `iotsphere up` starts it: one process, SQLite, every acknowledgement after fsync."""

    @asynccontextmanager
    async def start(folder: Path, devices: int) -> AsyncGenerator[Subject]:
        async with Gateway(folder / "data") as gateway:
            yield await subject_of(gateway, devices, {})

    return start


async def subject_of(gateway: Gateway, devices: int, others: Mapping[str, int]) -> Subject:
    """A running gateway as a subject, with so many devices registered."""
    credentials = await gateway.add_devices(names(devices))
    listener = door(gateway.websocket, gateway.token)
    return Subject(gateway.mqtt, listener, tuple(credentials), {"gateway": gateway.pid, **others}, gateway)


def door(websocket: str, token: str) -> tuple[str, ...]:
    """The words that lead a listener to a WebSocket door of the gateway."""
    url = httpx.URL(websocket)
    return ("--host", url.host, "--port", str(url.port), "--path", url.raw_path.decode(), "--token", token)


def names(devices: int) -> list[str]:
    """The ids of the devices that publish."""
    return [f"bench{number:04}" for number in range(devices)]


def strangers(devices: int) -> tuple[Credential, ...]:
    """The same devices for a broker that knows no accounts."""
    return tuple(Credential(name, "-", "-") for name in names(devices))
