"""Connections that are held open and say nothing: over MQTT, or over a WebSocket."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

import httpx

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.codec import Parser
from iotsphere.adapters.mqtt.encode import encode
from tests.support.gateway import Credential

from .programs import BenchFailed

WITHIN_S = 60.0
KEY = "aW90c3BoZXJlLWJlbmNoLQ=="
HEAD_END = b"\r\n\r\n"
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10


class Held(ABC, asyncio.Protocol):
    """One connection: it says who it is, asks for something, and then stays."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[object] = asyncio.Queue()
        self.wire: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.wire = transport
        transport.write(self.greeting())

    def connection_lost(self, exc: Exception | None) -> None:
        self.answers.put_nowait(BenchFailed(f"the connection was lost: {exc}"))

    async def answer(self) -> object:
        """The next answer. Raises BenchFailed once the connection is lost."""
        found = await asyncio.wait_for(self.answers.get(), WITHIN_S)
        if isinstance(found, BenchFailed):
            self.answers.put_nowait(found)
            raise found
        return found

    def close(self) -> None:
        """Go away."""
        if self.wire is not None:
            self.wire.abort()

    @abstractmethod
    def greeting(self) -> bytes:
        """What is said first."""

    @abstractmethod
    async def settle(self) -> None:
        """Be welcomed, and subscribe. Raises BenchFailed."""

    @abstractmethod
    async def refusal(self) -> int:
        """The code with which it is turned away. Raises BenchFailed when it is let in."""

    @abstractmethod
    async def is_there(self) -> bool:
        """Whether it is still answered. Raises BenchFailed once the connection is lost."""


class MqttHeld(Held):
    """A device that waits for commands."""

    def __init__(self, who: Credential) -> None:
        super().__init__()
        self._who = who
        self._parser = Parser(p.MQTT_5)

    def greeting(self) -> bytes:
        who = self._who
        return encode(
            p.Connect(p.MQTT_5, who.device_id, keep_alive=1_200, username=who.username, password=who.password.encode()),
            p.MQTT_5,
        )

    def data_received(self, data: bytes) -> None:
        for item in self._parser.feed(data):
            if isinstance(item, p.ConnAck | p.SubAck | p.PingResp):
                self.answers.put_nowait(item)

    async def settle(self) -> None:
        connack = await self.answer()
        if not isinstance(connack, p.ConnAck) or connack.reason:
            raise BenchFailed(f"{self._who.device_id} was answered {connack}")
        topic = f"iotsphere/devices/{self._who.device_id}/commands/request"
        self._say(p.Subscribe(1, (p.Request(topic, 1),)))
        suback = await self.answer()
        if not isinstance(suback, p.SubAck) or suback.reasons[0] >= 0x80:
            raise BenchFailed(f"{self._who.device_id} may not subscribe: {suback}")

    async def refusal(self) -> int:
        connack = await self.answer()
        if not isinstance(connack, p.ConnAck) or not connack.reason:
            raise BenchFailed(f"one connection too many was answered {connack}")
        return connack.reason

    async def is_there(self) -> bool:
        self._say(p.PingReq())
        return isinstance(await self.answer(), p.PingResp)

    def _say(self, packet: p.Packet) -> None:
        assert self.wire is not None
        self.wire.write(encode(packet, p.MQTT_5))


class WebSocketHeld(Held):
    """A browser that looks at one device, of which nothing comes. Its answers: the status, then (opcode, body)."""

    def __init__(self, url: httpx.URL, token: str) -> None:
        super().__init__()
        self._url = url
        self._token = token
        self._waiting = b""
        self._open = False

    def greeting(self) -> bytes:
        return (
            f"GET {self._url.raw_path.decode()} HTTP/1.1\r\nHost: {self._url.netloc.decode()}\r\n"
            f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: iotsphere.v1.json\r\nAuthorization: Bearer {self._token}\r\n\r\n"
        ).encode()

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        if not self._open:
            head, end, rest = self._waiting.partition(HEAD_END)
            if not end:
                return
            self._open, self._waiting = True, rest
            self.answers.put_nowait(int(head.split(b" ", 2)[1]))
        while (frame := _frame(self._waiting)) is not None:
            opcode, body, self._waiting = frame
            self.answers.put_nowait((opcode, body))

    async def settle(self) -> None:
        status = await self.answer()
        if status != 101:
            raise BenchFailed(f"a WebSocket was answered with status {status}")
        self._say(TEXT, b'{"type":"subscribe","ref":1,"filters":["iotsphere/devices/quiet/+/#"],"from":"live"}')
        answer = await self.answer()
        if not isinstance(answer, tuple) or b'"ok"' not in answer[1]:
            raise BenchFailed(f"a WebSocket may not subscribe: {answer}")

    async def refusal(self) -> int:
        status = await self.answer()
        if not isinstance(status, int) or status == 101:
            raise BenchFailed(f"one connection too many was answered {status}")
        return status

    async def is_there(self) -> bool:
        self._say(PING, b"?")
        while (answer := await self.answer()) != (PONG, b"?"):
            if not isinstance(answer, tuple) or answer[0] == CLOSE:
                return False
        return True

    def _say(self, opcode: int, body: bytes) -> None:
        assert self.wire is not None
        assert len(body) < 126
        self.wire.write(bytes((0x80 | opcode, 0x80 | len(body), 0, 0, 0, 0)) + body)


def _frame(data: bytes) -> tuple[int, bytes, bytes] | None:
    """The first frame of RFC 6455 section 5.2: opcode, body, and what follows it; None when it is not whole."""
    if len(data) < 2:
        return None
    wide = {126: 2, 127: 8}.get(data[1], 0)
    at = 2 + wide
    length = int.from_bytes(data[2:at], "big") if wide else data[1]
    return (data[0] & 15, data[at : at + length], data[at + length :]) if len(data) >= at + length else None
