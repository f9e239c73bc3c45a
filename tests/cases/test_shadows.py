"""Field cases of shadows on a running gateway: A04, B22, B23, C05, C06, and a device that was away."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.gateway import Gateway

from .clients import browser, history, letters
from .twins import command_state, shadow, twin, until_shadow

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_device_that_was_away_gets_one_delta_and_its_commands_in_order_once(gateway: Gateway) -> None:
    (who,) = await gateway.add_devices(["away"])
    path = "/api/v1/devices/away"
    async with gateway.api() as api:
        async with twin(gateway, who, keep=True) as device:
            await api.patch(f"{path}/shadow", json={"desired": {"step": 0}})
            await device.until("shadow/delta", 1)
            await device.report({"reported": {"step": 0}})
            await until_shadow(api, "away", delta={})
        for step in range(1, 51):
            answer = await api.patch(f"{path}/shadow", json={"desired": {"step": step, f"key{step % 7}": step}})
            assert answer.json()["changed"], answer.text
        ids = []
        for number in range(10):
            body: dict[str, Any] = {"payload": {"number": number}}
            answer = await api.post(f"{path}/commands", json=body)
            assert answer.json()["state"] == "queued", answer.text
            ids.append(answer.json()["commandId"])
        assert (await api.post(f"/api/v1/commands/{ids[3]}/cancel")).json()["state"] == "cancelled"
        wanted = (await shadow(api, "away"))["delta"]
        async with twin(gateway, who, keep=True, honours=True) as device:
            await device.until("commands/request", 9)
            await until_shadow(api, "away", delta={})
            for command_id in ids[:3] + ids[4:]:
                answer = await api.get(f"/api/v1/commands/{command_id}", params={"wait": 50})
                assert answer.json()["state"] == "succeeded"
            deltas = [delta["delta"] for delta in device.of("shadow/delta") if delta["delta"]]
            assert deltas == [wanted]
            assert [payload["number"] for payload in device.of("commands/request")] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        async with twin(gateway, who, keep=True) as device:
            await api.patch(f"{path}/shadow", json={"desired": {"last": True}})
            await device.until("shadow/delta", 1)
            assert [delta["delta"] for delta in device.of("shadow/delta")] == [{"last": True}]
            assert device.of("commands/request") == []
        assert await command_state(api, ids[3]) == "cancelled"


async def test_what_becomes_of_each_wish_is_told(gateway: Gateway) -> None:
    (who,) = await gateway.add_devices(["wishes"])
    path = "/api/v1/devices/wishes/shadow"
    async with gateway.api() as api:

        async def stand(**wanted: str) -> dict[str, Any]:
            """The shadow, once its wishes have these statuses."""
            deadline = asyncio.get_running_loop().time() + 60
            while True:
                found = await shadow(api, "wishes")
                statuses = {pointer[1:]: wish["status"] for pointer, wish in found["wishes"].items()}
                if statuses == wanted:
                    return found
                assert asyncio.get_running_loop().time() < deadline, statuses
                await asyncio.sleep(0.02)

        await api.patch(path, json={"desired": {"a": 1, "b": 1, "c": 1}})
        await stand(a="pending", b="pending", c="pending")
        again = await api.patch(path, json={"desired": {"a": 2}})
        answer = await api.get(path, params={"version": again.json()["version"]})
        assert answer.json()["superseded"]["/a"]["status"] == "superseded"
        async with twin(gateway, who) as device:
            (delta,) = await device.until("shadow/delta", 1)
            await stand(a="acknowledged", b="acknowledged", c="acknowledged")
            await device.report(
                {"reported": {"a": 2}, "refused": {"/b": "it is locked"}, "sequence": delta["sequence"]}
            )
            left = await stand(a="applied", b="refused", c="acknowledged")
            assert (left["wishes"]["/b"]["reason"], left["delta"]) == ("it is locked", {"c": 1})
        soon = datetime.now(UTC) + timedelta(seconds=5)
        made = await api.patch(path, json={"desired": {"c": 2}, "expires": {"/c": soon.isoformat()}})
        assert made.status_code == 200, made.text
        assert (await stand(a="applied", b="refused", c="expired"))["delta"] == {}


async def test_case_a04_null_takes_a_key_away_once(gateway: Gateway) -> None:
    (who,) = await gateway.add_devices(["a04"])
    async with gateway.api() as api, twin(gateway, who) as device:
        await device.report({"reported": {"led": True, "rate": 5}})
        before = await until_shadow(api, "a04", reported={"led": True, "rate": 5})
        await device.report({"reported": {"led": None}})
        after = await until_shadow(api, "a04", reported={"rate": 5})
        assert after["version"] == before["version"] + 1
        await device.report({"reported": {"led": None}})
        await device.report({"reported": {"rate": 6}})
        last = await until_shadow(api, "a04", reported={"rate": 6})
        assert last["version"] == after["version"] + 1


async def test_case_b22_versions_conflicts_and_a_delete_that_never_reuses_them(gateway: Gateway) -> None:
    await gateway.add_devices(["b22"])
    path = "/api/v1/devices/b22/shadow"
    async with gateway.api() as api:
        for number in range(222):
            answer = await api.patch(path, json={"desired": {"n": number}})
        assert answer.json()["version"] == 222
        stale = await api.patch(path, json={"desired": {"windowOpen": False}, "version": 221})
        assert stale.status_code == 409
        error = stale.json()["error"]
        assert (error["code"], error["current"]["version"]) == ("version_conflict", 222)
        assert error["current"]["state"]["desired"] == {"n": 221}
        body = {
            "desired": {"windowOpen": False},
            "version": 222,
            "message_id": "00000000-0000-4000-8000-0000000000b2",
        }
        first = await api.patch(path, json=body)
        second = await api.patch(path, json=body)
        assert first.json() == second.json()
        assert first.json()["version"] == 223
        deltas = await history(gateway, "iotsphere/devices/b22/shadow/delta")
        assert deltas[-1]["payload"]["version"] == 223
        gone = await api.delete(path)
        assert gone.json()["version"] == 224
        assert (await api.get(path)).status_code == 404
        late = await api.patch(path, json={"desired": {"windowOpen": True}, "version": 223})
        assert late.status_code == 409
        anew = await api.patch(path, json={"desired": {"windowOpen": True}})
        assert anew.json()["version"] == 225


async def test_case_b23_a_report_makes_no_loop(gateway: Gateway) -> None:
    (who,) = await gateway.add_devices(["dev-l"])
    async with gateway.api() as api, browser(gateway) as page:
        await page.subscribe("iotsphere/devices/dev-l/shadow/#")
        async with twin(gateway, who, filters=("shadow/#",)) as device:
            await device.report({"reported": {"led": True}})
            await until_shadow(api, "dev-l", reported={"led": True})
            await asyncio.sleep(1)
        topics = [
            entry["metadata"]["topic"].rpartition("/")[2]
            for entry in await history(gateway, "iotsphere/devices/dev-l/shadow/#")
        ]
        assert topics == ["reported", "document"]


BAD_KEYS: list[tuple[bytes, str]] = [
    (b'{"reported":{"a.b":1,"$set":{"role":"admin"},"x.$[]":1,"":2,"arr.0":3}}', "key_not_allowed"),
    (b'{"reported":{"acl.role":"admin"}}', "key_not_allowed"),
    (b'{"reported":{"p":{"$inc":{"n":1}}}}', "key_not_allowed"),
    (b'{"reported":{"a\\u0000b":1}}', "key_not_allowed"),
    (b'{"reported":{"a":"\\ud800"}}', "invalid_string"),
    (b'{"reported":{"__proto__":{"isAdmin":true},"constructor":{"prototype":{"x":1}},"led":true}}', "key_not_allowed"),
]


@pytest.mark.parametrize(("payload", "reason"), BAD_KEYS)
async def test_cases_c05_and_c06_dangerous_keys_change_nothing(gateway: Gateway, payload: bytes, reason: str) -> None:
    device_id = f"c05-{BAD_KEYS.index((payload, reason))}"
    (who,) = await gateway.add_devices([device_id])
    async with gateway.api() as api, twin(gateway, who) as device:
        await device.report({"reported": {"led": False}})
        before = await until_shadow(api, device_id, reported={"led": False})
        await device.client.publish(f"{device.topic}/shadow/reported", payload, qos=1)
        found = await letters(gateway, device=device_id)
        assert [letter.reason for letter in found] == [reason]
        assert await shadow(api, device_id) == before


async def test_case_c05_a_value_that_looks_like_a_reference_is_a_text(gateway: Gateway) -> None:
    (who,) = await gateway.add_devices(["c05-v"])
    async with gateway.api() as api, twin(gateway, who) as device:
        await device.report({"reported": {"name": "$acl.role"}})
        await until_shadow(api, "c05-v", reported={"name": "$acl.role"})
        answer = await api.post("/api/v1/devices/c05-v/commands", json={"payload": {"deviceId": {"$ne": None}}})
        assert answer.status_code == 422
        assert answer.json()["error"]["code"] == "key_not_allowed"
        await device.report({"reported": {"name": "<img src=x onerror=alert(1)>"}})
        await until_shadow(api, "c05-v", reported={"name": "<img src=x onerror=alert(1)>"})


async def test_what_is_desired_over_websocket_and_mqtt_follows_the_same_rules(gateway: Gateway) -> None:
    await gateway.add_devices(["doors"])
    topic = "iotsphere/devices/doors/shadow/desired"
    async with gateway.api() as api, browser(gateway) as page:
        made = await page.ask("shadow", device="doors", desired={"a": 1})
        assert (made["type"], made["version"]) == ("ok", 1)
        published = await page.ask("publish", topic=topic, payload={"desired": {"b": 2}, "version": 1})
        assert (published["type"], published["version"]) == ("ok", 2)
        stale = await page.ask("publish", topic=topic, payload={"desired": {"b": 3}, "version": 1})
        assert (stale["type"], stale["code"], stale["current"]["version"]) == ("error", "version_conflict", 2)
        bare = await page.ask("publish", topic=topic, payload={"b": 3})
        assert (bare["type"], bare["code"]) == ("error", "schema_violation")
        forbidden = await page.ask("publish", topic=topic.replace("desired", "document"), payload={"x": 1})
        assert (forbidden["type"], forbidden["code"]) == ("error", "forbidden")
        read = await page.ask("shadow", device="doors")
        assert read["shadow"]["desired"] == {"a": 1, "b": 2}
        at_one = await page.ask("shadow", device="doors", version=1)
        assert at_one["shadow"]["desired"] == {"a": 1}
        posted = await api.post(
            "/api/v1/messages", json={"topic": topic, "payload": {"desired": {"c": None, "b": None}}}
        )
        assert posted.json()["results"][0]["version"] == 3
        assert (await shadow(api, "doors"))["desired"] == {"a": 1}


async def test_named_shadows_have_a_life_of_their_own(gateway: Gateway) -> None:
    (who,) = await gateway.add_devices(["named"])
    async with gateway.api() as api, twin(gateway, who, filters=("shadow/radio/delta",)) as device:
        await api.patch("/api/v1/devices/named/shadow", params={"name": "radio"}, json={"desired": {"band": 5}})
        await device.until("shadow/radio/delta", 1)
        await device.report({"reported": {"band": 5}}, name="radio")
        deadline = asyncio.get_running_loop().time() + 60
        while (await shadow(api, "named", name="radio"))["delta"]:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)
        assert (await api.get("/api/v1/devices/named/shadow")).status_code == 404
        found = (await api.get("/api/v1/devices/named/shadows")).json()["shadows"]
        assert [(each["name"], each["reported"]) for each in found] == [("radio", {"band": 5})]
        assert json.dumps(device.of("shadow/radio/delta")[0]["delta"]) == '{"band": 5}'


async def test_a_change_of_many_devices_by_a_filter_tells_how_far_it_is(gateway: Gateway) -> None:
    devices = [who.device_id for who in await gateway.add_devices([f"roll-{number}" for number in range(4)])]
    async with gateway.api() as api:
        for number, device in enumerate(devices):
            labels = {"labels": {"site": "south" if number else "north"}}
            assert (await api.patch(f"/api/v1/devices/{device}/labels", json=labels)).status_code == 200
        body = {
            "kind": "desired",
            "payload": {"interval": 5},
            "filter": {"prefix": "roll-", "labels": {"site": "south"}},
            "rate": 600,
        }
        made = await api.post("/api/v1/rollouts", json=body)
        assert made.status_code == 200, made.text
        path = f"/api/v1/rollouts/{made.json()['rolloutId']}"
        deadline = asyncio.get_running_loop().time() + 60
        while (found := (await api.get(path)).json())["state"] != "finished":
            assert asyncio.get_running_loop().time() < deadline, found
            await asyncio.sleep(0.05)
        assert (found["total"], found["issued"], found["refusals"]) == (3, 3, 0)
        for device in devices[1:]:
            assert (await shadow(api, device))["desired"] == {"interval": 5}
        assert (await api.get(f"/api/v1/devices/{devices[0]}/shadow")).status_code == 404
