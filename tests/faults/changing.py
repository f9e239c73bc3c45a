"""Writers that change shadows while something is killed, the proof that each change was told, and roles on their own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx

from tests.support.gateway import ROOT
from tests.support.processes import die_with_parent
from tests.support.waiting import until

WITHIN = 200
WRITERS = 8
SHADOWS = 20
CHANGES = 60  # of each writer


class Writer:
    """Changes shadows one after the other, and repeats a request under its id until it is answered."""

    def __init__(self, open_api: Callable[[], httpx.AsyncClient], number: int) -> None:
        self._open_api = open_api
        self.number = number
        self.accepted: dict[str, list[int]] = defaultdict(list)
        self.done = 0

    async def run(self, count: int, devices: Sequence[str], pause: float = 0.0) -> None:
        async with self._open_api() as api:
            for turn in range(count):
                device = devices[(self.number * 7 + turn) % len(devices)]
                body = {"desired": {f"w{self.number}": turn}, "message_id": str(uuid.uuid4())}
                answer = await self._patch(api, f"/api/v1/devices/{device}/shadow", body)
                assert answer["changed"], answer
                self.accepted[device].append(answer["version"])
                self.done += 1
                await asyncio.sleep(pause)

    async def _patch(self, api: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
        while True:
            try:
                answer = await api.patch(path, json=body)
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue
            if answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                return found
            assert answer.status_code >= 500, answer.text  # it says that it may be repeated
            await asyncio.sleep(0.05)


async def versions(api: httpx.AsyncClient) -> dict[str, list[int]]:
    """The versions on shadow/document, by device, in the order of the log."""
    found: dict[str, list[int]] = defaultdict(list)
    query: dict[str, str | int] = {"filter": "iotsphere/devices/+/shadow/document", "limit": 1_000}
    while True:
        page = (await api.get("/api/v1/messages", params=query)).json()
        for message in page["messages"]:
            found[message["metadata"]["topic"].split("/")[2]].append(message["payload"]["version"])
        if not page["more"]:
            return found
        query["cursor"] = page["cursor"]


async def assert_told(api: httpx.AsyncClient, writers: Sequence[Writer], total: int) -> None:
    """Every accepted version is on its topic exactly once and in order, and nothing else is."""
    accepted: dict[str, list[int]] = defaultdict(list)
    for writer in writers:
        for device, numbers in writer.accepted.items():
            accepted[device] += numbers
    expected = {device: list(range(1, len(numbers) + 1)) for device, numbers in accepted.items()}
    assert {device: sorted(numbers) for device, numbers in accepted.items()} == expected
    assert sum(map(len, expected.values())) == total
    deadline = asyncio.get_running_loop().time() + WITHIN
    while sum(map(len, (told := await versions(api)).values())) < total:
        assert asyncio.get_running_loop().time() < deadline, {k: v for k, v in told.items() if v != expected.get(k)}
        await asyncio.sleep(0.25)
    assert told == expected
    alerts = await api.get("/api/v1/messages", params={"filter": "iotsphere/system/alerts"})
    assert alerts.json()["messages"] == []


def have_done(writers: Sequence[Writer], count: float) -> bool:
    """Whether so many changes were answered."""
    return sum(writer.done for writer in writers) >= count


async def under_load(
    writers: Sequence[Writer],
    devices: Sequence[str],
    strikes: Sequence[Callable[[], Awaitable[None]]],
    changes: int = CHANGES,
    pause: float = 0.01,
) -> None:
    """Let the writers write, and strike in between, at equal distances."""
    total = len(writers) * changes
    async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as tasks:
        for writer in writers:
            tasks.create_task(writer.run(changes, devices, pause))
        for number, strike in enumerate(strikes, 1):
            due = total * number / (len(strikes) + 1)
            await until(partial(have_done, writers, due), "the writers get on", WITHIN)
            await strike()


@dataclass
class Role:
    """A running role. ``http`` and ``websocket``: the URLs of its doors, if it has them; ``token``: an operator's."""

    process: asyncio.subprocess.Process
    http: str
    websocket: str
    token: str

    def api(self) -> httpx.AsyncClient:
        """A client of the HTTP door with the operator's token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        # Without TLS nobody is to be believed, and to load the list of authorities takes longer than a request.
        return httpx.AsyncClient(base_url=self.http, headers=headers, timeout=60, trust_env=False, verify=False)


@asynccontextmanager
async def role(name: str, folder: Path, log: str, database: str = "sqlite") -> AsyncIterator[Role]:
    """One role as a process of its own, on a log in Redis; it is killed in the end, as everything here may be."""
    known = {key: value for key, value in os.environ.items() if not key.startswith("IOTSPHERE_")}
    command = [sys.executable, "-m", "iotsphere", "run", name, "--data", str(folder / "data"), "--log", log, "--json"]
    if name in ("api", "websocket"):
        command += ["--listen", "127.0.0.1:0"]
    with log_of(name, folder).open("ab") as errors:
        started = await asyncio.create_subprocess_exec(
            *command,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**known, "PYTHONPATH": str(ROOT / "src"), "IOTSPHERE_DATABASE": database},
            preexec_fn=die_with_parent,
        )
    try:
        assert started.stdout is not None
        line = await asyncio.wait_for(started.stdout.readline(), 60)
        assert line, log_of(name, folder).read_text()[-2_000:]
        told = json.loads(line)
        yield Role(started, told.get("http", ""), told.get("websocket", ""), told["token"])
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


def log_of(name: str, folder: Path) -> Path:
    """What the processes of a role have logged."""
    return folder / f"{name}.log"


class Listener:
    """The role ``changes``, to be killed and started again; an async context manager of its last process."""

    def __init__(self, folder: Path, log: str, database: str = "sqlite") -> None:
        self._start = partial(role, "changes", folder, log, database)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def start(self) -> None:
        """Start it."""
        self._running = await self._stack.enter_async_context(self._start())

    async def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self._running.process.returncode is None, "it has ended by itself"
        await self._stack.aclose()

    async def stop(self) -> None:
        """Ask it to stop, so that another one need not wait until its lease lapses."""
        self._running.process.terminate()
        assert await asyncio.wait_for(self._running.process.wait(), 60) == 0
        await self._stack.aclose()

    async def strike(self) -> None:
        """Kill it and start another one."""
        await self.kill()
        await self.start()
