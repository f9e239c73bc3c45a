"""What is measured: the gateway on each of its logs, and a broker alone to compare with."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.gateway import Credential, Gateway
from tests.support.servers import mosquitto, redis

from .programs import BenchFailed


@dataclass(frozen=True, slots=True)
class Subject:
    """A running system: where devices connect, how the listener does, and whose CPU time counts."""

    mqtt: tuple[str, int]
    listener: tuple[str, ...]
    credentials: tuple[Credential, ...]
    pids: Mapping[str, int]
    gateway: Gateway | None = None

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


def iotsphere_on_redis(appendfsync: str, durability: str) -> Starter:
    """The gateway over a Redis with its append-only file, everything else as it comes."""

    @asynccontextmanager
    async def start(folder: Path, devices: int) -> AsyncGenerator[Subject]:
        with redis(folder / "redis", options={"appendfsync": appendfsync}) as server:
            assert server.process is not None
            url = f"redis://127.0.0.1:{server.port}/0"
            settings = {"durability": durability}
            async with Gateway(folder / "data", log=url, settings=settings) as gateway:
                yield await _subject(gateway, devices, {"redis": server.process.pid})

    return start


def iotsphere_embedded() -> Starter:
    """The gateway as `iotsphere up` starts it: one process, SQLite, every acknowledgement after fsync."""

    @asynccontextmanager
    async def start(folder: Path, devices: int) -> AsyncGenerator[Subject]:
        async with Gateway(folder / "data") as gateway:
            yield await _subject(gateway, devices, {})

    return start


async def _subject(gateway: Gateway, devices: int, others: Mapping[str, int]) -> Subject:
    credentials = await gateway.add_devices([f"bench{number:03}" for number in range(devices)])
    url = httpx.URL(gateway.websocket)
    listener = ("--host", url.host, "--port", str(url.port), "--path", url.raw_path.decode(), "--token", gateway.token)
    return Subject(gateway.mqtt, listener, tuple(credentials), {"gateway": gateway.pid, **others}, gateway)


MOSQUITTO_SETTINGS = """\
allow_anonymous true
set_tcp_nodelay true
max_inflight_messages 0
max_queued_messages 0
persistence false
"""


@asynccontextmanager
async def mosquitto_alone(folder: Path, devices: int) -> AsyncGenerator[Subject]:
    """A broker without accounts, checks or a disk: QoS 1 in, QoS 1 out to an MQTT subscriber."""
    if shutil.which("mosquitto", path="/usr/bin:/usr/sbin") is None:
        raise BenchFailed("mosquitto is not installed")
    with mosquitto(folder / "mosquitto", MOSQUITTO_SETTINGS) as server:
        assert server.process is not None
        credentials = tuple(Credential(f"bench{number:03}", "-", "-") for number in range(devices))
        address = ("127.0.0.1", server.port)
        listener = ("--mqtt", "--host", address[0], "--port", str(address[1]))
        yield Subject(address, listener, credentials, {"mosquitto": server.process.pid})
