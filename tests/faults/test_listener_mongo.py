"""Changes told from a MongoDB replica set, by roles that are processes of their own, while both are killed and starved."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pymongo
import pytest

from tests.cases.clients import browser
from tests.cases.twins import shadow, twin, until_shadow
from tests.support.gateway import Gateway
from tests.support.mongo import ReplicaSet, direct
from tests.support.servers import Server
from tests.support.waiting import until

from .changing import SHADOWS, WITHIN, WRITERS, Listener, Writer, assert_told, log_of, role, under_load, versions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

T = TypeVar("T")
CHANGES = 80  # of each writer
PAUSE_S = 0.1
FILLING_BYTES = 900_000
MOST_FAILED_WATCHES = 20


@pytest.fixture(scope="module")
def shared_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    """Three members that keep few changes, and forget more of them every second."""
    options = {"oplogSize": "64", "syncdelay": "1"}
    with ReplicaSet(tmp_path_factory.mktemp("replica-set"), options=options) as replicas:
        yield replicas


@pytest.fixture
def replicas(shared_set: ReplicaSet) -> ReplicaSet:
    """The set with all its members, whatever the test before did."""
    shared_set.revive()
    shared_set.whole()
    return shared_set


@pytest.fixture
def log(redis_server: Server) -> str:
    return f"redis://127.0.0.1:{redis_server.port}/0"


async def register(api: httpx.AsyncClient, count: int) -> list[str]:
    devices = [f"d{number:02}" for number in range(count)]
    for device in devices:
        assert (await api.post("/api/v1/devices", json={"device_id": device})).status_code == 201
    return devices


async def ledger(api: httpx.AsyncClient) -> dict[str, Any]:
    answer = await api.get("/api/v1/ledger")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def shadow_messages(api: httpx.AsyncClient) -> int:
    """How many messages about shadows the log has taken, by whomever."""
    return sum(account["accepted"] for account in (await ledger(api))["channels"] if account["channel"] == "shadow")


async def eventually(ask: Callable[[], Awaitable[T]], holds: Callable[[T], object]) -> T:
    """Ask until the answer holds."""
    deadline = asyncio.get_running_loop().time() + WITHIN
    while not holds(answer := await ask()):
        assert asyncio.get_running_loop().time() < deadline, answer
        await asyncio.sleep(0.02)
    return answer


async def test_killed_listeners_and_a_killed_primary_leave_no_hole_in_the_versions(
    tmp_path: Path, log: str, replicas: ReplicaSet
) -> None:
    url = replicas.url("killed")
    async with role("api", tmp_path, log, url) as door, Listener(tmp_path, log, url) as listener, door.api() as api:
        devices = await register(api, SHADOWS)
        writers = [Writer(door.api, number) for number in range(WRITERS)]

        async def kill_the_primary() -> None:
            await asyncio.to_thread(replicas.primary().kill)

        async def revive() -> None:
            replicas.revive()

        async def strike() -> None:
            """Kill the listener while it tells: one that was just started has to wait for the lease of its forerunner."""
            before = await shadow_messages(api)
            await eventually(partial(shadow_messages, api), lambda count: count > before)
            await listener.strike()

        strikes = (strike, kill_the_primary, strike, revive, listener.strike)
        await under_load(writers, devices, strikes, CHANGES, PAUSE_S)
        await assert_told(api, writers, WRITERS * CHANGES)
        for device in devices:
            assert (await shadow(api, device))["version"] == sum(len(writer.accepted[device]) for writer in writers)
        assert (await ledger(api))["imbalance"] == 0


async def test_b21_a_thousand_updates_of_one_shadow_outlast_two_changes_of_primary(
    tmp_path: Path, log: str, replicas: ReplicaSet
) -> None:
    url = replicas.url("hot")
    async with (
        role("api", tmp_path, log, url) as door,
        role("api", tmp_path, log, url) as other,
        Listener(tmp_path, log, url),
        door.api() as api,
    ):
        await register(api, 1)
        # Half of the writers come through another process: what one has seen is often not what stands there.
        writers = [Writer((door if number % 2 else other).api, number) for number in range(50)]

        async def step_down() -> None:
            await asyncio.to_thread(replicas.step_down)

        await under_load(writers, ["d00"], (step_down, step_down), 20)
        await assert_told(api, writers, 1_000)
        stands = await shadow(api, "d00")
        assert stands["version"] == 1_000
        assert stands["desired"] == {f"w{number}": 19 for number in range(50)}
        assert (await ledger(api))["imbalance"] == 0


# -- history lost -----------------------------------------------------------------------------------------------------


def forget(replicas: ReplicaSet) -> int:
    """Write to a collection that nobody watches until the oplog begins later than now; returns the writes it took."""
    with direct(replicas.primary().port) as client:
        filling = client["forgotten"]["filling"]
        until_then = client.admin.command("ping")["operationTime"]
        oplog = client["local"]["oplog.rs"]
        for number in range(1_000):
            filling.insert_one({"_id": number, "text": "x" * FILLING_BYTES})
            first = oplog.find_one({}, {"ts": 1}, sort=[("$natural", pymongo.ASCENDING)])
            if first is not None and first["ts"] > until_then:
                return number
    raise AssertionError("the oplog keeps everything")


def failed_watches(replicas: ReplicaSet) -> int:
    """How often a member failed to open or to read on in a change stream, or in anything else that is read so."""
    failed = 0
    for member in replicas.members:
        with direct(member.port) as client:
            commands = client.admin.command("serverStatus")["metrics"]["commands"]
            failed += commands["aggregate"]["failed"] + commands["getMore"]["failed"]
    return failed


async def alerts(api: httpx.AsyncClient) -> list[dict[str, Any]]:
    answer = await api.get("/api/v1/messages", params={"filter": "iotsphere/system/alerts"})
    return [message["payload"] for message in answer.json()["messages"]]


async def heard_until(page: Any, wanted: dict[str, int]) -> dict[str, list[dict[str, Any]]]:
    """The documents that a page is told, by device, until each of these devices has the version."""
    heard: dict[str, list[dict[str, Any]]] = defaultdict(list)
    async with asyncio.timeout(WITHIN):
        while any(not heard[device] or heard[device][-1]["version"] < version for device, version in wanted.items()):
            for message in (await page.push("messages"))["messages"]:
                heard[message["metadata"]["topic"].split("/")[2]].append(message["payload"])
    return heard


async def test_b17_after_lost_history_all_is_told_as_it_is_and_the_feed_goes_on(
    tmp_path: Path, log: str, replicas: ReplicaSet
) -> None:
    url = replicas.url("lost")
    async with (
        role("api", tmp_path, log, url) as door,
        role("websocket", tmp_path, log, url) as pages,
        Listener(tmp_path, log, url) as listener,
        door.api() as api,
        browser(pages) as page,
    ):
        devices = await register(api, SHADOWS)
        await page.subscribe("iotsphere/devices/+/shadow/document")

        async def change(which: list[str], turn: int) -> None:
            for device in which:
                answer = await api.patch(f"/api/v1/devices/{device}/shadow", json={"desired": {"turn": turn}})
                assert answer.status_code == 200, answer.text

        await change(devices, 1)
        await heard_until(page, dict.fromkeys(devices, 1))
        await listener.kill()
        changed, left = devices[::2], devices[1::2]
        for turn in (2, 3, 4):
            await change(changed, turn)
        await api.delete(f"/api/v1/devices/{devices[0]}/shadow")
        await asyncio.to_thread(forget, replicas)
        failed = await asyncio.to_thread(failed_watches, replicas)

        await listener.start()
        told = await heard_until(page, {**dict.fromkeys(changed, 4), devices[0]: 5})
        assert {device: len(documents) for device, documents in told.items()} == dict.fromkeys(changed, 1)
        for device in changed[1:]:
            (document,) = told[device]
            assert (document["desired"], document["delta"]) == ({"turn": 4}, {"turn": 4})
        assert told[devices[0]][0]["deleted"] is True

        await change(devices[1:], 5)
        told = await heard_until(page, {**dict.fromkeys(changed[1:], 5), **dict.fromkeys(left, 2)})
        assert {device: len(documents) for device, documents in told.items()} == dict.fromkeys(devices[1:], 1)
        expected = {device: [1, 4, 5] if device in changed else [1, 2] for device in devices}
        assert await versions(api) == {**expected, devices[0]: [1, 5]}
        (alert,) = await alerts(api)
        assert (alert["alert"], alert["reconciled"]) == ("history_lost", len(changed))
        assert alert["since"] < alert["until"]
        logged = [json.loads(line) for line in log_of("changes", tmp_path).read_text().splitlines()]
        assert [line["event"] for line in logged].count("change_history_lost") == 1
        assert 1 <= await asyncio.to_thread(failed_watches, replicas) - failed <= MOST_FAILED_WATCHES
        assert (await ledger(api))["imbalance"] == 0

        # A restart says nothing of it again.
        await listener.stop()
        await listener.start()
        await change([devices[1]], 6)
        assert (await heard_until(page, {devices[1]: 3})).keys() == {devices[1]}
        assert len(await alerts(api)) == 1


# -- the database is away ---------------------------------------------------------------------------------------------


async def test_while_the_database_is_away_facts_are_taken_and_requests_are_refused(
    tmp_path: Path, replicas: ReplicaSet
) -> None:
    settings = {"database": replicas.url("away")}
    async with Gateway(tmp_path / "data", settings=settings) as gateway, gateway.api() as api:
        (who,) = await gateway.add_devices(["d1"])
        path = "/api/v1/devices/d1/shadow"
        assert (await api.patch(path, json={"desired": {"n": 0}})).json()["version"] == 1
        async with twin(gateway, who, filters=()) as device:
            frozen = [member.pause() for member in replicas.members]
            for one in frozen:
                one.__enter__()
            try:
                refused = asyncio.create_task(api.patch(path, json={"desired": {"n": 1}}))
                number = 0
                while not refused.done():  # the request waits for the database, the facts do not
                    number += 1
                    await device.report({"reported": {"n": number}})
                    await device.client.publish(f"{device.topic}/telemetry/temperature", str(number), qos=1)
                    await asyncio.sleep(0.05)
                answer = await refused
            finally:
                for one in frozen:
                    one.__exit__(None, None, None)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable"), answer.text
        assert answer.json()["error"]["retry"] is True
        assert number > 1
        stands = await until_shadow(api, "d1", reported={"n": number})
        # Whether the request that was given up happened is not known; to ask again settles it.
        assert stands["desired"] in ({"n": 0}, {"n": 1})
        again = await api.patch(path, json={"desired": {"n": -1}})
        assert (again.status_code, again.json()["changed"]) == (200, True), again.text
        wanted = list(range(1, again.json()["version"] + 1))
        told = await eventually(partial(versions, api), lambda told: len(told["d1"]) >= len(wanted))
        assert told == {"d1": wanted}
        with direct(replicas.primary().port) as client:
            readings = client["away"]["history"]
            await until(lambda: readings.count_documents({"device": "d1"}) >= number, "all telemetry is kept", WITHIN)
            kept = sorted(reading["value"] for reading in readings.find({"device": "d1"}))
            assert kept == list(range(1, number + 1))
        drawn_up = await eventually(partial(ledger, api), lambda it: not any(one["pending"] for one in it["readers"]))
        assert (drawn_up["imbalance"], drawn_up["dead_letters"]) == (0, {})
