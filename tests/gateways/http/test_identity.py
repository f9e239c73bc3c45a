"""Devices and tokens over HTTP: what is made is shown once and works; what is revoked ends at once."""

from __future__ import annotations

import httpx
import pytest

from iotsphere.entities.errors import Unauthenticated
from tests.support.http_door import Door

DEVICES = "/api/v1/devices"
TOKENS = "/api/v1/tokens"


async def test_a_device_is_admitted_listed_rotated_and_removed(door: Door, api: httpx.AsyncClient) -> None:
    answer = await api.post(DEVICES, json={"device_id": "Pump-7"})
    made = answer.json()
    assert (answer.status_code, made["device_id"], made["username"]) == (201, "Pump-7", "Pump-7")
    login = await door.rooms.authenticate.password(made["username"], made["password"], "192.0.2.1")
    assert login.identity == "iotsphere/device/Pump-7"
    told = (await api.get(DEVICES)).json()
    assert told == {
        "devices": [
            {"device_id": "Pump-7", "registered_at": "2026-01-01T00:00:00.000Z", "since": "2026-01-01T00:00:00.000Z"}
        ],
        "after": None,
    }
    rotated = (await api.post(f"{DEVICES}/Pump-7/rotate")).json()
    assert rotated["password"] != made["password"]
    assert not door.rooms.authenticate.still_valid(login)
    with pytest.raises(Unauthenticated):
        await door.rooms.authenticate.password("Pump-7", made["password"], "192.0.2.1")
    login = await door.rooms.authenticate.password("Pump-7", rotated["password"], "192.0.2.1")
    answer = await api.delete(f"{DEVICES}/Pump-7")
    assert (answer.status_code, answer.content) == (204, b"")
    assert not door.rooms.authenticate.still_valid(login)
    assert (await api.get(DEVICES)).json()["devices"] == []


async def test_devices_are_paged(api: httpx.AsyncClient) -> None:
    for name in "cabed":
        await api.post(DEVICES, json={"device_id": name})
    first = (await api.get(DEVICES, params={"limit": 3})).json()
    assert ([one["device_id"] for one in first["devices"]], first["after"]) == (["a", "b", "c"], "c")
    rest = (await api.get(DEVICES, params={"limit": 3, "after": "c"})).json()
    assert ([one["device_id"] for one in rest["devices"]], rest["after"]) == (["d", "e"], None)


async def test_twins_and_ids_outside_the_grammar_are_refused(api: httpx.AsyncClient) -> None:
    await api.post(DEVICES, json={"device_id": "Pump-7"})
    for twin in ("Pump-7", "pump-7"):
        answer = await api.post(DEVICES, json={"device_id": twin})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    for wrong in ("", "batch", "a/b", "+", "a\x00", "d" * 65, "é"):
        answer = await api.post(DEVICES, json={"device_id": wrong})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "request_invalid"), wrong


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{", b'{"device_id":1}', b'{"device_id":"a","device_id":"b"}', b'{"device_id":"a","x":1}',
        b'{"device_id":{"$ne":null}}', b'{"device_id":["a"]}', b'{"device_id":NaN}', b"\xff", b"[" * 20_000,
        b'{"device_id":"%b"}' % (b"a" * 600),
    ],
)  # fmt: skip
async def test_bodies_that_are_no_strict_json_or_do_not_fit_are_refused(api: httpx.AsyncClient, body: bytes) -> None:
    answer = await api.post(DEVICES, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert not answer.json()["error"]["retry"]
    assert (await api.get(DEVICES)).json()["devices"] == []


async def test_what_is_not_there_is_not_found(api: httpx.AsyncClient) -> None:
    for method, path in (("DELETE", "d1"), ("POST", "d1/rotate"), ("DELETE", "%2e%2e"), ("DELETE", "a%2Fb")):
        answer = await api.request(method, f"{DEVICES}/{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), path


async def test_a_token_is_issued_works_and_is_revoked_by_its_id(door: Door, api: httpx.AsyncClient) -> None:
    body = {"subject": "user:ann", "grants": ["subscribe:iotsphere/devices/+/telemetry/#"], "lifetime": 60}
    answer = await api.post(TOKENS, json=body)
    issued = answer.json()
    assert (answer.status_code, issued["subject"], issued["expires_at"]) == (
        201, "user:ann", "2026-01-01T00:01:00.000Z",
    )  # fmt: skip
    async with door.client(issued["token"]) as ann:
        params = {"filter": "iotsphere/devices/+/telemetry"}
        assert (await ann.get("/api/v1/messages", params=params)).status_code == 200
        assert (await ann.get(DEVICES)).status_code == 404
        assert (await api.delete(f"{TOKENS}/{issued['token_id']}")).status_code == 204
        assert (await ann.get("/api/v1/messages", params=params)).status_code == 401


async def test_all_tokens_of_a_subject_are_revoked(door: Door, api: httpx.AsyncClient) -> None:
    params = {"filter": "iotsphere/#"}
    async with door.client(door.token(subject="user:ann", grants=["subscribe:iotsphere/#"])) as ann:
        assert (await ann.get("/api/v1/messages", params=params)).status_code == 200
        assert (await api.delete(TOKENS, params={"subject": "user:ann"})).status_code == 204
        assert (await ann.get("/api/v1/messages", params=params)).status_code == 401
    async with door.client(door.token(subject="user:ann", grants=["subscribe:iotsphere/#"])) as ann:
        assert (await ann.get("/api/v1/messages", params=params)).status_code == 200


async def test_nobody_can_give_more_than_he_has(door: Door) -> None:
    limited = door.token(subject="user:lead", grants=["subscribe:iotsphere/devices/+/telemetry/#"], roles=["operator"])
    async with door.client(limited) as lead:
        given = {"subject": "user:ann", "grants": ["subscribe:iotsphere/devices/d1/telemetry"]}
        assert (await lead.post(TOKENS, json=given)).status_code == 201
        for beyond in (
            {"subject": "user:ann", "grants": ["subscribe:iotsphere/#"]},
            {"subject": "user:ann", "grants": ["publish:iotsphere/devices/d1/telemetry"]},
            {"subject": "user:ann", "roles": ["root"]},
        ):
            answer = await lead.post(TOKENS, json=beyond)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "body",
    [
        {}, {"subject": "ann"}, {"subject": "user:ann", "grants": ["publish:other/#"]},
        {"subject": "user:ann", "grants": "publish:iotsphere/#"}, {"subject": "user:ann", "lifetime": 0},
        {"subject": "user:ann", "lifetime": 1e12}, {"subject": "user:ann", "lifetime": True},
        {"subject": "user:ann", "grants": ["publish:iotsphere/#"] * 257}, {"subject": "user:ann", "dom": "other"},
        {"subject": "user:ann", "domain": "other"},
    ],
)  # fmt: skip
async def test_tokens_outside_the_rules_are_refused(api: httpx.AsyncClient, body: dict[str, object]) -> None:
    answer = await api.post(TOKENS, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "request_invalid"), answer.text
    if body != {}:
        assert "eyJ" not in answer.text
