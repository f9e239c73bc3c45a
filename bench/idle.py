"""What connections cost that say nothing: memory each, how fast they come, what they burn, and the one too many."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import psutil

from tests.support.gateway import Credential, Gateway
from tests.support.servers import mosquitto

from .held import Held, MqttHeld, WebSocketHeld
from .machine import CpuMeter
from .part import Scale
from .peers.brokers import MOSQUITTO_SETTINGS
from .peers.found import program
from .programs import BenchFailed
from .section import Section

CONNECTIONS = 10_000
CONNECTIONS_QUICK = 1_000
AT_ONCE = 64
ASKED_AGAIN = 200
SETTLE_S = 3.0
QUIET_S = 5.0
SPARE_FILES = 500
HEADINGS = ("system", "connections", "connections/s", "KiB each", "CPU when idle", "still answered", "the next one")


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


@dataclass(frozen=True, slots=True)
class Door:
    """Where connections are held. ``make``: the client of the given number. ``limit``: connections that are let in."""

    title: str
    address: tuple[str, int]
    pid: int
    make: Callable[[int], Held]
    limit: int | None


async def open_one(door: Door, number: int) -> Held:
    """A connection that has said who it is."""
    made = door.make(number)
    await asyncio.get_running_loop().create_connection(lambda: made, *door.address)
    return made


async def hold(door: Door, connections: int, settle: float = SETTLE_S, quiet: float = QUIET_S) -> Idle:
    """Open so many connections and look at what that costs, ``settle`` seconds later and for ``quiet`` seconds."""
    process = psutil.Process(door.pid)
    meter = CpuMeter({door.title: door.pid})
    before = process.memory_info().rss
    held: list[Held] = []
    waiting = iter(range(connections))

    async def come() -> None:
        for number in waiting:
            client = await open_one(door, number)
            held.append(client)
            await client.settle()

    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        await asyncio.gather(*(come() for _ in range(AT_ONCE)))
        seconds = loop.time() - begun
        await asyncio.sleep(settle)
        used = process.memory_info().rss - before
        silence = CpuMeter({door.title: door.pid})
        await asyncio.sleep(quiet)
        cpu = silence.spent()[door.title] / quiet
        refused = await one_too_many(door, connections) if door.limit == connections else None
        asked = held[:: max(1, len(held) // ASKED_AGAIN)]
        kept = await still_there(asked)
        others = (meter.busy() - meter.spent()[door.title]) / (loop.time() - begun)
    finally:
        for client in held:
            client.close()
        await asyncio.sleep(0)
    return Idle(door.title, len(held), len(held) / seconds, used / len(held), cpu, kept, len(asked), refused, others)


async def one_too_many(door: Door, number: int) -> int:
    """What the connection after the last one is told. Raises BenchFailed when it is let in."""
    late = await open_one(door, number)
    try:
        return await late.refusal()
    finally:
        late.close()


async def still_there(held: Sequence[Held]) -> int:
    """How many of them are still answered."""
    answers = await asyncio.gather(*(client.is_there() for client in held), return_exceptions=True)
    return sum(answer is True for answer in answers)


async def measure_idle(connections: int, folder: Path, settle: float = SETTLE_S, quiet: float = QUIET_S) -> list[Idle]:
    """The gateway's two doors, each of a gateway of its own as it comes, and Mosquitto. Raises BenchFailed."""
    allow_files(connections)
    rows = []
    names = [f"idle{number:05}" for number in range(connections + 1)]
    settings = {"max_connections": connections}
    async with Gateway(folder / "mqtt", settings=settings) as gateway:
        who = [each for chunk in await asyncio.gather(*(gateway.add_devices(names[at::8]) for at in range(8)))
               for each in chunk]  # fmt: skip
        door = Door("embedded, MQTT", gateway.mqtt, gateway.pid, lambda number: MqttHeld(who[number]), connections)
        rows.append(await hold(door, connections, settle, quiet))
    async with Gateway(folder / "websocket", settings=settings) as gateway:
        url, token = httpx.URL(gateway.websocket), gateway.token
        address = (url.host, url.port or 80)
        door = Door("embedded, WebSocket", address, gateway.pid, lambda _: WebSocketHeld(url, token), connections)
        rows.append(await hold(door, connections, settle, quiet))
    try:
        program("mosquitto")
    except BenchFailed:
        return rows  # a peer that cannot be had
    strangers = [Credential(name, name, "-") for name in names]
    with mosquitto(folder / "mosquitto", f"{MOSQUITTO_SETTINGS}max_connections -1\n") as server:
        assert server.process is not None
        address, pid = ("127.0.0.1", server.port), server.process.pid
        door = Door("Mosquitto alone, MQTT", address, pid, lambda number: MqttHeld(strangers[number]), None)
        rows.append(await hold(door, connections, settle, quiet))
    return rows


def allow_files(connections: int) -> None:
    """Let this process and its children open as many files as that takes. Raises BenchFailed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < connections + SPARE_FILES:
        raise BenchFailed(f"only {hard} files may be open here: allow more (ulimit -n), or ask for fewer connections")
    wanted = connections + SPARE_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft if soft >= wanted else wanted, hard))


def seconds(scale: Scale) -> float:
    """What this part takes."""
    return 3 * (SETTLE_S + QUIET_S + 2) + (CONNECTIONS_QUICK if scale.quick else CONNECTIONS) / 250


async def idle(scale: Scale, folder: Path) -> Section:
    """Hold them and show what that cost."""
    return table(await measure_idle(CONNECTIONS_QUICK if scale.quick else CONNECTIONS, folder))


def cells(row: Idle) -> tuple[str, ...]:
    """The row as texts."""
    return (
        row.title,
        f"{row.connections:,}",
        f"{row.per_second:,.0f}",
        f"{row.bytes_each / 1024:.1f}",
        f"{row.cpu:.1%} of one core",
        f"{row.kept} of {row.asked}",
        "—"
        if row.refused is None
        else f"refused, {row.refused:#04x}"
        if row.refused < 256
        else f"refused, {row.refused}",
    )


def table(rows: Sequence[Idle]) -> Section:
    """The gateway's MQTT door, its WebSocket door and the peer, in this order."""
    figures = {}
    for name, row in zip(("mqtt", "websocket"), rows, strict=False):
        if row.connections >= CONNECTIONS:  # fewer say nothing about as many
            figures[f"idle/{name}/mib"] = row.bytes_each * 1000 / 2**20
            figures[f"idle/{name}/held"] = row.connections if row.kept == row.asked else 0
    lost = frozenset(number for number, row in enumerate(rows) if row.kept != row.asked)
    busiest = max(row.others for row in rows)
    note = f"Everything else, the clients of this measurement among it, took up to {busiest:.2f} cores meanwhile."
    return Section(
        "idle",
        "Idle connections",
        HEADINGS,
        tuple(cells(row) for row in rows),
        (note,),
        figures,
        lost,
        bool(lost),
        raw=[asdict(row) for row in rows],
    )
