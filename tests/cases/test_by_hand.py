"""What people wrote into state.db by mistake stops nothing: it is told on system/alerts, and everything else goes on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import Gateway

from .clients import browser, history
from .twins import shadow, twin, until_shadow

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMMAND = (
    '{"open":true,"outstanding":true,"domain":"iotsphere","device":"h1","order":"0","due":1,"id":"x","caller":"u",'
    '"payload":{},"createdAt":1,"expiresAt":2,"timeout":1,"state":"queued","steps":%s}'
)
DEEP = '{"desired":' + '{"a":' * 500 + "1" + "}" * 501
DAMAGED = [
    ("shadows", "iotsphere/x1", '{"reported":{"a":1e999}}', "a number that is not finite"),
    ("shadows", "iotsphere/x2", r'{"desired":{"\ud800":"\udfff"}}', "half a surrogate pair"),
    ("shadows", "iotsphere/x3", DEEP, "nests deeper"),
    ("shadows", "iotsphere/x4", '{"desired":{"$x":1}}', "$x"),
    ("shadows", "iotsphere/x5", '{"due":-1e999,"version":1,"desired":{"a":1}}', "a number that is not finite"),
    ("shadows", "nowhere/d1", '{"version":1,"reported":{"a":1}}', "nowhere"),
    ("preferences", "ann", "{}", "no key of that collection"),
    ("shadows", "nobody", '{"desired":{"a":1}}', "no key of a shadow"),
    ("commands", "iotsphere/c1", COMMAND % "[1]", "steps is no list"),
    ("commands", "iotsphere/c2", COMMAND.replace('"due":1', '"due":"soon"') % "[]", "due is no whole number"),
    ("commands", "iotsphere/c3", '{"open":true,"due":-1e999}', "is no text"),
    ("notifications", "iotsphere/ann/n1", '{"unread":true,"domain":"iotsphere","user":"ann","at":"x","content":[1]}',
     "content is no object"),
    ("preferences", "iotsphere/ann", '{"preferences":[],"version":"x"}', "preferences is no object"),
]  # fmt: skip
# Of these there is no change to tell: they are passed over where they are met.
SILENT = [
    ("shadows", "iotsphere/y1", '{"due":"soon","version":1,"desired":{"a":1}}'),
    (
        "shadows",
        "iotsphere/y2",
        '{"version":99999999999999999999,"reported":[1],"marks":7,"wishes":{"a":{"status":[]}}}',
    ),
    ("rollouts", "iotsphere/r1", '{"open":true,"created_at":1}'),
    ("rollouts", "iotsphere/r2", '{"open":true,"created_at":"x"}'),
    ("devices", "iotsphere/y3", '{"labels":7}'),
    ("shadow_history", "iotsphere/h1@x", '{"shadow":"iotsphere/h1","version":"x","at":1e999,"expires":"x"}'),
    ("heartbeats", "iotsphere/x", '{"at":1e999}'),
]


def write(data: Path) -> None:
    """Write as the sqlite3 shell does."""
    with closing(sqlite3.connect(data / "state.db", isolation_level=None)) as shell:
        for table, key, body, *_ in [*DAMAGED, *SILENT]:
            shell.execute(f"INSERT INTO {table}(key, body) VALUES (?, ?)", (key, body))
        shell.execute("INSERT INTO shadows(key, body) VALUES (x'61ff', '{}')")
        shell.execute("UPDATE shadows SET revision = 'x' WHERE key = 'iotsphere/y1'")


async def test_damaged_documents_are_told_and_stop_nothing(gateway: Gateway) -> None:
    who, _ = await gateway.add_devices(["h1", "x1"])
    write(gateway.data)
    async with gateway.api() as api, browser(gateway) as page:
        await page.subscribe("iotsphere/devices/h1/shadow/document")
        sent = await api.post("/api/v1/devices/h1/commands", json={"payload": {"n": 1}})
        async with twin(gateway, who, honours=True) as device:
            changed = await api.patch("/api/v1/devices/h1/shadow", json={"desired": {"led": True}})
            await until_shadow(api, "h1", reported={"led": True}, delta={})
            done = await api.get(f"/api/v1/commands/{sent.json()['commandId']}", params={"wait": 50})
            assert done.json()["state"] == "succeeded"
            assert device.of("commands/request") == [{"n": 1}]
        assert (await api.get("/api/v1/devices/h1/commands")).status_code == 200
        assert (await api.get("/api/v1/rollouts")).json()["rollouts"] == []
        assert (await api.get("/api/v1/users/ann/notifications")).status_code == 200
        refused = await api.get("/api/v1/commands/c1")
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "request_invalid")
        assert (await shadow(api, "x1"))["reported"] == {"a": None}
        wanted = changed.json()["version"]
        while (await page.push("messages"))["messages"][-1]["payload"]["version"] < wanted:
            pass  # what was written before it has been told by then
        alerts = await alerts_of(gateway)
        for _, key, _, reason in DAMAGED:
            assert any(reason in told for document, told in alerts if document == key), (key, alerts)
        assert (await api.get("/ready")).status_code == 200


async def test_a_gateway_starts_on_damaged_documents_and_tells_them_once(gateway: Gateway) -> None:
    before = await alerts_of(gateway)
    assert before
    await gateway.restart()
    async with gateway.api() as api, browser(gateway) as page:
        await page.subscribe("iotsphere/devices/h1/shadow/document")
        changed = await api.patch("/api/v1/devices/h1/shadow", json={"desired": {"led": False}})
        messages: list[dict[str, Any]] = []
        while not messages or messages[-1]["payload"]["version"] < changed.json()["version"]:
            messages += (await page.push("messages"))["messages"]
    assert await alerts_of(gateway) == before


async def alerts_of(gateway: Gateway) -> list[tuple[str, str]]:
    told = [message["payload"] for message in await history(gateway, "iotsphere/system/alerts")]
    return [(alert["document"], alert["reason"]) for alert in told]
