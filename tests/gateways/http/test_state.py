"""Shadows, commands and fleets over HTTP: nothing is taken for another type, nor is nesting; what removal takes along."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.http_door import Door

SHADOW = "/api/v1/devices/d1/shadow"
COMMANDS = "/api/v1/devices/d1/commands"
ROLLOUTS = "/api/v1/rollouts"
ROLLOUT: dict[str, Any] = {"kind": "desired", "payload": {"x": 1}, "filter": {"ids": ["d1"]}}


@pytest.fixture(autouse=True)
async def d1(api: httpx.AsyncClient) -> None:
    await api.post("/api/v1/devices", json={"device_id": "d1"})


@pytest.mark.parametrize(
    ("method", "path", "body", "member"),
    [
        ("PATCH", SHADOW, {"desired": {"a": 1}, "version": True}, "version"),
        ("PATCH", SHADOW, {"desired": {"a": 1}, "version": "1"}, "version"),
        ("PATCH", SHADOW, {"desired": {"a": 1}, "version": 1.5}, "version"),
        ("PATCH", SHADOW, {"desired": {"a": 1}, "expires_at": 5}, "expires_at"),
        ("POST", COMMANDS, {"payload": {"a": 1}, "timeout": True}, "timeout"),
        ("POST", COMMANDS, {"payload": {"a": 1}, "wait": "1"}, "wait"),
        ("POST", COMMANDS, {"payload": {"a": 1}, "idempotency_key": 5}, "idempotency_key"),
        ("PATCH", "/api/v1/users/ann/preferences", {"preferences": {"a": 1}, "version": False}, "version"),
        ("PATCH", "/api/v1/devices/d1/labels", {"labels": {"a": 1}}, "labels"),
        ("POST", ROLLOUTS, {**ROLLOUT, "rate": True}, "rate"),
        ("POST", ROLLOUTS, {**ROLLOUT, "abort_minimum": "1"}, "abort_minimum"),
    ],
)
async def test_nothing_is_taken_for_another_type(
    api: httpx.AsyncClient, method: str, path: str, body: dict[str, Any], member: str
) -> None:
    answer = await api.request(method, path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["retry"]) == (422, "request_invalid", False)
    assert f"body.{member}" in error["message"]


@pytest.mark.parametrize("depth", [33, 253, 500, 900, 5_000])
@pytest.mark.parametrize(
    ("method", "path", "start"),
    [
        ("PATCH", SHADOW, b'{"desired":'),
        ("POST", COMMANDS, b'{"payload":'),
        ("PATCH", "/api/v1/users/ann/preferences", b'{"preferences":'),
        ("POST", ROLLOUTS, b'{"kind":"command","filter":{"ids":["d1"]},"payload":'),
    ],
)
async def test_what_nests_too_deep_is_refused(
    api: httpx.AsyncClient, method: str, path: str, start: bytes, depth: int
) -> None:
    body = start + b'{"a":' * depth + b"1" + b"}" * (depth + 1)
    answer = await api.request(method, path, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "json_too_deep")


@pytest.mark.parametrize("topic", ["devices/d1/presence", "devices/d1/errors", "system/dead-letters"])
async def test_nobody_speaks_for_the_gateway(api: httpx.AsyncClient, topic: str) -> None:
    answer = await api.post("/api/v1/messages", json={"topic": f"iotsphere/{topic}", "payload": {"state": "online"}})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (403, "forbidden")
    assert error["message"] == f"'iotsphere/{topic}' is told by the gateway alone: subscribe to it"


async def test_a_device_that_is_removed_takes_its_state_along(door: Door, api: httpx.AsyncClient) -> None:
    await api.patch("/api/v1/devices/d1/labels", json={"labels": {"site": "north"}})
    await api.patch(SHADOW, json={"desired": {"a": 1}})
    await api.patch(SHADOW, params={"name": "radio"}, json={"desired": {"b": 1}})
    command = (await api.post(COMMANDS, json={"payload": {"n": 1}})).json()["commandId"]
    assert (await api.delete("/api/v1/devices/d1")).status_code == 204
    assert (await api.get(SHADOW)).status_code == 404
    assert (await api.get(f"{SHADOW}s")).json() == {"shadows": []}
    assert (await api.get(f"/api/v1/commands/{command}")).json()["state"] == "cancelled"
    assert (await api.get("/api/v1/devices/d1/labels")).status_code == 404
    assert (await api.patch(SHADOW, json={"desired": {"a": 1}})).status_code == 404
    # What its connection sent before it was cut is forgotten as well, once that is over for sure.
    roster = door.rooms.state.roster
    assert await roster.catch_up("iotsphere") == 0
    door.rooms.clock.advance(30_000)
    assert await roster.catch_up("iotsphere") == 1
    (row,) = await door.rooms.database.scan("devices")  # what is left tells only that it was removed
    assert (row.body["labels"], "forgottenAt" in row.body) == ({}, True)
    # The same id anew is another device, whose versions go on.
    await api.post("/api/v1/devices", json={"device_id": "d1"})
    assert (await api.get(SHADOW)).status_code == 404
    assert (await api.patch(SHADOW, json={"desired": {"a": 2}})).json()["version"] == 3
