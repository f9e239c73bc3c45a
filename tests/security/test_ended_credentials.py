"""Credentials that end while their owner is connected to a running gateway, at every door at once (row J6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.cases.clients import V5, V311, browser, mqtt
from tests.client.house import values
from tests.support.gateway import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
WITHIN = 60.0
TOPIC = "iotsphere/devices/d1/telemetry/t"
NOT_AUTHORIZED, ADMINISTRATIVE_ACTION = 0x87, 0x98


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with Gateway(tmp_path_factory.mktemp("credentials") / "data") as running:
        yield running


async def issue(api: httpx.AsyncClient, subject: str, **more: object) -> dict[str, Any]:
    body = {"subject": subject, "grants": ["subscribe:iotsphere/#", "publish:iotsphere/#"], **more}
    answer = await api.post("/api/v1/tokens", json=body)
    assert answer.status_code == 201, answer.text
    issued: dict[str, Any] = answer.json()
    return issued


@pytest.mark.parametrize("how", ["the token is revoked", "the subject is revoked", "the token expires"])
async def test_j6_a_token_that_ends_closes_every_door(gateway: Gateway, how: str) -> None:
    who = f"user:{how.rpartition(' ')[2]}-{how.split()[1]}"
    async with gateway.api() as api, browser(gateway) as operator:
        issued = await issue(api, who, lifetime=20 if how == "the token expires" else 600)
        token = issued["token"]
        bearer = {"Authorization": f"Bearer {token}"}
        async with (
            browser(gateway, token=token) as page,
            mqtt(gateway, token, client_id="five") as five,
            mqtt(gateway, token, client_id="three", version=V311) as three,
        ):
            await page.subscribe(TOPIC)
            await operator.publish({"value": 1}, TOPIC)
            assert values(await page.messages(1)) == [1]
            assert await five.publish(TOPIC, b"2") == 0
            assert await three.publish(TOPIC, b"3") == 0
            assert values(await page.messages(2)) == [2, 3]
            assert (await api.get("/api/v1/latest", params={"filter": TOPIC}, headers=bearer)).status_code == 200

            if how == "the token is revoked":
                assert (await api.delete(f"/api/v1/tokens/{issued['token_id']}")).status_code == 204
            elif how == "the subject is revoked":
                assert (await api.delete("/api/v1/tokens", params={"subject": who})).status_code == 204
            else:
                await expired(api, bearer)
            async with asyncio.timeout(WITHIN):
                assert (await page.closed())[0] == 4401
                expected = NOT_AUTHORIZED if how == "the token expires" else ADMINISTRATIVE_ACTION
                assert await five.ended == expected
                assert await three.ended
        await operator.publish({"value": 4}, TOPIC)
        assert page.pushes == [], "nothing was delivered after"
        assert (await api.get("/api/v1/latest", params={"filter": TOPIC}, headers=bearer)).status_code == 401
        fresh = await issue(api, who)
        async with browser(gateway, token=fresh["token"]) as again:
            assert (await again.ask("ping"))["type"] == "ok"


async def expired(api: httpx.AsyncClient, bearer: dict[str, str]) -> None:
    """Wait for the end of the token's life: the HTTP door looks at each request."""
    deadline = asyncio.get_running_loop().time() + 120
    while (await api.get("/api/v1/latest", params={"filter": TOPIC}, headers=bearer)).status_code != 401:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", ["removed", "rotated"])
@pytest.mark.parametrize("version", [V5, V311], ids=["5", "3.1.1"])
async def test_j6_a_device_that_is_removed_or_gets_another_secret_is_cut_off(
    gateway: Gateway, how: str, version: Any
) -> None:
    (credential,) = await gateway.add_devices([f"{how}-{version.value}"])
    path = f"/api/v1/devices/{credential.device_id}"
    async with gateway.api() as api, mqtt(gateway, credential, version=version) as device:
        assert await device.publish(f"iotsphere/devices/{credential.device_id}/telemetry", b"1") == 0
        answer = await (api.delete(path) if how == "removed" else api.post(f"{path}/rotate"))
        assert answer.status_code in (200, 204)
        async with asyncio.timeout(WITHIN):
            reason = await device.ended
        assert reason == ADMINISTRATIVE_ACTION if version is V5 else reason


async def test_j6_a_token_renewed_without_a_right_loses_what_it_covered(gateway: Gateway) -> None:
    async with gateway.api() as api, browser(gateway) as operator:
        wide = await issue(api, "user:ann")
        narrow = await issue(api, "user:ann", grants=["subscribe:iotsphere/users/ann/#"])
        async with browser(gateway, token=wide["token"]) as page:
            await page.subscribe(TOPIC)
            await operator.publish({"value": 1}, TOPIC)
            assert values(await page.messages(1)) == [1]
            assert (await page.ask("auth", token=narrow["token"]))["type"] == "ok"
            assert (await page.push("ended"))["code"] == "forbidden"
            await operator.publish({"value": 2}, TOPIC)
            assert (await page.ask("publish", topic=TOPIC, payload=1))["code"] == "forbidden"
            assert page.pushes == []
