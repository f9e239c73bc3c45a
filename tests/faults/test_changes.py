"""The change listener on embedded stores: killed under load, on a hot shadow, and beside people with the sqlite3 shell."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.cases.clients import browser
from tests.cases.twins import twin, until_shadow
from tests.support.gateway import Gateway
from tests.support.servers import Server

from .changing import CHANGES, SHADOWS, WITHIN, WRITERS, Listener, Writer, assert_told, role, under_load, versions


async def test_killing_the_gateway_leaves_no_hole_in_the_versions(tmp_path: Path) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        devices = [who.device_id for who in await gateway.add_devices([f"d{n:02}" for n in range(SHADOWS)])]
        writers = [Writer(gateway.api, number) for number in range(WRITERS)]

        async def strike() -> None:
            await gateway.kill()
            await gateway.start()

        await under_load(writers, devices, [strike] * 2)
        async with gateway.api() as api:
            await assert_told(api, writers, WRITERS * CHANGES)
            assert (await api.get("/api/v1/ledger")).json()["imbalance"] == 0


async def test_killing_the_listener_alone_leaves_no_hole_in_the_versions(tmp_path: Path, redis_server: Server) -> None:
    log = f"redis://127.0.0.1:{redis_server.port}/0"
    async with role("api", tmp_path, log) as door:
        devices = [f"d{number:02}" for number in range(SHADOWS)]
        async with door.api() as api:
            for device in devices:
                assert (await api.post("/api/v1/devices", json={"device_id": device})).status_code == 201
        writers = [Writer(door.api, number) for number in range(WRITERS)]
        async with Listener(tmp_path, log) as listener:
            await under_load(writers, devices, [listener.strike] * 2)
            async with door.api() as api:
                await assert_told(api, writers, WRITERS * CHANGES)
                assert (await api.get("/api/v1/ledger")).json()["imbalance"] == 0


async def test_a_listener_that_stands_by_goes_on_when_the_other_is_killed(tmp_path: Path, redis_server: Server) -> None:
    log = f"redis://127.0.0.1:{redis_server.port}/0"
    path = "/api/v1/devices/d1/shadow"
    async with role("api", tmp_path, log) as door, door.api() as api, Listener(tmp_path, log) as first:
        assert (await api.post("/api/v1/devices", json={"device_id": "d1"})).status_code == 201
        expected: list[int] = []

        async def change(count: int) -> None:
            for number in range(count):
                answer = await api.patch(path, json={"desired": {"n": len(expected) + number}})
                assert answer.status_code == 200, answer.text
            expected.extend(range(len(expected) + 1, len(expected) + count + 1))

        async def all_told() -> None:
            deadline = asyncio.get_running_loop().time() + WITHIN
            while len((told := await versions(api))["d1"]) < len(expected):
                assert asyncio.get_running_loop().time() < deadline, told
                await asyncio.sleep(0.05)
            assert told == {"d1": expected}

        await change(3)
        await all_told()
        async with Listener(tmp_path, log):
            await change(3)
            await all_told()
            await change(5)
            await first.kill()  # with or without some of them told
            await change(3)
            await all_told()
        assert (await api.get("/api/v1/ledger")).json()["imbalance"] == 0


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
            shell = sqlite3.connect(gateway.data / "state.db", timeout=60)
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
        'UPDATE shadows SET body = \'{"version": "x", "steps": 5, "desired": 7}\' WHERE key = \'iotsphere/d1\'',
        "DELETE FROM shadows",
    ],
)
async def test_nothing_that_is_written_by_hand_stops_the_gateway(tmp_path: Path, statement: str) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        await gateway.add_devices(["d1", "d2"])
        async with gateway.api() as api:
            await api.patch("/api/v1/devices/d1/shadow", json={"desired": {"n": 1}})
            shell = sqlite3.connect(gateway.data / "state.db", timeout=60)
            with shell:
                shell.execute(statement)
            shell.close()
            assert (await api.patch("/api/v1/devices/d2/shadow", json={"desired": {"n": 2}})).status_code == 200
            deadline = asyncio.get_running_loop().time() + 60
            while (await versions(api)).get("d2") != [1]:
                assert asyncio.get_running_loop().time() < deadline, gateway.tail()
                await asyncio.sleep(0.05)
            await asyncio.sleep(1)  # two rounds of the timers
            assert (await api.get("/ready")).status_code == 200, gateway.tail()
            assert "task_failed" not in gateway.tail(1_000)
