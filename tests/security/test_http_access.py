"""Every HTTP route against callers who may not use it (row A5), and domains that are not the caller's (row A4)."""

from __future__ import annotations

from typing import Any, NamedTuple

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from prometheus_client import REGISTRY

from iotsphere.gateways.http import RuledRoute, allow, make_app, rule_of
from iotsphere.gateways.http.access import OPERATORS
from iotsphere.gateways.http.metrics import Metrics
from iotsphere.use_cases.users import Fact
from tests.support.http_door import Door, open_door

CANARY = "canary-4711"
TOPIC = "iotsphere/devices/d1/telemetry"
ID = "0197f3c2-4711-7a52-9b0c-0000000c4a11"

# One good request for each route: query and body. A route that is not listed fails the tests below.
REQUESTS: dict[str, tuple[dict[str, Any], Any]] = {
    "GET /healthz": ({}, None),
    "GET /ready": ({}, None),
    "GET /metrics": ({}, None),
    "GET /openapi.json": ({}, None),
    "GET /": ({}, None),
    "GET /console.json": ({}, None),
    "GET /console/{path:path}": ({}, None),
    "POST /api/v1/session": ({}, None),
    "GET /api/v1/session": ({}, None),
    "DELETE /api/v1/session": ({}, None),
    "GET /api/v1/fleet": ({}, None),
    "POST /api/v1/messages": ({}, {"topic": TOPIC, "payload": {"x": CANARY}}),
    "GET /api/v1/messages": ({"filter": "iotsphere/#"}, None),
    "GET /api/v1/latest": ({"filter": "iotsphere/#"}, None),
    "GET /api/v1/messages/{message_id}/trace": ({}, None),
    "GET /api/v1/dead-letters": ({}, None),
    "GET /api/v1/dead-letters/{letter_id}": ({}, None),
    "POST /api/v1/dead-letters/{letter_id}/redrive": ({}, None),
    "DELETE /api/v1/dead-letters/{letter_id}": ({}, None),
    "GET /api/v1/devices": ({}, None),
    "POST /api/v1/devices": ({}, {"device_id": "d2"}),
    "DELETE /api/v1/devices/{device_id}": ({}, None),
    "POST /api/v1/devices/{device_id}/rotate": ({}, None),
    "POST /api/v1/tokens": ({}, {"subject": "user:eve", "grants": ["subscribe:iotsphere/#"], "roles": ["operator"]}),
    "DELETE /api/v1/tokens": ({"subject": "user:ann"}, None),
    "DELETE /api/v1/tokens/{token_id}": ({}, None),
    "GET /api/v1/ledger": ({}, None),
    "GET /api/v1/devices/{device_id}/shadows": ({}, None),
    "GET /api/v1/devices/{device_id}/shadow": ({}, None),
    "GET /api/v1/devices/{device_id}/shadow/versions": ({}, None),
    "PATCH /api/v1/devices/{device_id}/shadow": ({}, {"desired": {"x": 1}}),
    "DELETE /api/v1/devices/{device_id}/shadow": ({}, None),
    "POST /api/v1/devices/{device_id}/commands": ({}, {"payload": {"x": 1}}),
    "GET /api/v1/devices/{device_id}/commands": ({}, None),
    "GET /api/v1/commands/{command_id}": ({}, None),
    "POST /api/v1/commands/{command_id}/cancel": ({}, None),
    "GET /api/v1/users/{user_id}/notifications": ({}, None),
    "POST /api/v1/users/{user_id}/notifications/{notification_id}/read": ({}, None),
    "GET /api/v1/users/{user_id}/preferences": ({}, None),
    "PATCH /api/v1/users/{user_id}/preferences": ({}, {"preferences": {"x": 1}}),
    "GET /api/v1/devices/{device_id}/labels": ({}, None),
    "PATCH /api/v1/devices/{device_id}/labels": ({}, {"labels": {"site": "x"}}),
    "POST /api/v1/rollouts": ({}, {"kind": "desired", "payload": {"x": 1}, "filter": {"glob": "*"}}),
    "GET /api/v1/rollouts": ({}, None),
    "GET /api/v1/rollouts/{rollout_id}": ({}, None),
    "POST /api/v1/rollouts/{rollout_id}/{wish}": ({}, None),
}


# What callers with the right grants reach; all else but what is public is for operators.
GRANTED = {
    "POST /api/v1/messages", "GET /api/v1/messages", "GET /api/v1/latest", "GET /api/v1/fleet",
    *(name for name in REQUESTS if "/shadow" in name or "/commands" in name or "/users/" in name or "/rollouts" in name),
}  # fmt: skip
# They are found by an id that tells nothing of where they belong, so a stranger is told that there are none.
BY_ID = {name for name in GRANTED if "{command_id}" in name or "{rollout_id}" in name}
# A list of what is not there is empty.
LISTS = {
    "GET /api/v1/devices/{device_id}/shadows", "GET /api/v1/devices/{device_id}/shadow/versions",
    "GET /api/v1/devices/{device_id}/commands", "GET /api/v1/users/{user_id}/notifications",
}  # fmt: skip
# They hold what the caller may see, which may be nothing.
FILTERED = {"GET /api/v1/devices/{device_id}/shadows", "GET /api/v1/rollouts", "GET /api/v1/fleet"}
# They are about the caller itself, whoever that is.
SELF = {"GET /api/v1/session", "DELETE /api/v1/session"}
# Public, since whoever calls it has nothing yet; without a code it lets nobody in.
DOORSTEP = "POST /api/v1/session"
# What every user may have without being known.
OWN = {"GET /api/v1/users/{user_id}/preferences", "PATCH /api/v1/users/{user_id}/preferences"}


class World(NamedTuple):
    """A door with something of each kind in the domain ``iotsphere``."""

    door: Door
    ids: dict[str, str]
    operator: httpx.AsyncClient

    async def call(self, client: httpx.AsyncClient, name: str, **other_ids: str) -> httpx.Response:
        params, body = REQUESTS[name]
        method, path = name.split(" ")
        path = path.replace("{path:path}", "app.js").format(**{**self.ids, **other_ids})
        return await client.request(method, path, params=params, json=body)

    async def state(self) -> object:
        """All that a caller without rights could have changed."""
        documents = self.door.rooms.documents
        kept = [await documents.scan(name) for name in ("devices", "device-names", "revocations", "dead-letters")]
        log = self.door.rooms.log
        names = ("shadows", "commands", "rollouts", "notifications", "preferences", "devices")
        stored = [await self.door.rooms.database.scan(name) for name in names]
        return [kept, stored], [log.shelf(partition).last for partition in sorted(log._shelves)]


@pytest.fixture
async def world(door: Door) -> Any:
    async with door.client() as operator:
        await operator.post("/api/v1/devices", json={"device_id": "d1"})
        await operator.post(
            "/api/v1/messages", json={"topic": TOPIC, "payload": {"x": CANARY}, "message_id": ID, "retain": True}
        )
        await door.rooms.catch_up()
        letter = await door.rooms.refuse(TOPIC, b'{"x":"%b","x":1}' % CANARY.encode())
        changed = await operator.patch("/api/v1/devices/d1/shadow", json={"desired": {"x": CANARY}})
        assert changed.status_code == 200, changed.text
        command = await operator.post("/api/v1/devices/d1/commands", json={"payload": {"x": CANARY}})
        spec = {"kind": "desired", "payload": {"x": CANARY}, "filter": {"ids": ["d1"]}}
        rollout = await operator.post("/api/v1/rollouts", json=spec)
        await door.rooms.state.rollouts.tend()
        await door.rooms.state.notifications.keep(
            [Fact("iotsphere", "bob", "n-1", "alarms", door.rooms.clock.now(), {"x": CANARY})]
        )
        ids = {
            "message_id": ID, "letter_id": letter.message_id, "device_id": "d1", "token_id": "t-1", "user_id": "bob",
            "notification_id": "n-1", "command_id": command.json()["commandId"],
            "rollout_id": rollout.json()["rolloutId"], "wish": "pause",
        }  # fmt: skip
        yield World(door, ids, operator)


def names_of(app: FastAPI) -> list[str]:
    """``METHOD /path`` of every route that the application has, whatever made it."""
    names = []
    for route in app.routes:
        assert isinstance(route, APIRoute), f"{route} is of a kind that has no rule"
        names += [f"{method} {route.path}" for method in route.methods or ()]
    return sorted(names)


def rules(app: FastAPI) -> dict[str, str]:
    return {
        f"{method} {route.path}": rule_of(route.endpoint).name
        for route in app.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


async def test_a5_every_route_has_a_rule_and_a_request_here(door: Door) -> None:
    app = door.gateway.app
    assert names_of(app) == sorted(REQUESTS)
    assert all(isinstance(route, RuledRoute) for route in app.routes)
    told = rules(app)
    assert {name for name, rule in told.items() if rule == "public"} == {
        "GET /healthz", "GET /ready", "GET /metrics", "GET /openapi.json", "GET /", "GET /console.json",
        "GET /console/{path:path}", DOORSTEP,
    }  # fmt: skip
    assert {name for name, rule in told.items() if rule in ("publish", "subscribe")} == GRANTED
    assert {name for name, rule in told.items() if rule == "signed in"} == SELF


def test_a5_a_route_without_a_rule_cannot_be_made() -> None:
    async def bare() -> None:
        """No rule."""

    with pytest.raises(LookupError, match="bare has no rule"):
        RuledRoute("/bare", bare)
    assert RuledRoute("/bare", allow(OPERATORS)(bare)).path == "/bare"


async def test_every_route_serves_who_may_use_it(world: World) -> None:
    for name in sorted(
        REQUESTS,
        key=lambda name: (name.startswith("DELETE"), "session" in name, "shadow" not in name, "rotate" in name, name),
    ):
        answer = await world.call(world.operator, name)
        expected = 422 if name.endswith("redrive") else answer.status_code  # its cause is not mended
        if name == DOORSTEP:
            assert answer.status_code == 401, "an operator's token is no code"
            continue
        assert answer.status_code == expected
        assert answer.status_code in (200, 201, 204, 422), f"{name}: {answer.status_code} {answer.text}"


async def test_a5_anonymous_callers_get_nothing_from_any_route_that_is_not_public(world: World) -> None:
    before = await world.state()
    told = rules(world.door.gateway.app)
    refusals = set()
    async with world.door.client("") as anybody:
        for name in REQUESTS:
            answer = await world.call(anybody, name)
            assert CANARY not in answer.text
            if told[name] == "public" and name != DOORSTEP:
                assert answer.status_code == 200, name
            else:
                assert answer.status_code == 401, name
                refusals.add(answer.text)
    assert len(refusals) == 1
    assert await world.state() == before


@pytest.mark.parametrize(
    ("subject", "grants", "roles"),
    [
        ("user:ann", [], []),
        ("user:ann", ["subscribe:iotsphere/users/ann/#"], []),
        ("user:ann", ["publish:iotsphere/system/status"], []),
        ("device:d9", None, []),
    ],
)
async def test_a5_callers_without_the_role_or_the_grant_get_nothing(
    world: World, subject: str, grants: list[str] | None, roles: list[str]
) -> None:
    told = rules(world.door.gateway.app)
    documents_before = (await world.state())[0]  # type: ignore[index]  # documents and log
    async with world.door.client(world.door.token(subject=subject, grants=grants, roles=roles)) as client:
        for name in REQUESTS:
            if name == "DELETE /api/v1/session":
                continue  # it would sign the caller out
            answer = await world.call(client, name)
            assert CANARY not in answer.text
            if name == DOORSTEP:
                assert answer.status_code == 401, name
            elif told[name] == "public":
                assert answer.status_code == 200, name
            elif name in SELF:
                assert (answer.status_code, answer.json()["name"]) == (200, subject.partition(":")[2]), name
            elif told[name] == "operator":
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), name
            elif name in FILTERED and answer.status_code == 200:
                assert next(iter(answer.json().values())) == [], name
            elif name in BY_ID and answer.status_code == 404:
                assert answer.json()["error"]["code"] == "not_found", name
            else:
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), name
    assert (await world.state())[0] == documents_before  # type: ignore[index]  # documents and log


async def test_a5_an_operator_of_another_domain_reaches_nothing_of_this_one(world: World) -> None:
    documents = world.door.rooms.documents
    before = [
        await documents.scan("devices", "iotsphere/"),
        await documents.scan("revocations", "iotsphere/"),
        await documents.scan("dead-letters", "iotsphere/"),
    ]
    entries_before = [
        world.door.rooms.log.shelf(p).last for p in world.door.rooms.log.partitions("iotsphere", "telemetry")
    ]
    async with world.door.client(world.door.token("other")) as other:
        for name in REQUESTS:
            if name == "DELETE /api/v1/session":
                continue  # it would sign the operator out
            answer = await world.call(other, name)
            assert CANARY not in answer.text, name
            assert ID not in answer.text, name
            if name in LISTS:
                assert (answer.status_code, list(answer.json().values())) == (200, [[]]), name
            elif "{" in name and name not in OWN and not name.startswith(("GET /console/", "DELETE /api/v1/tokens/")):
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), name
            if name in ("POST /api/v1/messages", "GET /api/v1/messages", "GET /api/v1/latest"):
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), name
        assert (await other.get("/api/v1/devices")).json()["devices"] == [
            {"device_id": "d2", "registered_at": "2026-01-01T00:00:00.001Z", "since": "2026-01-01T00:00:00.001Z"}
        ], "what it made is in its own domain"
    assert before == [
        await documents.scan("devices", "iotsphere/"),
        await documents.scan("revocations", "iotsphere/"),
        await documents.scan("dead-letters", "iotsphere/"),
    ]
    assert entries_before == [
        world.door.rooms.log.shelf(p).last for p in world.door.rooms.log.partitions("iotsphere", "telemetry")
    ]


async def test_not_found_and_not_allowed_read_the_same(world: World) -> None:
    told = rules(world.door.gateway.app)
    missing = {"message_id": "missing", "letter_id": "missing", "device_id": "missing"}
    async with (
        world.door.client(world.door.token("other")) as other,
        world.door.client(world.door.token(subject="user:ann", grants=[])) as nobody,
    ):
        for name in REQUESTS:
            if told[name] != "operator" or "{" not in name or "token_id" in name:
                continue
            absent = await world.call(world.operator, name, **missing)
            for client in (other, nobody):
                denied = await world.call(client, name)
                assert (denied.status_code, denied.content) == (absent.status_code, absent.content), name
                assert {k: v for k, v in denied.headers.items() if k != "date"} == {
                    k: v for k, v in absent.headers.items() if k != "date"
                }, name


@pytest.mark.parametrize(
    "headers",
    [{"x-domain": "other"}, {"x-iotsphere-domain": "other"}, {"host": "other"}, {"x-forwarded-host": "other"},
     {"x-tenant": "other"}, {"x-original-url": "/api/v1/ledger"}, {"x-http-method-override": "DELETE"},
     {"x-forwarded-for": "127.0.0.1"}],
)  # fmt: skip
async def test_a4_no_header_changes_the_domain(door: Door, headers: dict[str, str]) -> None:
    await door.rooms.say("other/devices/d1/telemetry", {"x": CANARY})
    async with door.client() as api:
        told = (await api.get("/api/v1/ledger", headers=headers)).json()
        assert (told["domain"], told["channels"][0]["accepted"]) == ("iotsphere", 0)
        answer = await api.get("/api/v1/messages", params={"filter": "other/#"}, headers=headers)
        assert (answer.status_code, CANARY in answer.text) == (403, False)


async def test_a4_no_body_query_or_path_changes_the_domain(door: Door) -> None:
    await door.rooms.say("other/devices/d1/telemetry", {"x": CANARY})
    await door.rooms.devices.register("other", "secret-device")
    async with door.client() as api:
        metadata = {"topic": "other/devices/d1/telemetry", "messageId": ID}
        for body in (
            {"topic": "other/devices/d1/telemetry", "payload": 1},
            {"metadata": metadata, "payload": 1},
            {"topic": TOPIC, "payload": {"metadata": metadata, "payload": 1}},
        ):
            answer = await api.post("/api/v1/messages", json=body)
            assert answer.status_code in (403, 422), body
            assert answer.json()["error"]["code"] in ("forbidden", "topic_mismatch")
        for params in ({"domain": "other"}, {"dom": "other"}, {"after": "other/"}):
            answer = await api.get("/api/v1/devices", params=params)
            assert (answer.status_code, "secret-device" in answer.text) in ((422, False), (200, False))
        for path in ("/api/v1/devices/other%2Fsecret-device", "/api/v1/devices/..%2Fother%2Fsecret-device"):
            assert (await api.delete(path)).status_code == 404
        answer = await api.post("/api/v1/tokens", json={"subject": "user:eve", "grants": ["subscribe:other/#"]})
        assert answer.status_code == 422
        answer = await api.post("/api/v1/tokens", json={"subject": "user:eve", "grants": ["subscribe:{domain}/#"]})
        async with door.client(answer.json()["token"]) as eve:
            assert (await eve.get("/api/v1/messages", params={"filter": "other/#"})).status_code == 403
    assert len(await door.rooms.documents.scan("devices", "other/")) == 1


async def test_a_domain_that_does_not_exist_here_is_not_found(door: Door) -> None:
    async with door.client(door.token("elsewhere")) as api:
        for name, path in (
            ("GET", "/api/v1/messages?filter=elsewhere/%23"),
            ("GET", "/api/v1/ledger"),
            ("GET", "/api/v1/dead-letters"),
            ("POST", "/api/v1/messages"),
        ):
            body = {"topic": "elsewhere/system/status", "payload": 1} if name == "POST" else None
            answer = await api.request(name, path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_domain"), path


async def test_the_figures_of_two_doors_do_not_meet() -> None:
    known = {family.name for family in REGISTRY.collect()}
    async with open_door() as one, open_door() as two:
        async with one.client("") as anybody:
            await anybody.get("/healthz")
        assert b'route="/healthz"' in one.gateway.metrics.render([], [])
        assert b'route="/healthz"' not in two.gateway.metrics.render([], [])
        assert make_app(one.gateway.app.state.use_cases, Metrics()).title == "IoTSphere"
    assert {family.name for family in REGISTRY.collect()} == known
