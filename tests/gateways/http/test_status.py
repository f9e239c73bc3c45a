"""Health, metrics, the ledger and the API's own description."""

from __future__ import annotations

import re
from typing import Any

import httpx
import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.http_door import Door

TOPIC = "iotsphere/devices/d1/telemetry"


async def figures(client: httpx.AsyncClient, door: Door) -> dict[str, float]:
    """Sample with its labels -> value, freshly rendered."""
    door.gateway.metrics._rendered_at = -10.0
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        sample.name + str(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def test_the_door_says_that_it_lives_and_is_ready_to_anybody(door: Door) -> None:
    async with door.client("") as anybody:
        assert (await anybody.get("/healthz")).json() == {"status": "alive"}
        assert (await anybody.get("/ready")).json() == {"status": "ready"}
        door.gateway.app.state.draining = True
        answer = await anybody.get("/ready")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert (await anybody.get("/healthz")).status_code == 200


async def test_metrics_count_messages_refusals_and_requests(door: Door, api: httpx.AsyncClient) -> None:
    await api.post("/api/v1/messages", json={"messages": [{"topic": TOPIC, "payload": n} for n in range(7)]})
    await api.post("/api/v1/messages", json={"topic": TOPIC, "payload": {"$x": 1}})
    await api.get("/api/v1/devices/d1")
    await api.get("/nowhere/at/all")
    found = await figures(api, door)
    assert found["iotsphere_up[]"] == 1
    assert found["iotsphere_log_accepted_total[('channel', 'telemetry')]"] == 7
    assert found["iotsphere_log_accepted_total[('channel', 'system')]"] == 1
    assert found["iotsphere_dead_letters_total[('reason', 'key_not_allowed')]"] == 1
    assert found["iotsphere_ledger_imbalance[]"] == 0
    assert found["iotsphere_published_total[]"] == 8
    route = "[('method', 'POST'), ('route', '/api/v1/messages'), ('status', '%d')]"
    assert found["iotsphere_http_requests_total" + route % 200] == 1
    assert found["iotsphere_http_requests_total" + route % 422] == 1
    assert found["iotsphere_http_requests_total[('method', 'GET'), ('route', 'none'), ('status', '404')]"] == 1
    assert found["process_resident_memory_bytes[]"] > 1e6


async def test_c15_no_label_ever_holds_what_a_client_chose(door: Door, api: httpx.AsyncClient) -> None:
    await api.post("/api/v1/messages", json={"topic": f"{TOPIC}/m", "payload": 1})
    for name in ("/x", "/api/v1/messages/x/trace", "/api/v1/dead-letters/x"):
        await api.get(name)
    await api.request("QUERY", "/x")
    await figures(api, door)
    before = set(await figures(api, door))
    for chunk in range(10):
        messages = [{"topic": f"{TOPIC}/m{chunk}-{n}", "payload": 1} for n in range(1_000)]
        assert (await api.post("/api/v1/messages", json={"messages": messages})).status_code == 200
    for n in range(8):
        await api.get(f"/canary-{n}")
        await api.get(f"/api/v1/messages/canary-{n}/trace")
        await api.get(f"/api/v1/dead-letters/canary-{n}")
        await api.request(f"CANARY{n}", "/x")
    found = await figures(api, door)
    assert set(found) == before
    assert not re.search("canary|m1-7|iotsphere/devices", " ".join(found), re.IGNORECASE)


async def test_metrics_name_no_tenant(door: Door, api: httpx.AsyncClient) -> None:
    await door.rooms.say("other/devices/d1/telemetry", {"n": 1})
    answer = await api.get("/metrics")
    assert 'iotsphere_log_accepted_total{channel="telemetry"} 1.0' in answer.text
    assert '"other"' not in answer.text


async def test_the_ledger_is_shown_and_balances(door: Door, api: httpx.AsyncClient) -> None:
    await api.post("/api/v1/messages", json={"messages": [{"topic": TOPIC, "payload": n} for n in range(7)]})
    await door.rooms.catch_up()
    await door.rooms.feed.save()
    told = (await api.get("/api/v1/ledger")).json()
    assert (told["domain"], told["imbalance"], told["dead_letters"]) == ("iotsphere", 0, {})
    assert told["channels"][0] == {"channel": "telemetry", "partitions": 4, "accepted": 7, "retained": 7}
    row = next(row for row in told["readers"] if row["channel"] == "telemetry")
    assert row == {
        "reader": "iotsphere/last-values", "kind": "reader", "channel": "telemetry", "accepted": 7, "applied": 7,
        "superseded": 0, "expired": 0, "dead_lettered": 0, "lost": 0, "pending": 0, "imbalance": 0,
    }  # fmt: skip


# -- the description of the API ----------------------------------------------------------------------------------------


@pytest.fixture
async def document(api: httpx.AsyncClient) -> dict[str, Any]:
    found = (await api.get("/openapi.json")).json()
    assert isinstance(found, dict)
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


async def test_every_operation_is_described_with_examples_that_fit_its_schemas(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    shown = {f"{method} {path}" for method, path, _ in operations(document)}
    assert shown == {
        "POST /api/v1/messages", "GET /api/v1/messages", "GET /api/v1/latest",
        "GET /api/v1/messages/{message_id}/trace", "GET /api/v1/dead-letters", "GET /api/v1/dead-letters/{letter_id}",
        "POST /api/v1/dead-letters/{letter_id}/redrive", "DELETE /api/v1/dead-letters/{letter_id}",
        "GET /api/v1/devices", "POST /api/v1/devices", "DELETE /api/v1/devices/{device_id}",
        "POST /api/v1/devices/{device_id}/rotate", "POST /api/v1/tokens", "DELETE /api/v1/tokens",
        "DELETE /api/v1/tokens/{token_id}", "GET /api/v1/ledger", "GET /healthz", "GET /ready", "GET /metrics",
        "GET /api/v1/devices/{device_id}/shadows", "GET /api/v1/devices/{device_id}/shadow",
        "GET /api/v1/devices/{device_id}/shadow/versions", "PATCH /api/v1/devices/{device_id}/shadow",
        "DELETE /api/v1/devices/{device_id}/shadow", "POST /api/v1/devices/{device_id}/commands",
        "GET /api/v1/devices/{device_id}/commands", "GET /api/v1/commands/{command_id}",
        "POST /api/v1/commands/{command_id}/cancel", "GET /api/v1/users/{user_id}/notifications",
        "POST /api/v1/users/{user_id}/notifications/{notification_id}/read",
        "GET /api/v1/users/{user_id}/preferences", "PATCH /api/v1/users/{user_id}/preferences",
        "GET /api/v1/devices/{device_id}/labels", "PATCH /api/v1/devices/{device_id}/labels",
        "GET /api/v1/fleet", "GET /api/v1/session", "POST /api/v1/session", "DELETE /api/v1/session",
        "POST /api/v1/rollouts", "GET /api/v1/rollouts", "GET /api/v1/rollouts/{rollout_id}",
        "POST /api/v1/rollouts/{rollout_id}/{wish}",
    }  # fmt: skip
    for method, path, operation in operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["description"], where
        contents = [(answer.get("content", {}), status) for status, answer in operation["responses"].items()]
        contents.append((operation.get("requestBody", {}).get("content", {}), "request"))
        for content, status in contents:
            for kind, body in content.items():
                if status in ("200", "201", "request"):
                    assert body.get("example") is not None, f"{where} {status} has no example"
                if kind == "application/json" and "example" in body and "schema" in body:
                    schema = {**body["schema"], "components": document["components"]}
                    jsonschema.Draft202012Validator(schema).validate(body["example"])


async def test_every_operation_says_whether_it_takes_a_token(document: dict[str, Any]) -> None:
    assert document["components"]["securitySchemes"] == {
        "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    }
    open_ones = {(method, path) for method, path, operation in operations(document) if "security" not in operation}
    assert open_ones == {
        ("GET", "/healthz"), ("GET", "/ready"), ("GET", "/metrics"), ("POST", "/api/v1/session"),
    }  # fmt: skip


async def test_there_is_no_page_that_loads_foreign_hosts(api: httpx.AsyncClient) -> None:
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        assert (await api.get(path)).status_code == 404


async def test_a_method_that_a_path_has_not_is_told_with_those_it_has(api: httpx.AsyncClient) -> None:
    answer = await api.put("/healthz")
    assert (answer.status_code, answer.json()["error"]["code"], answer.headers["allow"]) == (
        405, "method_not_allowed", "GET",
    )  # fmt: skip
