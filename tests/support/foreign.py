"""A client of an external broker that knows nothing of the product."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiomqtt
import orjson
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions


class Foreign:
    """A client of the broker that knows nothing of us."""

    def __init__(self, client: aiomqtt.Client) -> None:
        self._client = client
        self.got: list[aiomqtt.Message] = []
        self._task: asyncio.Task[None] | None = None

    async def publish(self, topic: str, payload: Any, qos: int = 1, retain: bool = False, **properties: Any) -> None:
        given: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho's own lack
        for name, value in properties.items():
            setattr(given, name, value)
        raw = payload if isinstance(payload, bytes) else orjson.dumps(payload)
        publishing = asyncio.ensure_future(self._client.publish(topic, raw, qos=qos, retain=retain, properties=given))
        # The library would wait for its acknowledgement until the time is up, though the connection is gone.
        await asyncio.wait((publishing, self._client._disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not publishing.done():
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            raise aiomqtt.MqttError("the connection is lost")
        await publishing

    async def listen(self, *filters: str) -> None:
        options = SubscribeOptions(qos=1, retainAsPublished=True)
        await self._client.subscribe([(text, options) for text in filters])
        self._task = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        async for message in self._client.messages:
            self.got.append(message)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


@asynccontextmanager
async def foreign(port: int, **how: Any) -> AsyncIterator[Foreign]:
    async with aiomqtt.Client("127.0.0.1", port, protocol=aiomqtt.ProtocolVersion.V5, timeout=60, **how) as client:
        client.pending_calls_threshold = 10_000
        peer = Foreign(client)
        try:
            yield peer
        finally:
            peer.close()


def user_property(message: aiomqtt.Message, name: str) -> str | None:
    properties: Any = message.properties
    return dict(getattr(properties, "UserProperty", ())).get(name)
