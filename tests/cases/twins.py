"""A device that honours its desired state and answers commands, as the cases of shadows and commands need it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiomqtt
import httpx
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.gateway import Credential, Gateway

WEEK_S = 7 * 24 * 3600
WITHIN_S = 60.0  # the library's own ten seconds are too few beside fifty writers on a busy machine


class Twin:
    """``heard``: (kind of topic, payload, message id) in the order of arrival. ``honours``: reports what it is to be."""

    def __init__(self, client: aiomqtt.Client, device_id: str, honours: bool) -> None:
        self.client = client
        self.topic = f"iotsphere/devices/{device_id}"
        self.honours = honours
        self.heard: list[tuple[str, Any, str]] = []

    async def listen(self) -> None:
        async for message in self.client.messages:
            envelope = json.loads(message.payload)
            kind = str(message.topic).removeprefix(f"{self.topic}/")
            message_id = envelope["metadata"]["messageId"]
            self.heard.append((kind, envelope["payload"], message_id))
            if not self.honours:
                continue
            if kind == "commands/request":
                await self.answer(message_id, {"status": "succeeded", "result": envelope["payload"]})
            elif kind == "shadow/delta" and envelope["payload"]["delta"]:
                await self.report({"reported": envelope["payload"]["delta"]})

    async def answer(self, command_id: str, payload: dict[str, Any]) -> None:
        body = {"metadata": {"correlationId": command_id}, "payload": payload}
        await self.client.publish(f"{self.topic}/commands/response", json.dumps(body), qos=1)

    async def report(self, payload: dict[str, Any], name: str = "") -> None:
        place = f"shadow/{name}/reported" if name else "shadow/reported"
        await self.client.publish(f"{self.topic}/{place}", json.dumps(payload), qos=1)

    def of(self, kind: str) -> list[Any]:
        return [payload for heard, payload, _ in self.heard if heard == kind]

    async def until(self, kind: str, count: int) -> list[Any]:
        deadline = asyncio.get_running_loop().time() + 60
        while len(self.of(kind)) < count:
            assert asyncio.get_running_loop().time() < deadline, self.heard
            await asyncio.sleep(0.01)
        return self.of(kind)


@asynccontextmanager
async def twin(
    gateway: Gateway,
    who: Credential,
    *,
    honours: bool = False,
    keep: bool = False,
    filters: tuple[str, ...] = ("shadow/delta", "commands/request"),
    qos: int = 1,
) -> AsyncIterator[Twin]:
    """A connected device. ``keep``: its session outlives the connection."""
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho leaves it bare
    if keep:
        properties.SessionExpiryInterval = WEEK_S
    host, port = gateway.mqtt
    async with aiomqtt.Client(
        host,
        port,
        identifier=f"{who.device_id}-twin",
        username=who.username,
        password=who.password,
        protocol=aiomqtt.ProtocolVersion.V5,
        clean_start=not keep,
        timeout=WITHIN_S,
        properties=properties,
    ) as client:
        device = Twin(client, who.device_id, honours)
        for each in filters:
            await client.subscribe(f"{device.topic}/{each}", qos=qos)
        listening = asyncio.get_running_loop().create_task(device.listen())
        try:
            yield device
        finally:
            while not listening.done():  # an answer that arrives just now swallows the first request to end
                listening.cancel()
                await asyncio.wait((listening,), timeout=1)


async def shadow(api: httpx.AsyncClient, device_id: str, **query: Any) -> dict[str, Any]:
    answer = await api.get(f"/api/v1/devices/{device_id}/shadow", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def until_shadow(api: httpx.AsyncClient, device_id: str, **wanted: Any) -> dict[str, Any]:
    """Wait until the shadow has these members."""
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        answer = await api.get(f"/api/v1/devices/{device_id}/shadow")
        found: dict[str, Any] = answer.json()
        if answer.status_code == 200 and all(found.get(name) == value for name, value in wanted.items()):
            return found
        assert asyncio.get_running_loop().time() < deadline, f"{found} instead of {wanted}"
        await asyncio.sleep(0.02)


async def command_state(api: httpx.AsyncClient, command_id: str) -> str:
    answer = await api.get(f"/api/v1/commands/{command_id}")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["state"])
