"""Two processes that take in and two that give out, over one log: order and completeness hold, and what each costs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx

from tests.support.gateway import SOURCES, Credential
from tests.support.servers import redis

from .part import Scale
from .programs import BenchFailed, Program
from .report import faults, total_faults
from .run import Load, Result, measure
from .section import Section, percentiles
from .subjects import Subject, door, names

PROCESSES = 2
DEVICES = 10  # at each of the processes that take in
HEADINGS = (
    "load",
    "messages/s",
    "delivery ms p50/p99/p99.9",
    "CPU µs a message, by process",
    "lost / reordered / duplicated",
)


def seconds(scale: Scale) -> float:
    """What this part takes."""
    return 2 * (scale.seconds + 1) + 8


async def scale_out(scale: Scale, folder: Path) -> Section:
    """Half of the devices at each process that takes in; a client at each that gives out gets everything."""
    loads = {"ceiling": Load(0, scale.seconds, warmup=0.5), "5,000/s": Load(5_000, scale.seconds, warmup=0.5)}
    async with cluster(folder) as subjects:
        runs = {name: await measure(subjects, load, folder) for name, load in loads.items()}
        await check_ledger(folder, sum(run.acked for run in runs.values()))
    return table(runs)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncGenerator[list[Subject]]:
    """One Redis and the roles as processes of their own; a pair of them is a subject."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis(folder / "redis", options={"appendfsync": "everysec"}))
        assert server.process is not None
        log = f"redis://127.0.0.1:{server.port}/0"
        api, facts = await _role(stack, "api", 0, folder, log)
        (folder / "api.json").write_text(json.dumps(facts))
        credentials = await _register(facts)
        follower, _ = await _role(stack, "websocket", PROCESSES, folder, log)
        subjects = []
        for number in range(PROCESSES):
            ingress, ways_in = await _role(stack, "ingress", number, folder, log)
            websocket, ways_out = await _role(stack, "websocket", number, folder, log)
            host, _, port = ways_in["mqtt"].rpartition(":")
            pids = {f"ingress {number + 1}": ingress.pid, f"websocket {number + 1}": websocket.pid}
            if not number:
                pids |= {"redis": server.process.pid, "api": api.pid, "follower": follower.pid}
            own = credentials[number * DEVICES : (number + 1) * DEVICES]
            subjects.append(Subject((host, int(port)), door(ways_out["websocket"], facts["token"]), own, pids))
        yield subjects


async def _role(
    stack: AsyncExitStack, name: str, number: int, folder: Path, log: str
) -> tuple[Program, Mapping[str, str]]:
    """Start a role on a free port; the process and what it says of itself."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("IOTSPHERE_")},
        "PYTHONPATH": str(SOURCES),
        "IOTSPHERE_DURABILITY": "logged",
        "IOTSPHERE_NODE": f"{name}-{number}",
    }
    command = [sys.executable, "-m", "iotsphere", "run", name, "--data", str(folder / "data"), "--log", log]
    program = await Program.run([*command, "--listen", "127.0.0.1:0", "--json"], name, environment)
    stack.push_async_callback(program.end)
    return program, await program.answer(within=60)


def _client(facts: Mapping[str, str]) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {facts['token']}"}
    return httpx.AsyncClient(base_url=facts["http"], headers=headers, timeout=30, trust_env=False)


async def _register(facts: Mapping[str, str]) -> tuple[Credential, ...]:
    found = []
    async with _client(facts) as api:
        for name in names(PROCESSES * DEVICES):
            answer = (await api.post("/api/v1/devices", json={"device_id": name})).raise_for_status().json()
            found.append(Credential(answer["device_id"], answer["username"], answer["password"]))
    return tuple(found)


async def check_ledger(folder: Path, accepted: int) -> None:
    """The ledger of the whole must know exactly what was acknowledged by either process. Raises BenchFailed."""
    facts = json.loads(await asyncio.to_thread((folder / "api.json").read_text))
    async with _client(facts) as api:
        ledger = (await api.get("/api/v1/ledger")).raise_for_status().json()
    found = sum(channel["accepted"] for channel in ledger["channels"] if channel["channel"] == "telemetry")
    if found != accepted or ledger["imbalance"]:
        raise BenchFailed(f"the ledger knows {found} of {accepted} messages, imbalance {ledger['imbalance']}")


def costs(run: Result) -> dict[str, float]:
    """CPU microseconds by role: of taking in and of Redis for each message, of giving out for each delivered."""
    by_role: dict[str, float] = {}
    for name, used in run.cpu.items():
        role = name.partition(" ")[0]
        by_role[role] = by_role.get(role, 0) + used
    counts = {"websocket": run.delivered, "listener": run.delivered}
    return {role: 1e6 * used / counts.get(role, run.acked) for role, used in by_role.items()}


def table(runs: Mapping[str, Result]) -> Section:
    """A row a load."""
    cells = tuple(
        (
            name,
            f"{run.rate:,.0f}",
            percentiles(run.delivery),
            " · ".join(f"{role} {used:.1f}" for role, used in costs(run).items()),
            faults([run]),
        )
        for name, run in runs.items()
    )
    every = list(runs.values())
    figures = {f"scale-out/{role}": used for role, used in costs(every[0]).items()}
    figures["faults"] = total_faults(every)
    return Section(
        "scale-out",
        f"{PROCESSES} processes in, {PROCESSES} out, one Redis",
        HEADINGS,
        cells,
        (
            "Every message went to a client at each door; costs of giving out are for each delivery.",
            "The follower is a process that gives out, without clients: it shows what following the log costs.",
        ),
        figures,
        frozenset(number for number, run in enumerate(every) if not run.is_clean),
        not all(run.is_clean for run in every),
        tuple(run.others / run.seconds for run in every),
        [run.as_json() for run in every],
    )
