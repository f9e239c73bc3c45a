"""Commands on a running gateway: C13, evidence, waiting and following, and a kill in the middle."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.gateway import Gateway

from .clients import browser, history, letters
from .twins import command_state, twin

pytestmark = pytest.mark.asyncio(loop_scope="module")

C13 = "00000000-0000-4000-8000-0000000000c3"


def envelope(topic: str, message_id: str, when: datetime) -> dict[str, Any]:
    stated = when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "metadata": {
            "messageId": message_id,
            "timestamp": stated,
            "topic": topic,
            "source": "ui",
            "messageType": "command",
            "version": "1",
        },
        "payload": {"action": "unlock"},
    }


async def test_case_c13_a_replayed_command_runs_once(gateway: Gateway) -> None:
    who, other = await gateway.add_devices(["dev-c", "dev-d"])
    topic = "iotsphere/devices/dev-c/commands/request"
    message = envelope(topic, C13, datetime.now(UTC))
    async with browser(gateway) as page, twin(gateway, who, honours=True) as device, twin(gateway, other) as stranger:
        first = await page.ask("publish", topic=topic, message=message)
        assert (first["type"], first["repeated"]) == ("ok", False)
        await device.until("commands/request", 1)
        refs = [await page.say("publish", topic=topic, message=message) for _ in range(100)]
        for ref in refs:
            answer = await page.answer(ref)
            assert (answer["type"], answer["repeated"], answer["command"]["commandId"]) == ("ok", True, C13)
        foreign = topic.replace("dev-c", "dev-d")
        replayed = await page.ask("publish", topic=foreign, message=message)
        assert (replayed["type"], replayed["code"]) == ("error", "topic_mismatch")
        old = envelope(topic, C13.replace("c3", "c4"), datetime(2024, 1, 1, tzinfo=UTC))
        refused = await page.ask("publish", topic=topic, message=old)
        assert (refused["type"], refused["code"]) == ("error", "expired")
        async with gateway.api() as api:
            done = await api.get(f"/api/v1/commands/{C13}", params={"wait": 50})
        assert done.json()["state"] == "succeeded"
        assert device.of("commands/request") == [{"action": "unlock"}]
        assert stranger.heard == []


async def test_a_command_is_followed_step_by_step(gateway: Gateway) -> None:
    (who,) = await gateway.add_devices(["steps"])
    async with browser(gateway) as page, twin(gateway, who) as device:
        await page.subscribe("iotsphere/devices/steps/commands/status")
        sent = await page.ask("command", device="steps", payload={"action": "update"}, timeout=30)
        command_id = sent["command"]["commandId"]
        await device.until("commands/request", 1)
        assert device.heard[0][2] == command_id
        await device.answer(command_id, {"status": "running", "progress": 40})
        await device.answer(command_id, {"status": "failed", "reason": "no space"})
        states: list[str] = []
        while not states or states[-1] != "failed":
            states += [message["payload"]["state"] for message in (await page.push("messages"))["messages"]]
        assert [state for index, state in enumerate(states) if state not in states[:index]] == [
            "accepted",
            "queued",
            "sent",
            *(["acknowledged"] if "acknowledged" in states else []),
            "running",
            "failed",
        ]
        last = await page.ask("cancel", command=command_id)
        assert (last["type"], last["code"]) == ("error", "conflict")


async def test_who_waits_gets_the_answer_or_the_state_at_the_deadline(gateway: Gateway) -> None:
    (who,) = await gateway.add_devices(["waits"])
    async with browser(gateway) as page:
        async with twin(gateway, who, honours=True):
            done = await page.ask("command", device="waits", payload={"n": 1}, wait=50)
            assert (done["command"]["state"], done["command"]["result"]) == ("succeeded", {"n": 1})
        pending = await page.ask("command", device="waits", payload={"n": 2}, wait=0.2)
        assert pending["command"]["state"] == "queued"
        back = await page.ask("cancel", command=pending["command"]["commandId"])
        assert back["command"]["state"] == "cancelled"
        unknown = await page.ask("command", device="nobody", payload={"n": 1})
        assert (unknown["type"], unknown["code"]) == ("error", "not_found")
    async with gateway.api() as api:
        path = "/api/v1/devices/waits/commands"
        answer = await api.post(path, json={"payload": {"n": 3}, "wait": 0.2})
        assert (answer.status_code, answer.json()["state"]) == (200, "queued"), answer.text
        command = f"/api/v1/commands/{answer.json()['commandId']}"
        assert (await api.get(command, params={"wait": 0.2})).json()["state"] == "queued"


async def test_an_idempotency_key_stands_for_one_command(gateway: Gateway) -> None:
    await gateway.add_devices(["keyed"])
    path = "/api/v1/devices/keyed/commands"
    async with gateway.api() as api:
        body = {"payload": {"action": "open"}, "idempotency_key": "order-1"}
        first = (await api.post(path, json=body)).json()
        again = (await api.post(path, json=body)).json()
        assert (again["commandId"], again["repeated"]) == (first["commandId"], True)
        other = await api.post(path, json={**body, "payload": {"action": "close"}})
        assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
        listed = (await api.get(path)).json()["commands"]
        assert [command["commandId"] for command in listed] == [first["commandId"]]


async def test_answers_that_answer_nothing_are_dead_letters(gateway: Gateway) -> None:
    who, other = await gateway.add_devices(["answers", "others"])
    async with gateway.api() as api, twin(gateway, who) as device:
        made = await api.post("/api/v1/devices/others/commands", json={"payload": {"n": 1}})
        foreign = made.json()["commandId"]
        await device.answer(foreign, {"status": "succeeded"})
        await device.answer(C13.replace("c3", "ff"), {"status": "succeeded"})
        await device.client.publish(f"{device.topic}/commands/response", '{"status":"succeeded"}', qos=1)
        deadline = asyncio.get_running_loop().time() + 60
        while len(found := await letters(gateway, device="answers")) < 3:
            assert asyncio.get_running_loop().time() < deadline, found
            await asyncio.sleep(0.05)
        assert sorted(letter.reason for letter in found) == ["topic_mismatch", "unknown_command", "unknown_command"]
        assert await command_state(api, foreign) == "queued"
        assert other.device_id == "others"


async def test_commands_survive_kill_9_and_run_once(gateway: Gateway) -> None:
    (who,) = await gateway.add_devices(["killed"])
    path = "/api/v1/devices/killed/commands"
    async with gateway.api() as api:
        ids = [(await api.post(path, json={"payload": {"n": n}})).json()["commandId"] for n in range(5)]
    await gateway.kill()
    await gateway.start()
    async with gateway.api() as api, twin(gateway, who, keep=True) as device:
        await device.until("commands/request", 5)
        for command_id in ids[:2]:
            await device.answer(command_id, {"status": "succeeded"})
            answer = await api.get(f"/api/v1/commands/{command_id}", params={"wait": 50})
            assert answer.json()["state"] == "succeeded"
        deadline = asyncio.get_running_loop().time() + 60
        while await command_state(api, ids[4]) != "acknowledged":
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)
        await gateway.kill()
    await gateway.start()
    async with gateway.api() as api, twin(gateway, who, keep=True, honours=True) as device:
        await device.answer(ids[2], {"status": "succeeded"})
        answer = await api.get(f"/api/v1/commands/{ids[2]}", params={"wait": 50})
        assert answer.json()["state"] == "succeeded"
        last = await api.post(path, json={"payload": {"n": 5}, "wait": 50})
        assert last.json()["state"] == "succeeded"
        assert device.of("commands/request") == [{"n": 5}]
        assert [await command_state(api, command_id) for command_id in ids] == [
            "succeeded",
            "succeeded",
            "succeeded",
            "acknowledged",
            "acknowledged",
        ]
        told = await history(gateway, "iotsphere/devices/killed/commands/request")
        assert [entry["payload"]["n"] for entry in told] == [0, 1, 2, 3, 4, 5]
        readers = (await api.get("/api/v1/ledger")).json()["readers"]
        assert {reader["imbalance"] for reader in readers} == {0}


async def test_a_rollout_that_too_many_devices_fail_is_aborted_and_taken_back(gateway: Gateway) -> None:
    """Half of what is over may fail here, and more may not: the first failure lets it go on, the second ends it."""
    names = ["abort-a", "abort-b", *(f"abort-c{number}" for number in range(6)), "abort-d", "abort-e1", "abort-e2"]
    known = {who.device_id: who for who in await gateway.add_devices(names)}
    order = {
        "kind": "command", "payload": {"action": "update"}, "filter": {"glob": "abort-*"}, "rate": 120,
        "abort_percent": 60, "abort_minimum": 2,
    }  # fmt: skip
    async with (
        gateway.api() as api,
        twin(gateway, known["abort-a"], honours=True) as good,
        twin(gateway, known["abort-b"]) as bad,
        twin(gateway, known["abort-d"]) as worse,
    ):
        for device in names:  # so that the roster has them now
            assert (await api.patch(f"/api/v1/devices/{device}/labels", json={"labels": {}})).status_code == 200
        made = await api.post("/api/v1/rollouts", json=order)
        assert made.status_code == 200, made.text
        path = f"/api/v1/rollouts/{made.json()['rolloutId']}"
        for failing in (bad, worse):  # what is over is counted every two seconds; between these two lie three and more
            await failing.until("commands/request", 1)
            await failing.answer(failing.heard[0][2], {"status": "failed", "reason": "no space"})
        deadline = asyncio.get_running_loop().time() + 60
        while (found := (await api.get(path)).json())["state"] == "running":
            assert asyncio.get_running_loop().time() < deadline, found
            await asyncio.sleep(0.05)
        assert (found["state"], found["total"]) == ("aborted", 11)
        while (found := (await api.get(path)).json())["counts"].get("queued"):
            assert asyncio.get_running_loop().time() < deadline, found
            await asyncio.sleep(0.05)
        assert found["counts"] == {"succeeded": 1, "failed": 2, "cancelled": found["issued"] - 3}
        assert found["issued"] >= 9
        assert len(good.heard) == 1
        async with twin(gateway, known["abort-c0"]) as late:  # it was offline, and is spared
            sent = await api.post("/api/v1/devices/abort-c0/commands", json={"payload": {"action": "ping"}})
            assert sent.status_code == 200
            assert await late.until("commands/request", 1) == [{"action": "ping"}]
        again = await api.post(f"{path}/resume")
        assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")
