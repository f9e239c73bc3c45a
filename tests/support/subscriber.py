"""A WebSocket client that comes back with its cursor, and keeps the history of what it was delivered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage
from websockets.typing import Subprotocol

from .history import Consumer, Delivered

RECONNECT_PAUSE = 0.05


class SubscriberGaveUp(RuntimeError):
    """The gateway refused the subscription."""


def read_envelope(envelope: dict[str, Any]) -> Delivered:
    """A delivered envelope as the judge wants it: the device from the topic, the number from the payload."""
    metadata, payload = envelope["metadata"], envelope["payload"]
    topic = metadata["topic"]
    return Delivered(topic.split("/")[2], payload["seq"], topic, metadata["messageId"], payload)


class Subscriber:
    """One consumer over any number of connections.

    ``url`` and ``token`` are asked before each attempt. ``notices`` holds every other frame (gap, lagging, ended …).
    Clear ``awake`` and it stops reading its socket, until it is set again.
    """

    def __init__(self, name: str, filters: Sequence[str], url: Callable[[], str], token: Callable[[], str]) -> None:
        self.consumer = Consumer(name, list(filters))
        self.cursor: str | None = None
        self.connections = 0
        self.notices: list[dict[str, Any]] = []
        self.ready = asyncio.Event()
        self.awake = asyncio.Event()
        self.awake.set()
        self._url = url
        self._token = token

    @property
    def delivered(self) -> int:
        """How many messages came so far."""
        return len(self.consumer.deliveries)

    async def run(self) -> None:
        """Listen for ever; cancel the task to end it."""
        while True:
            with suppress(OSError, ConnectionClosed, InvalidHandshake, InvalidMessage, TimeoutError):
                async with connect(
                    self._url(),
                    subprotocols=[Subprotocol("iotsphere.v1.json")],
                    additional_headers={"Authorization": f"Bearer {self._token()}"},
                    compression=None,
                    max_size=None,
                    max_queue=4,
                    proxy=None,
                ) as socket:
                    await self._listen(socket)
            await asyncio.sleep(RECONNECT_PAUSE)

    async def _listen(self, socket: ClientConnection) -> None:
        request = {"type": "subscribe", "ref": 1, "filters": self.consumer.filters, "from": self.cursor or "live"}
        await socket.send(json.dumps(request))
        async for text in socket:
            self._take(json.loads(text))
            if not self.awake.is_set():
                await self.awake.wait()

    def _take(self, frame: dict[str, Any]) -> None:
        match frame["type"]:
            case "messages":
                self.consumer.deliveries += [read_envelope(envelope) for envelope in frame["messages"]]
                self.cursor = frame["cursor"] or self.cursor
            case "ok":
                self.cursor = frame["cursor"] or self.cursor
                self.connections += 1
                if frame.get("missed"):
                    self.notices.append({"type": "gap", "missed": frame["missed"]})
                self.ready.set()
            case "error":
                raise SubscriberGaveUp(f"{self.consumer.name}: {frame}")
            case _:
                self.notices.append(frame)
