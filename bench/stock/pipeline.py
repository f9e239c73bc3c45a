"""A peer of the benchmark: the packages that the gateway was given, wired as the documentation of each shows it.

aiomqtt's iterator, a pydantic model per message, a redis-py pipeline of XADDs, and `websockets.broadcast`. Mosquitto
stands in front, so a device's PUBACK means that the broker had the message in memory. Arguments: the ports of Mosquitto,
of Redis and of the WebSocket.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import aiomqtt
from pydantic import BaseModel, Field
from redis.asyncio import Redis
from websockets.asyncio.server import ServerConnection, broadcast, serve

BATCH = 100


class Metadata(BaseModel):
    """The envelope's first half."""

    messageId: str = Field(default_factory=lambda: str(uuid4()))
    timestamp: datetime = Field(default_factory=lambda: datetime.now(UTC))
    topic: str
    source: str
    correlationId: str | None = None
    messageType: str = "event"
    version: str = "1.0"


class Envelope(BaseModel):
    """A message as clients get it."""

    metadata: Metadata
    payload: dict[str, Any]


class Telemetry(BaseModel):
    """What a device sends; further fields are kept."""

    model_config = {"extra": "allow"}

    value: float


clients: set[ServerConnection] = set()


async def join(client: ServerConnection) -> None:
    """A browser: it gets what is broadcast until it goes."""
    clients.add(client)
    try:
        await client.wait_closed()
    finally:
        clients.remove(client)


async def read(mqtt: aiomqtt.Client, waiting: asyncio.Queue[str]) -> None:
    """Turn each message of the broker into an envelope."""
    async for message in mqtt.messages:
        topic = str(message.topic)
        assert isinstance(message.payload, bytes)
        telemetry = Telemetry.model_validate_json(message.payload)
        metadata = Metadata(topic=topic, source=topic.split("/")[2])
        await waiting.put(Envelope(metadata=metadata, payload=telemetry.model_dump()).model_dump_json())


async def store(log: Redis, waiting: asyncio.Queue[str]) -> None:
    """Append what waits in one pipeline, then send it to everybody."""
    while True:
        batch = [await waiting.get()]
        while len(batch) < BATCH and not waiting.empty():
            batch.append(waiting.get_nowait())
        async with log.pipeline(transaction=False) as pipe:
            for text in batch:
                pipe.xadd("telemetry", {"message": text})
            await pipe.execute()
        for text in batch:
            broadcast(clients, text)


async def main(mqtt_port: int, redis_port: int, websocket_port: int) -> None:
    """Run until killed."""
    waiting: asyncio.Queue[str] = asyncio.Queue(1_000)
    log = Redis(port=redis_port)
    async with aiomqtt.Client("127.0.0.1", mqtt_port) as mqtt:
        await mqtt.subscribe("iotsphere/devices/+/telemetry/#", qos=1)
        async with serve(join, "127.0.0.1", websocket_port), asyncio.TaskGroup() as tasks:
            tasks.create_task(read(mqtt, waiting))
            tasks.create_task(store(log, waiting))


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
