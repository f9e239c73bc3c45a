"""The change listener on embedded stores: killed under load, on a hot shadow, and beside people with the sqlite3 shell."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cases.clients import browser
from tests.cases.twins import twin, until_shadow
from tests.support.gateway import ROOT, Gateway
from tests.support.servers import Server, die_with_parent
from tests.support.waiting import until

WITHIN = 120
WRITERS = 8
SHADOWS = 20
CHANGES = 100  # of each writer


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


def _have_done(writers: Sequence[Writer], count: float) -> bool:
    return sum(writer.done for writer in writers) >= count


async def under_load(writers: Sequence[Writer], devices: Sequence[str], strike: Callable[[], Awaitable[None]]) -> None:
    """Let the writers write, and strike when a quarter, half and three quarters are done."""
    total = len(writers) * CHANGES
    async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as tasks:
        for writer in writers:
            tasks.create_task(writer.run(CHANGES, devices, 0.01))
        for share in (0.25, 0.5, 0.75):
            await until(partial(_have_done, writers, share * total), "the writers get on", WITHIN)
            await strike()


async def test_killing_the_gateway_leaves_no_hole_in_the_versions(tmp_path: Path) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        devices = [who.device_id for who in await gateway.add_devices([f"d{n:02}" for n in range(SHADOWS)])]
        writers = [Writer(gateway.api, number) for number in range(WRITERS)]

        async def strike() -> None:
            await gateway.kill()
            await gateway.start()

        await under_load(writers, devices, strike)
        async with gateway.api() as api:
            await assert_told(api, writers, WRITERS * CHANGES)
            assert (await api.get("/api/v1/ledger")).json()["imbalance"] == 0


@asynccontextmanager
async def process(
    role: str, folder: Path, log: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """One role as a process of its own, on a log in Redis and the state file of the folder."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("IOTSPHERE_")}
    command = [sys.executable, "-m", "iotsphere", "run", role, "--data", str(folder / "data"), "--log", log, "--json"]
    if role == "api":
        command += ["--listen", "127.0.0.1:0"]
    with (folder / f"{role}.log").open("ab") as errors:
        started = await asyncio.create_subprocess_exec(
            *command,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**known, "PYTHONPATH": str(ROOT / "src")},
            preexec_fn=die_with_parent,
        )
    try:
        assert started.stdout is not None
        line = await asyncio.wait_for(started.stdout.readline(), 60)
        assert line, (folder / f"{role}.log").read_text()[-2_000:]
        yield started, json.loads(line)
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def test_killing_the_listener_alone_leaves_no_hole_in_the_versions(tmp_path: Path, redis_server: Server) -> None:
    log = f"redis://127.0.0.1:{redis_server.port}/0"
    async with process("api", tmp_path, log) as (_, told):
        headers = {"Authorization": f"Bearer {told['token']}"}

        def open_api() -> httpx.AsyncClient:
            return httpx.AsyncClient(base_url=told["http"], headers=headers, timeout=30, trust_env=False)

        devices = [f"d{number:02}" for number in range(SHADOWS)]
        async with open_api() as api:
            for device in devices:
                assert (await api.post("/api/v1/devices", json={"device_id": device})).status_code == 201
        writers = [Writer(open_api, number) for number in range(WRITERS)]
        listening: list[Any] = []

        async def listen() -> None:
            context = process("changes", tmp_path, log)
            listening.append((context, (await context.__aenter__())[0]))

        async def strike() -> None:
            context, running = listening.pop()
            assert running.returncode is None
            running.kill()
            await context.__aexit__(None, None, None)
            await listen()

        await listen()
        try:
            await under_load(writers, devices, strike)
            async with open_api() as api:
                await assert_told(api, writers, WRITERS * CHANGES)
                assert (await api.get("/api/v1/ledger")).json()["imbalance"] == 0
        finally:
            await listening.pop()[0].__aexit__(None, None, None)


async def test_b21_fifty_writers_and_a_thousand_changes_of_one_shadow(tmp_path: Path) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        (who,) = await gateway.add_devices(["hot"])
        writers = [Writer(gateway.api, number) for number in range(50)]
        async with twin(gateway, who, filters=()) as device, asyncio.timeout(WITHIN):

            async def report() -> None:
                for number in range(500):
                    await device.report({"reported": {"n": number}})

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(report())
                for writer in writers:
                    tasks.create_task(writer.run(10, ["hot"]))
        async with gateway.api() as api:
            shadow = await until_shadow(api, "hot", version=1_000)
            assert shadow["reported"] == {"n": 499}
            assert shadow["desired"] == {f"w{number}": 9 for number in range(50)}
            deadline = asyncio.get_running_loop().time() + WITHIN
            while len(told := (await versions(api))["hot"]) < 1_000:
                assert asyncio.get_running_loop().time() < deadline, len(told)
                await asyncio.sleep(0.25)
            assert told == list(range(1, 1_001))
            mine = sorted(version for writer in writers for version in writer.accepted["hot"])
            assert len(set(mine)) == 500
            assert (await api.get("/api/v1/ledger")).json()["imbalance"] == 0


async def test_a_write_by_the_sqlite3_shell_reaches_the_page_and_the_device(tmp_path: Path) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        (who,) = await gateway.add_devices(["oven"])
        async with gateway.api() as api, browser(gateway) as page, twin(gateway, who) as device:
            made = await api.patch("/api/v1/devices/oven/shadow", json={"desired": {"target": 20, "fan": True}})
            assert made.json()["version"] == 1
            await device.until("shadow/delta", 1)
            await device.report({"reported": {"target": 20, "fan": True}})
            await until_shadow(api, "oven", version=2, delta={})
            await page.subscribe("iotsphere/devices/oven/shadow/desired", "iotsphere/devices/oven/shadow/document")
            await device.until("shadow/delta", 2)
            shell = sqlite3.connect(gateway.data / "state.db", timeout=10)
            with shell:
                shell.execute(
                    "UPDATE shadows SET body = json_set(body, '$.desired.target', 21) WHERE key = 'iotsphere/oven'"
                )
            shell.close()
            await device.until("shadow/delta", 3)
            assert device.of("shadow/delta")[-1] == {
                "delta": {"target": 21}, "sequence": 3, "version": 3, "author": "database",
            }  # fmt: skip
            heard: list[tuple[str, dict[str, Any]]] = []
            while not any(kind == "document" and payload["version"] == 3 for kind, payload in heard):
                pushed = (await page.push("messages"))["messages"]
                heard += [(each["metadata"]["topic"].rpartition("/")[2], each["payload"]) for each in pushed]
            desired = [payload for kind, payload in heard if kind == "desired"]
            assert [(each["desired"], each["version"]) for each in desired] == [({"target": 21, "fan": True}, 3)]
            document = heard[-1][1]
            assert (document["author"], document["delta"]) == ("database", {"target": 21})
            await device.report({"reported": {"target": 21}})
            last = await until_shadow(api, "oven", version=4, delta={})
            assert last["wishes"]["/target"]["status"] == "applied"
            answer = await api.get("/api/v1/devices/oven/shadow", params={"version": 3})
            assert answer.json()["desired"] == {"target": 21, "fan": True}
            assert (await api.get("/api/v1/ledger")).json()["imbalance"] == 0


@pytest.mark.parametrize(
    "statement",
    [
        'INSERT INTO shadows(key, body) VALUES (\'nowhere/d1\', \'{"version": 1, "reported": {"a": 1}}\')',
        'UPDATE shadows SET body = \'{"version": "x", "steps": 5, "desired": 7}\' WHERE key = \'iotsphere/d1\'',
        "INSERT INTO commands(key, body) VALUES ('iotsphere/x', '{\"open\": true, \"due\": 1}')",
        "INSERT INTO rollouts(key, body) VALUES ('iotsphere/x', '{\"open\": true, \"created_at\": 1}')",
        "INSERT INTO preferences(key, body) VALUES ('ann', '{}')",
        "DELETE FROM shadows",
    ],
)
async def test_nothing_that_is_written_by_hand_stops_the_gateway(tmp_path: Path, statement: str) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        await gateway.add_devices(["d1", "d2"])
        async with gateway.api() as api:
            await api.patch("/api/v1/devices/d1/shadow", json={"desired": {"n": 1}})
            shell = sqlite3.connect(gateway.data / "state.db", timeout=10)
            with shell:
                shell.execute(statement)
            shell.close()
            assert (await api.patch("/api/v1/devices/d2/shadow", json={"desired": {"n": 2}})).status_code == 200
            deadline = asyncio.get_running_loop().time() + 30
            while (await versions(api)).get("d2") != [1]:
                assert asyncio.get_running_loop().time() < deadline, gateway.tail()
                await asyncio.sleep(0.05)
            await asyncio.sleep(1)  # two rounds of the timers
            assert (await api.get("/ready")).status_code == 200, gateway.tail()
            assert "task_failed" not in gateway.tail(1_000)
