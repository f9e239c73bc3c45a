"""`iotsphere.connect` at each kind of address, as a backend service uses it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import iotsphere
from iotsphere.app import App
from iotsphere.entities.errors import CursorInvalid, RequestInvalid, Unauthenticated
from iotsphere.settings import Settings
from tests.support.gateway import Gateway
from tests.support.servers import Server

TOPIC = "iotsphere/devices/d1/telemetry/temperature"
FILTER = "iotsphere/devices/+/telemetry/#"


@pytest.fixture(params=["sqlite", "redis", "websocket"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A log that outlives its client: a folder, a server, or a gateway (which the test starts)."""
    if request.param == "redis":
        server: Server = request.getfixturevalue("redis_server")
        return f"redis://127.0.0.1:{server.port}/0"
    return f"{request.param}:{tmp_path / 'data'}"


async def publish_and_leave(url: str, token: str | None, *values: int) -> str | None:
    """Publish, read one message, and give the cursor after it."""
    async with iotsphere.connect(url, token=token) as broker, asyncio.timeout(100):
        stream = await broker.subscribe(FILTER).opened()
        for value in values:
            await broker.publish(TOPIC, value)
        assert (await anext(stream)).json() == {"value": values[0]}
        return stream.cursor


async def read_on(url: str, token: str | None, cursor: str, count: int) -> list[int]:
    async with iotsphere.connect(url, token=token) as broker, asyncio.timeout(100):
        stream = broker.subscribe(FILTER, from_=cursor)
        return [(await anext(stream)).json()["value"] for _ in range(count)]


async def test_a_cursor_outlives_its_client(address: str, tmp_path: Path) -> None:
    if not address.startswith("websocket:"):
        cursor = await publish_and_leave(address, None, 1, 2, 3)
        assert cursor is not None
        assert await read_on(address, None, cursor, 2) == [2, 3]
        return
    settings = Settings(data=tmp_path / "data", websocket="127.0.0.1:0")
    async with App(settings, ("websocket",)) as gateway:
        token = gateway.operator_token()
        cursor = await publish_and_leave(gateway.endpoints["websocket"], token, 1, 2, 3)
    assert cursor is not None
    async with App(settings, ("websocket",)) as gateway:
        assert await read_on(gateway.endpoints["websocket"], token, cursor, 2) == [2, 3]
    # The operator's cursor is good on the log itself, too: the folder holds the key that signed it.
    assert await read_on(f"sqlite:{tmp_path / 'data'}", None, cursor, 2) == [2, 3]


@pytest.mark.parametrize("address", ["sqlite", "redis"], indirect=True)
async def test_work_goes_on_where_a_member_left(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOTSPHERE_VISIBILITY_SECONDS", "3")
    async with iotsphere.connect(address) as broker, asyncio.timeout(100):
        for value in range(3):
            await broker.publish(TOPIC, value)
        work = broker.subscribe(FILTER, group="billing", from_="earliest", credit=1)
        await (await anext(work)).ack()
        lost = await anext(work)
        assert (lost.message.json(), lost.attempt) == ({"value": 1}, 1)
    async with iotsphere.connect(address) as broker, asyncio.timeout(100):
        work = broker.subscribe(FILTER, group="billing", from_="earliest")
        got = [await anext(work) for _ in range(2)]
        assert sorted((delivery.message.json()["value"], delivery.attempt) for delivery in got) == [(1, 2), (2, 1)]
        for delivery in got:
            await delivery.ack()


async def test_a_memory_log_begins_anew_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cursor = await publish_and_leave("memory://", None, 1, 2)
    assert cursor is not None
    async with iotsphere.connect("memory://") as broker, asyncio.timeout(100):
        assert (await broker.publish(TOPIC, 5)).duplicate is False
    assert os.listdir(tmp_path) == []


async def test_a_folder_keeps_what_is_desired_and_asked_for_its_gateway(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with App(Settings(data=folder), ()) as stores:
        await stores.container.devices().register("iotsphere", "d1")
    async with iotsphere.connect(f"sqlite:{folder}") as broker, asyncio.timeout(100):
        assert (await broker.desire("d1", {"rate": 5}))["version"] == 1
        command = await broker.command("d1", {"action": "open"})
        assert command["state"] == "queued"
    async with Gateway(folder) as gateway, iotsphere.connect(gateway.websocket, token=gateway.token) as broker:
        assert (await broker.shadow("d1"))["desired"] == {"rate": 5}
        told = broker.subscribe("iotsphere/devices/d1/#", from_="earliest")
        kinds = {(await asyncio.wait_for(anext(told), 60)).topic.partition("d1/")[2] for _ in range(5)}
        assert kinds == {"commands/request", "commands/status", "shadow/desired", "shadow/delta", "shadow/document"}
        assert (await broker.cancel(command["commandId"]))["state"] == "cancelled"


async def test_a_shared_log_without_its_database_decides_nothing(redis_server: Server) -> None:
    url = f"redis://127.0.0.1:{redis_server.port}/0"
    async with iotsphere.connect(url) as broker, asyncio.timeout(100):
        for asked in (broker.desire("d1", {"rate": 5}), broker.command("d1", {}), broker.shadow("d1")):
            with pytest.raises(RequestInvalid, match="name its database"):
                await asked
        for kind in ("commands/request", "shadow/desired", "shadow/delta"):
            with pytest.raises(RequestInvalid, match="name its database"):
                await broker.publish(f"iotsphere/devices/d1/{kind}", {"desired": {}})
        with pytest.raises(RequestInvalid, match="name its database"):
            await broker.publish("iotsphere/users/ann/preferences", {"preferences": {}})
        for fact in ("devices/d1/shadow/reported", "devices/d1/commands/response", "users/ann/notifications"):
            assert (await broker.publish(f"iotsphere/{fact}", {"reported": {}})).position != ""


async def test_a_shared_log_with_its_database_decides_as_a_gateway_does(redis_server: Server, mongo_url: str) -> None:
    url = f"redis://127.0.0.1:{redis_server.port}/0"
    async with App(Settings(log=url, database=mongo_url, websocket="127.0.0.1:0"), ("websocket",)) as gateway:
        await gateway.container.devices().register("iotsphere", "d1")
        token, door = gateway.operator_token(), gateway.endpoints["websocket"]
        async with (
            iotsphere.connect(url, database=mongo_url) as service,
            iotsphere.connect(door, token=token) as page,
            asyncio.timeout(100),
        ):
            assert (await service.desire("d1", {"rate": 5}))["version"] == 1
            assert (await page.shadow("d1"))["desired"] == {"rate": 5}
            command = await service.command("d1", {"action": "open"})
            assert (await page.cancel(command["commandId"]))["state"] == "cancelled"


async def test_a_memory_log_takes_requests_as_messages() -> None:
    async with iotsphere.connect("memory://") as broker, asyncio.timeout(100):
        asked = broker.subscribe("iotsphere/devices/+/commands/request")
        receipt = await broker.publish("iotsphere/devices/d1/commands/request", {"action": "open"})
        assert (receipt.decided, (await anext(asked)).json()) == (None, {"action": "open"})
        with pytest.raises(RequestInvalid, match="no database"):
            await broker.command("d1", {"action": "open"})


async def test_domains_are_separate() -> None:
    async with iotsphere.connect("memory://", domain="plant-2") as broker, asyncio.timeout(100):
        receipt = await broker.publish("plant-2/system/status", {"ok": True})
        assert receipt.position.startswith("system/0/")
        with pytest.raises(CursorInvalid):
            await broker.subscribe("plant-2/#", from_="nonsense").opened()


@pytest.mark.parametrize("url", ["", "http://127.0.0.1", "sqlite:", "mongodb://x", "memoryx"])
async def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(RequestInvalid, match="write ws://"):
        async with iotsphere.connect(url):
            raise AssertionError("there is nothing to connect to")


async def test_a_gateway_wants_a_token(tmp_path: Path) -> None:
    async with App(Settings(data=tmp_path, log="memory", websocket="127.0.0.1:0"), ("websocket",)) as gateway:
        with pytest.raises(Unauthenticated):
            async with iotsphere.connect(gateway.endpoints["websocket"], token="x.y.z"):
                raise AssertionError("it was let in")


def test_the_package_loads_no_client_until_it_is_asked_for() -> None:
    code = "import sys, iotsphere; print(sorted(m for m in sys.modules if m.startswith(('iotsphere.', 'websockets'))))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
