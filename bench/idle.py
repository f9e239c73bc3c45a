"""What connections cost that say nothing: memory each, how fast they come, what they burn, and the one too many."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.codec import Parser
from iotsphere.adapters.mqtt.encode import encode
from tests.support.gateway import Credential, Gateway
from tests.support.servers import mosquitto

from .machine import CpuMeter
from .programs import BenchFailed
from .subjects import MOSQUITTO_SETTINGS

AT_ONCE = 64
ASKED_AGAIN = 200
WITHIN_S = 60.0
SETTLE_S = 3.0
QUIET_S = 5.0
SPARE_FILES = 500


@dataclass(frozen=True, slots=True)
class Idle:
    """One system's figures. ``refused``: what the next connection was told, None where there is no limit to meet.

    ``bytes_each``: resident memory a connection. ``cpu``: share of one core while nothing is said. ``others``: cores that
    everything else on the machine took meanwhile, the client's own part of the work included.
    """

    title: str
    connections: int
    per_second: float
    bytes_each: float
    cpu: float
    kept: int
    asked: int
    refused: int | None
    others: float


class Held(asyncio.Protocol):
    """One connection: it says who it is, asks for its commands, and then stays."""

    def __init__(self, who: Credential) -> None:
        loop = asyncio.get_running_loop()
        self.answered: asyncio.Future[p.ConnAck | p.SubAck | p.PingResp] = loop.create_future()
        self.lost = False
        self._who = who
        self._parser = Parser(p.MQTT_5)
        self._wire: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        who = self._who
        self.say(
            p.Connect(p.MQTT_5, who.device_id, keep_alive=1_200, username=who.username, password=who.password.encode())
        )

    def data_received(self, data: bytes) -> None:
        for item in self._parser.feed(data):
            if isinstance(item, p.ConnAck | p.SubAck | p.PingResp) and not self.answered.done():
                self.answered.set_result(item)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self.answered.done():
            self.answered.set_exception(BenchFailed(f"{self._who.device_id} lost its connection: {exc}"))
            self.answered.exception()  # whoever waits is told; nobody need

    def say(self, packet: p.Packet) -> None:
        """Send a packet."""
        assert self._wire is not None
        self._wire.write(encode(packet, p.MQTT_5))

    async def answer(self) -> p.ConnAck | p.SubAck | p.PingResp:
        """The next answer."""
        found = await asyncio.wait_for(asyncio.shield(self.answered), WITHIN_S)
        if not self.lost:
            self.answered = asyncio.get_running_loop().create_future()
        return found

    async def settle(self) -> None:
        """Be welcomed, and subscribe. Raises BenchFailed."""
        connack = await self.answer()
        if not isinstance(connack, p.ConnAck) or connack.reason:
            raise BenchFailed(f"{self._who.device_id} was answered {connack}")
        topic = f"iotsphere/devices/{self._who.device_id}/commands/request"
        self.say(p.Subscribe(1, (p.Request(topic, 1),)))
        suback = await self.answer()
        if not isinstance(suback, p.SubAck) or suback.reasons[0] >= 0x80:
            raise BenchFailed(f"{self._who.device_id} may not subscribe: {suback}")

    def close(self) -> None:
        """Go away."""
        if self._wire is not None:
            self._wire.abort()


async def open_one(address: tuple[str, int], who: Credential) -> Held:
    """A connection that has sent its CONNECT."""
    _, held = await asyncio.get_running_loop().create_connection(lambda: Held(who), *address)
    return held


async def hold(title: str, address: tuple[str, int], pid: int, who: Sequence[Credential], limit: int | None) -> Idle:
    """Open a connection for everybody and look at what that costs. ``limit``: connections after which one is refused."""
    process = psutil.Process(pid)
    everybody = who[:limit]
    meter = CpuMeter({title: pid})
    before = process.memory_info().rss
    held: list[Held] = []
    waiting = iter(everybody)

    async def come() -> None:
        for one in waiting:
            client = await open_one(address, one)
            held.append(client)
            await client.settle()

    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        await asyncio.gather(*(come() for _ in range(AT_ONCE)))
        seconds = loop.time() - begun
        await asyncio.sleep(SETTLE_S)
        used = process.memory_info().rss - before
        quiet = CpuMeter({title: pid})
        await asyncio.sleep(QUIET_S)
        cpu = quiet.spent()[title] / QUIET_S
        refused = await one_too_many(address, who[limit]) if limit is not None and limit < len(who) else None
        asked = held[:: max(1, len(held) // ASKED_AGAIN)]
        kept = await still_there(asked)
        others = (meter.busy() - meter.spent()[title]) / (loop.time() - begun)
    finally:
        for client in held:
            client.close()
        await asyncio.sleep(0)
    return Idle(title, len(held), len(held) / seconds, used / len(held), cpu, kept, len(asked), refused, others)


async def one_too_many(address: tuple[str, int], who: Credential) -> int:
    """What the connection after the last one is told."""
    late = await open_one(address, who)
    connack = await late.answer()
    late.close()
    if not isinstance(connack, p.ConnAck) or not connack.reason:
        raise BenchFailed(f"one connection too many was answered {connack}")
    return connack.reason


async def still_there(held: Sequence[Held]) -> int:
    """How many of them are still answered."""
    for client in held:
        if not client.lost:
            client.say(p.PingReq())
    answers = await asyncio.gather(*(client.answer() for client in held if not client.lost), return_exceptions=True)
    return sum(isinstance(answer, p.PingResp) for answer in answers)


async def measure_idle(connections: int, folder: Path) -> list[Idle]:
    """The gateway as it comes and Mosquitto, one after the other. Raises BenchFailed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < connections + SPARE_FILES:
        raise BenchFailed(f"only {hard} files may be open here: allow more (ulimit -n), or ask for fewer connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, connections + SPARE_FILES)), hard))
    rows = []
    names = [f"idle{number:05}" for number in range(connections + 1)]
    async with Gateway(folder / "data", settings={"max_connections": connections}) as gateway:
        who = [each for chunk in await asyncio.gather(*(gateway.add_devices(names[at::8]) for at in range(8)))
               for each in chunk]  # fmt: skip
        rows.append(await hold("embedded SQLite", gateway.mqtt, gateway.pid, who, connections))
    strangers = [Credential(name, name, "-") for name in names[:connections]]
    with mosquitto(folder / "mosquitto", f"{MOSQUITTO_SETTINGS}max_connections -1\n") as server:
        assert server.process is not None
        rows.append(await hold("Mosquitto alone", ("127.0.0.1", server.port), server.process.pid, strangers, None))
    return rows


HEADINGS = ("system", "connections", "connections/s", "KiB each", "CPU when idle", "still answered", "the next one")


def cells(row: Idle) -> tuple[str, ...]:
    """The row as texts."""
    return (
        row.title,
        f"{row.connections:,}",
        f"{row.per_second:,.0f}",
        f"{row.bytes_each / 1024:.1f}",
        f"{row.cpu:.1%} of one core",
        f"{row.kept} of {row.asked}",
        "—" if row.refused is None else f"refused, {row.refused:#04x}",
    )


def show_idle(rows: Sequence[Idle], machine: dict[str, str], folder: Path, console: Console) -> None:
    """Print one table, and keep all figures in the folder."""
    table = Table(box=box.SIMPLE_HEAD, title=f"idle connections; {machine['cores']} cores, {machine['cpu']}")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "system" else "right")
    for row in rows:
        table.add_row(*cells(row), style=None if row.kept == row.asked else "red")
    console.print(table)
    busiest = max(row.others for row in rows)
    console.print(
        f"Everything else, the clients of this measurement among it, took up to {busiest:.2f} cores meanwhile."
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"idle-{machine['date']}.json"
    path.write_text(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
