"""What users have, on a running gateway: notifications on all their pages until they are read, and preferences."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from typing import Any

import httpx
import pytest

from tests.client.house import Talker
from tests.support.gateway import Gateway

from .clients import browser

pytestmark = pytest.mark.asyncio(loop_scope="module")

GRANTS = ["subscribe:{domain}/users/{user_id}/#", "publish:{domain}/users/{user_id}/preferences"]


async def token(gateway: Gateway, subject: str, *grants: str) -> str:
    async with gateway.api() as api:
        answer = await api.post("/api/v1/tokens", json={"subject": subject, "grants": list(grants), "lifetime": 3_600})
        assert answer.status_code == 201, answer.text
        issued: str = answer.json()["token"]
        return issued


async def token_of(gateway: Gateway, user: str) -> str:
    return await token(gateway, f"user:{user}", *(grant.format(domain="iotsphere", user_id=user) for grant in GRANTS))


def client(gateway: Gateway, shown: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {shown}"}
    return httpx.AsyncClient(base_url=gateway.http, headers=headers, timeout=60, trust_env=False)


async def heard(page: Talker, count: int) -> list[dict[str, Any]]:
    """The next payloads on the page, with their kind of topic and their message ids."""
    return [
        {
            "on": message["metadata"]["topic"].rpartition("/")[2],
            "id": message["metadata"]["messageId"],
            "payload": message["payload"],
        }
        for message in await page.messages(count)
    ]


async def until_unread(api: httpx.AsyncClient, user: str, count: int) -> list[dict[str, Any]]:
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        answer = await api.get(f"/api/v1/users/{user}/notifications")
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["notifications"]
        if len(found) == count:
            return found
        assert asyncio.get_running_loop().time() < deadline, found
        await asyncio.sleep(0.02)


async def test_a_notification_reaches_all_pages_of_its_user_and_is_kept_until_it_is_read(gateway: Gateway) -> None:
    ann = await token_of(gateway, "ann")
    service = await token(gateway, "service:alarms", "publish:iotsphere/users/+/notifications")
    async with browser(gateway, token=ann) as one, browser(gateway, token=ann) as two, client(gateway, ann) as api:
        for page in (one, two):
            await page.subscribe("iotsphere/users/ann/#")
        async with client(gateway, service) as alarms:
            for user, text in (("bob", "not yours"), ("ann", "Filter is due"), ("ann", "Tank is low")):
                message = {"topic": f"iotsphere/users/{user}/notifications", "payload": {"text": text}}
                assert (await alarms.post("/api/v1/messages", json=message)).status_code == 200
        first = await heard(one, 2)
        assert [each["payload"]["text"] for each in first] == ["Filter is due", "Tank is low"]
        assert await heard(two, 2) == first
        listed = await until_unread(api, "ann", 2)  # who comes later finds them here
        assert [(each["id"], each["content"], each["source"], each["read"]) for each in listed] == [
            (first[0]["id"], {"text": "Filter is due"}, "alarms", False),
            (first[1]["id"], {"text": "Tank is low"}, "alarms", False),
        ]
        answer = await one.ask("read", notification=first[0]["id"])
        assert answer["type"] == "ok", answer
        for page in (one, two):
            (told,) = await heard(page, 1)
            assert (told["payload"]["id"], told["payload"]["read"]) == (first[0]["id"], True)
            assert told["payload"]["readAt"].endswith("Z")
        assert [each["id"] for each in await until_unread(api, "ann", 1)] == [first[1]["id"]]
        everything = await api.get("/api/v1/users/ann/notifications", params={"all": True})
        assert [each["read"] for each in everything.json()["notifications"]] == [True, False]
        again = await api.post(f"/api/v1/users/ann/notifications/{first[0]['id']}/read")
        assert (again.status_code, again.json()["read"]) == (200, True)  # and nobody is told once more:
        assert (await api.post(f"/api/v1/users/ann/notifications/{first[1]['id']}/read")).status_code == 200
        (told,) = await heard(two, 1)
        assert told["payload"]["id"] == first[1]["id"]
        assert (await api.post("/api/v1/users/ann/notifications/unknown/read")).status_code == 404


async def test_what_is_written_straight_into_the_database_reaches_the_page(gateway: Gateway) -> None:
    cleo = await token_of(gateway, "cleo")
    body = {
        "domain": "iotsphere",
        "user": "cleo",
        "unread": True,
        "at": int(time.time() * 1000),
        "content": {"text": "by hand", "author": "somebody"},
    }
    async with browser(gateway, token=cleo) as page, client(gateway, cleo) as api:
        await page.subscribe("iotsphere/users/cleo/notifications")
        with sqlite3.connect(gateway.data / "state.db", timeout=60) as shell:
            shell.execute(
                "INSERT INTO notifications(key, body) VALUES (?, ?)", ("iotsphere/cleo/n-1", json.dumps(body))
            )
        shell.close()
        (told,) = await heard(page, 1)
        assert told["payload"] == {"id": "n-1", "text": "by hand", "author": "somebody"}
        (listed,) = await until_unread(api, "cleo", 1)
        assert (listed["id"], listed["content"]) == ("n-1", body["content"])
        assert (await page.ask("read", notification="n-1"))["type"] == "ok"
        (told,) = await heard(page, 1)
        assert (told["payload"]["id"], told["payload"]["read"]) == ("n-1", True)
        everything = await api.get("/api/v1/users/cleo/notifications", params={"all": True})
        assert len(everything.json()["notifications"]) == 1  # what the gateway told of it was not kept as another one


async def test_preferences_are_one_for_all_pages_of_their_user(gateway: Gateway) -> None:
    dana = await token_of(gateway, "dana")
    path = "/api/v1/users/dana/preferences"
    topic = "iotsphere/users/dana/preferences"
    async with browser(gateway, token=dana) as one, browser(gateway, token=dana) as two, client(gateway, dana) as api:
        for page in (one, two):
            await page.subscribe(topic)
        assert (await api.get(path)).json() == {"preferences": {}, "version": 0}
        made = await one.ask("publish", topic=topic, payload={"preferences": {"theme": "dark", "lang": "de"}})
        assert (made["type"], made["version"]) == ("ok", 1), made
        stale = await api.patch(path, json={"preferences": {"theme": "light"}, "version": 0})
        error = stale.json()["error"]
        assert (stale.status_code, error["code"]) == (409, "version_conflict")
        assert error["current"]["state"]["preferences"] == {"theme": "dark", "lang": "de"}
        patched = await api.patch(path, json={"preferences": {"lang": None, "size": 12}, "version": 1})
        assert patched.json()["preferences"] == {"theme": "dark", "size": 12}
        assert patched.json()["version"] == 2
        same = await api.patch(path, json={"preferences": {"size": 12}})
        assert same.json()["version"] == 2
        last = await api.patch(path, json={"preferences": {"size": 13}})
        assert last.json()["version"] == 3
        expected = [
            {"preferences": {"theme": "dark", "lang": "de"}, "version": 1},
            {"preferences": {"theme": "dark", "size": 12}, "version": 2},
            {"preferences": {"theme": "dark", "size": 13}, "version": 3},
        ]
        for page in (one, two):
            assert [each["payload"] for each in await heard(page, 3)] == expected
        async with browser(gateway, token=dana) as third:
            await third.subscribe(topic, **{"from": "latest"})
            assert [each["payload"] for each in await heard(third, 1)] == expected[-1:]


async def test_another_user_may_not(gateway: Gateway) -> None:
    eve = await token_of(gateway, "eve")
    async with browser(gateway, token=eve) as page, client(gateway, eve) as api:
        for answer in (
            await page.ask("subscribe", filters=["iotsphere/users/ann/notifications"]),
            await page.ask("publish", topic="iotsphere/users/ann/preferences", payload={"preferences": {"a": 1}}),
            await page.ask("publish", topic="iotsphere/users/eve/notifications", payload={"text": "to myself"}),
            await page.ask("read", notification="n-1", user="cleo"),
        ):
            assert (answer["type"], answer["code"]) == ("error", "forbidden"), answer
        for refused in (
            await api.get("/api/v1/users/ann/notifications"),
            await api.post("/api/v1/users/ann/notifications/n-1/read"),
            await api.get("/api/v1/users/dana/preferences"),
            await api.patch("/api/v1/users/dana/preferences", json={"preferences": {"theme": "light"}}),
        ):
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")


async def test_operators_see_how_changes_are_told(gateway: Gateway) -> None:
    async with gateway.api() as api:
        deadline = asyncio.get_running_loop().time() + 60
        while True:
            lines = (await api.get("/metrics")).text.splitlines()
            figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
            if figures['iotsphere_facts_lag{reader="notifications"}'] == "0.0":
                break
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.2)
        assert (await api.get("/api/v1/ledger")).json()["imbalance"] == 0
    told = {name: float(value) for name, value in figures.items() if name.startswith("iotsphere_changes")}
    assert told["iotsphere_changes_listening"] == 1
    assert told["iotsphere_changes_told_total"] == 7  # three were read, one was written by hand, and three preferences
    for name in ("gaps_total", "not_told_total", "not_kept_total"):
        assert told[f"iotsphere_changes_{name}"] == 0
    assert float(figures["iotsphere_facts_applied_total"]) >= 3
    assert float(figures["iotsphere_facts_halted"]) == 0
