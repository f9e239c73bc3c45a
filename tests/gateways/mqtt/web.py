"""MQTT over WebSocket for tests: a door beside a house's MQTT door, and a peer whose packets travel in frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from iotsphere.adapters.client.delivery import ClientDeliveryAdapter
from iotsphere.adapters.client.use_cases import ClientUseCases
from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.poison import poison_letters
from iotsphere.drivers.memory.queue import MemoryWorkQueue
from iotsphere.gateways.mqtt import MqttLimits
from iotsphere.gateways.websocket import WebSocketGateway, WebSocketLimits
from iotsphere.use_cases.work import WorkQueueUseCase, WorkSettings, WorkStores

from .house import House
from .peer import Peer


def client_use_cases(house: House) -> ClientUseCases:
    """What the WebSocket door's own protocol reaches, on the same log as the MQTT door."""
    stores = WorkStores(house.log, MemoryWorkQueue(house.log), house.documents)
    bury = poison_letters(house.edge, house.clock)
    work = WorkQueueUseCase(stores, house.feed, house.publish, bury, WorkSettings(30_000, max_attempts=3))
    delivery = ClientDeliveryAdapter(house.feed, b"c" * 32)
    return ClientUseCases(
        house.authenticate, house.subscribe, house.publish, work, house.edge, delivery, house.clock, house.rates
    )


@asynccontextmanager
async def web_door(
    house: House,
    mqtt: MqttLimits | None = None,
    limits: WebSocketLimits | None = None,
    ssl: SSLContext | None = None,
) -> AsyncIterator[tuple[WebSocketGateway, tuple[str, int]]]:
    """The WebSocket door with MQTT inside, and its address. The MQTT door behind it is ``house.gateway``."""
    if mqtt is not None or not house.doors:
        await house.door(mqtt)
    gateway = WebSocketGateway(client_use_cases(house), limits, {"mqtt": house.gateway.over_websocket})
    address = await gateway.start("127.0.0.1", 0, ssl)
    try:
        yield gateway, address
    finally:
        await gateway.close()


class WebPeer(Peer):
    """A peer over WebSocket. ``code``: the close code, once it is closed. ``split``: bytes per frame; 0 = as written.

    ``options`` are those of the library's connect().
    """

    def __init__(self, address: tuple[str, int], version: int = p.MQTT_5, split: int = 0, **options: Any) -> None:
        super().__init__(address, version)
        self.socket: ClientConnection
        self._split = split
        self._options = options
        self._sending: asyncio.Queue[bytes | str] = asyncio.Queue()
        self._sender: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        scheme = "wss" if "ssl" in self._options else "ws"
        options = {"subprotocols": [Subprotocol("mqtt")], "proxy": None, "compression": None, "max_size": None}
        url = f"{scheme}://{self.address[0]}:{self.address[1]}/mqtt"
        self.socket = await connect(url, **{**options, **self._options})
        assert self.socket.subprotocol == "mqtt"
        self._reader = _Frames(self.socket)  # type: ignore[assignment]  # it is read as a stream would be
        self._listening = asyncio.create_task(self._listen())
        self._sender = asyncio.create_task(self._send())
        return self

    @property
    def code(self) -> int | None:
        return self.socket.close_code

    def write(self, data: bytes) -> None:
        """Send raw bytes, in frames."""
        size = self._split or len(data)
        for start in range(0, len(data), size):
            self._sending.put_nowait(data[start : start + size])

    def say(self, text: str) -> None:
        """Send a text frame."""
        self._sending.put_nowait(text)

    async def _send(self) -> None:
        try:
            while True:
                await self.socket.send(await self._sending.get())
                self._sending.task_done()
        except ConnectionClosed:
            return

    async def drain(self) -> None:
        """Wait until everything was sent."""
        await self._sending.join()

    async def drop(self) -> None:
        """Close the connection without an MQTT goodbye."""
        for task in (self._listening, self._sender):
            if task is not None:
                task.cancel()
        await self.socket.close()

    def abort(self) -> None:
        """Lose the connection."""
        self.socket.transport.abort()


class _Frames:
    """The contents of binary frames, as a stream gives bytes."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def read(self, _size: int) -> bytes:
        try:
            data = await self._connection.recv()
        except ConnectionClosed:
            return b""
        assert isinstance(data, bytes)
        return data
