"""A gateway whose database is MongoDB: what anybody writes there reaches a subscribed browser (B18-B20), and more."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pymongo
import pymongo.database
import pytest
import pytest_asyncio
from bson import Decimal128, Int64

from tests.support import mongo
from tests.support.gateway import Gateway

from .clients import browser, history
from .twins import shadow, twin, until_shadow

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAPPED = """
[[map]]
collection = "work_orders"
topic = "{domain}/devices/{asset.device}/telemetry/work_order"
payload = ["state", "price", "due"]
"""

Shell = pymongo.database.Database[dict[str, Any]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(shared_mongo: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    url = f"mongodb://127.0.0.1:{shared_mongo.port}/gateway?replicaSet={mongo.NAME}"
    folder = tmp_path_factory.mktemp("mongodb")
    (folder / "changes.toml").write_text(MAPPED)
    settings = {"database": url, "changes_file": folder / "changes.toml"}
    async with Gateway(folder / "data", settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def shell(shared_mongo: Any) -> Iterator[Shell]:
    with mongo.direct(shared_mongo.port) as client:
        yield client["gateway"]


async def told(page: Any, topic: str, wanted: Any) -> list[dict[str, Any]]:
    """Read messages until one on the topic fits; returns all that were read."""
    read: list[dict[str, Any]] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for message in (await asyncio.wait_for(page.push("messages"), 60))["messages"]:
            read.append(message)
            if message["metadata"]["topic"] == topic and wanted(message["payload"]):
                return read
    raise AssertionError(read)


async def test_a_device_and_a_browser_meet_over_mongodb(gateway: Gateway, shell: Shell) -> None:
    (who,) = await gateway.add_devices(["m1"])
    async with gateway.api() as api, twin(gateway, who, honours=True) as device, browser(gateway) as page:
        await page.subscribe("iotsphere/devices/m1/shadow/#")
        await api.patch("/api/v1/devices/m1/shadow", json={"desired": {"led": True}})
        await until_shadow(api, "m1", reported={"led": True}, delta={})
        done = await api.post("/api/v1/devices/m1/commands", json={"payload": {"n": 1}, "wait": 50})
        assert (done.json()["state"], done.json()["result"]) == ("succeeded", {"n": 1})
        stored = shell["shadows"].find_one({"_id": "iotsphere/m1"})
        assert stored is not None
        assert (stored["reported"], stored["version"]) == ({"led": True}, 2)
        assert device.of("commands/request") == [{"n": 1}]


async def test_what_is_written_with_the_shell_reaches_the_browser_and_the_device(
    gateway: Gateway, shell: Shell
) -> None:
    (who,) = await gateway.add_devices(["m2"])
    async with gateway.api() as api, twin(gateway, who) as device, browser(gateway) as page:
        await api.patch("/api/v1/devices/m2/shadow", json={"desired": {"rate": 1}})
        await page.subscribe("iotsphere/devices/m2/shadow/+")
        shell["shadows"].update_one({"_id": "iotsphere/m2"}, {"$set": {"desired.rate": 7}})
        topic = "iotsphere/devices/m2/shadow"
        read = await told(page, f"{topic}/document", lambda payload: payload["version"] == 2)
        assert read[-1]["payload"]["desired"] == {"rate": 7}
        assert read[-1]["payload"]["author"] == "database"
        assert any(message["metadata"]["topic"] == f"{topic}/desired" for message in read)
        await device.until("shadow/delta", 2)
        assert device.of("shadow/delta")[-1]["delta"] == {"rate": 7}
        shell["notifications"].insert_one(
            {"_id": "iotsphere/ann/n1", "revision": 1, "schema": 1, "domain": "iotsphere", "user": "ann", "id": "n1",
             "at": 1, "content": {"title": "dry"}, "unread": True}
        )  # fmt: skip
        await page.subscribe("iotsphere/users/ann/#")
        shell["notifications"].insert_one(
            {"_id": "iotsphere/ann/n2", "revision": 1, "schema": 1, "domain": "iotsphere", "user": "ann", "id": "n2",
             "at": 2, "content": {"title": "wet"}, "unread": True}
        )  # fmt: skip
        await told(page, "iotsphere/users/ann/notifications", lambda payload: payload == {"id": "n2", "title": "wet"})


async def test_telemetry_is_there_for_those_who_query_mongodb(gateway: Gateway, shell: Shell) -> None:
    (who,) = await gateway.add_devices(["m6"])
    async with twin(gateway, who) as device:
        reading = {"value": 21.5, "unit": "Cel"}
        await device.client.publish(f"{device.topic}/telemetry/temperature", json.dumps(reading), qos=1)
        await device.client.publish(f"{device.topic}/telemetry", '{"humidity": 40, "pressure": null}', qos=1)
        await device.client.publish(f"{device.topic}/telemetry/temperature", "22", qos=1)
    deadline = time.monotonic() + 60
    while True:
        latest = {row["metric"]: row["value"] for row in shell["latest"].find({"device": "m6"})}
        if latest == {"temperature": 22, "humidity": 40}:
            break
        assert time.monotonic() < deadline, latest
        await asyncio.sleep(0.05)
    history = sorted(row["value"] for row in shell["history"].find({"device": "m6", "metric": "temperature"}))
    assert history == [21.5, 22]


async def test_case_a26_the_newest_record_of_an_upload_is_the_latest_and_each_is_history(
    gateway: Gateway, shell: Shell
) -> None:
    (who,) = await gateway.add_devices(["m26"])
    now = int(time.time() * 1_000)
    records: list[dict[str, Any]] = [
        {"ts": now - 312_400, "lat": 1.0, "lon": 2.0, "sat": 11},
        {"ts": now - 391_800, "lat": 1.5, "lon": 2.5, "sat": 10},
        {"ts": now - 395_600, "lat": 0.0, "lon": 0.0, "sat": 0},
    ]
    rows: list[dict[str, Any]] = []
    async with twin(gateway, who) as device:
        await device.client.publish(f"{device.topic}/telemetry/position", json.dumps(records), qos=1)
    deadline = time.monotonic() + 60
    while len(rows) < 7:  # coordinates without a fix are none
        assert time.monotonic() < deadline, rows
        await asyncio.sleep(0.05)
        rows = list(shell["history"].find({"device": "m26"}).sort([("at", -1), ("metric", 1)]))
    # The shell's times name no zone, and are UTC.
    assert [(row["metric"], row["value"], row["at"].replace(tzinfo=UTC).timestamp()) for row in rows] == [
        (f"position.{name}", record[name], pytest.approx(record["ts"] / 1_000))
        for record in records
        for name in ("lat", "lon", "sat")
        if record["sat"] or name == "sat"
    ]

    def latest() -> dict[str, float]:
        return {row["metric"]: row["value"] for row in shell["latest"].find({"device": "m26"})}

    wanted = {"position.lat": 1.0, "position.lon": 2.0, "position.sat": 11}
    while latest() != wanted:
        assert time.monotonic() < deadline, latest()
        await asyncio.sleep(0.05)


async def test_case_b18_a_change_too_large_for_the_feed_does_not_stop_it(gateway: Gateway, shell: Shell) -> None:
    await gateway.add_devices(["m3"])
    async with gateway.api() as api, browser(gateway) as page:
        await page.subscribe("iotsphere/devices/m3/shadow/document", "iotsphere/system/alerts")
        shell["notifications"].insert_one({"_id": "iotsphere/big/b1", "revision": 1, "content": {"x": "a" * 9_000_000}})
        shell["notifications"].update_one({"_id": "iotsphere/big/b1"}, {"$set": {"content.x": "b" * 9_000_000}})
        await api.patch("/api/v1/devices/m3/shadow", json={"desired": {"on": 1}})
        await told(page, "iotsphere/devices/m3/shadow/document", lambda payload: payload["version"] == 1)


async def test_case_b19_a_dropped_collection_is_told_and_the_feed_goes_on(gateway: Gateway, shell: Shell) -> None:
    await gateway.add_devices(["m4"])
    async with gateway.api() as api, browser(gateway) as page:
        await page.subscribe("iotsphere/users/eve/preferences", "iotsphere/devices/m4/shadow/document")
        await api.patch("/api/v1/users/eve/preferences", json={"preferences": {"theme": "dark"}})
        topic = "iotsphere/users/eve/preferences"
        await told(page, topic, lambda payload: payload["preferences"] == {"theme": "dark"})
        shell.drop_collection("preferences")
        await told(page, topic, lambda payload: payload.get("deleted"))
        await api.patch("/api/v1/devices/m4/shadow", json={"desired": {"on": 1}})
        await told(page, "iotsphere/devices/m4/shadow/document", lambda payload: payload["version"] == 1)
        again = await api.patch("/api/v1/users/eve/preferences", json={"preferences": {"theme": "light"}})
        assert again.status_code == 200, again.text
        await told(page, topic, lambda payload: payload["preferences"] == {"theme": "light"})
        assert (await api.get("/ready")).status_code == 200


async def test_case_b20_a_change_and_a_removal_at_once_end_in_the_removal(gateway: Gateway, shell: Shell) -> None:
    await gateway.add_devices(["m5"])
    async with gateway.api() as api, browser(gateway) as page:
        await page.subscribe("iotsphere/devices/m5/shadow/document")
        await api.patch("/api/v1/devices/m5/shadow", json={"desired": {"on": 1}})
        await api.patch("/api/v1/devices/m5/shadow", json={"desired": {"on": 2}})
        shell["shadows"].update_one({"_id": "iotsphere/m5"}, {"$set": {"desired.on": 3}})
        shell["shadows"].delete_one({"_id": "iotsphere/m5"})
        topic = "iotsphere/devices/m5/shadow/document"
        read = await told(page, topic, lambda payload: payload.get("deleted"))
        assert read[-1]["payload"]["version"] >= 3
        anew = await api.patch("/api/v1/devices/m5/shadow", json={"desired": {"on": 4}})
        version = anew.json()["version"]
        assert (await shadow(api, "m5"))["desired"] == {"on": 4}
        await told(page, topic, lambda payload: payload["version"] == version)
        versions = [message["payload"]["version"] for message in await history(gateway, topic)]
        assert versions == sorted(versions)
        # Who wrote by hand twice before the gateway looked is told of once more, with the same state.
        assert max(versions) in (version, version + 1)
        assert set(versions) == set(range(1, max(versions) + 1))


async def test_a_mapped_collection_that_anybody_writes_reaches_the_browser(gateway: Gateway, shell: Shell) -> None:
    topic = "iotsphere/devices/m10/telemetry/work_order"
    order = {
        "state": "open",
        "price": Decimal128("9.90"),
        "due": datetime(2026, 1, 1, tzinfo=UTC),
        "asset": {"device": "m10"},
    }
    orders = shell["work_orders"]
    async with browser(gateway) as page:
        await page.subscribe(topic, "iotsphere/system/alerts")
        orders.insert_one({"_id": "iotsphere/wo-1", **order})
        read = await told(page, topic, lambda payload: payload["state"] == "open")
        assert read[-1]["payload"] == {"state": "open", "price": "9.90", "due": "2026-01-01T00:00:00.000Z"}
        assert read[-1]["metadata"]["source"] == "database/work_orders"
        orders.update_one({"_id": "iotsphere/wo-1"}, {"$set": {"remark": "no news"}})
        orders.update_one({"_id": "iotsphere/wo-1"}, {"$set": {"state": "done"}})
        orders.insert_one({"_id": "iotsphere/wo-2", **order, "asset": {"device": "m/10"}})
        read = await told(page, "iotsphere/system/alerts", lambda payload: payload["document"] == "iotsphere/wo-2")
        assert [message["payload"]["state"] for message in read[:-1]] == ["done"]
        assert read[-1]["payload"]["alert"] == "change_not_told"
        orders.delete_one({"_id": "iotsphere/wo-1"})
        await told(page, topic, lambda payload: payload.get("_change") == "delete")
        # What is written while no gateway runs is told once it does.
        await gateway.kill()
        orders.insert_many({"_id": f"iotsphere/k-{n}", **order, "state": f"s{n}"} for n in range(20))
        await gateway.start()
    wanted = [f"s{number}" for number in range(20)]
    deadline = time.monotonic() + 60
    while (found := [each["payload"]["state"] for each in await history(gateway, topic)])[-20:] != wanted:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.1)
    assert len(found) == 23


async def test_what_people_wrote_by_mistake_stops_nothing(gateway: Gateway, shell: Shell) -> None:
    (who,) = await gateway.add_devices(["m7"])
    nan, late = float("nan"), datetime(2026, 1, 1, tzinfo=UTC)
    command = {"domain": "iotsphere", "device": "m7", "open": True, "outstanding": True, "order": "0"}
    damaged: dict[str, list[dict[str, Any]]] = {
        "shadows": [{"_id": "iotsphere/m8", "due": nan, "version": 1.0, "reported": {"a": nan, "at": late}},
                    {"_id": "iotsphere/m9", "due": late, "version": "x", "wishes": [1], "marks": {"/a": [nan]}},
                    {"_id": 7}, {"_id": "nobody", "desired": {"a": 1}}],
        "commands": [{"_id": "iotsphere/c1", "due": nan, **command}, {"_id": "iotsphere/c2", "due": "x", **command}],
        "rollouts": [{"_id": "iotsphere/r1", "open": True, "created_at": nan},
                     {"_id": "iotsphere/r2", "open": True, "created_at": late}],
        "notifications": [{"_id": "iotsphere/eve/n1", "at": nan, "content": 7, "unread": True, "user": "eve"}],
        "preferences": [{"_id": "iotsphere/bob", "preferences": {"a": nan}, "version": Int64(2**63 - 1)}],
        "devices": [{"_id": "iotsphere/m9", "labels": nan}],
    }  # fmt: skip
    for collection, documents in damaged.items():
        shell[collection].insert_many(documents)
    async with gateway.api() as api, twin(gateway, who, honours=True) as device, browser(gateway) as page:
        await page.subscribe("iotsphere/devices/m7/shadow/document")
        await api.patch("/api/v1/devices/m7/shadow", json={"desired": {"led": True}})
        await until_shadow(api, "m7", reported={"led": True}, delta={})
        done = await api.post("/api/v1/devices/m7/commands", json={"payload": {"n": 1}, "wait": 50})
        assert done.json()["state"] == "succeeded"
        assert device.of("commands/request") == [{"n": 1}]
        await told(page, "iotsphere/devices/m7/shadow/document", lambda payload: payload["version"] == 2)
        alerts = [message["payload"] for message in await history(gateway, "iotsphere/system/alerts")]
        damaged_ones = {alert.get("document") for alert in alerts}
        assert damaged_ones >= {
            "iotsphere/m8",
            "nobody",
            "iotsphere/c1",
            "iotsphere/c2",
            "iotsphere/eve/n1",
            "iotsphere/bob",
        }
        assert (await api.get("/ready")).status_code == 200
