"""An MQTT client made of packets: it sends exactly what a test says, and waits for exactly what the test expects."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.codec import Fault, Parser
from iotsphere.adapters.mqtt.encode import encode
from iotsphere.use_cases.access.devices import Credential

WITHIN = 60.0
T = TypeVar("T")


class Gone(AssertionError):
    """The server closed the connection before what the test expected."""


class Peer:
    """One connection. ``closed`` is set once the server has closed it. Clear ``awake`` and it reads no further.

    ``buffer``: bytes that the system receives for it while it does not read; 0 = as usual.
    """

    def __init__(self, address: tuple[str, int], version: int = p.MQTT_5, buffer: int = 0) -> None:
        self._buffer = buffer
        self.version = version
        self.address = address
        self.closed = asyncio.Event()
        self.packets: list[Any] = []
        self._parser = Parser(version)
        self._arrived = asyncio.Event()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._listening: asyncio.Task[None] | None = None
        self.awake = asyncio.Event()
        self.awake.set()

    async def __aenter__(self) -> Self:
        plain = socket.socket()
        if self._buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer)
        plain.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(plain, self.address)
            self._reader, self._writer = await asyncio.open_connection(sock=plain)
        except BaseException:  # also when the test ends at this moment
            plain.close()
            raise
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drop()

    async def drop(self) -> None:
        """Close the socket without a word."""
        if self._listening is not None:
            self._listening.cancel()
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Lose the connection, with all that was not sent yet."""
        self._writer.transport.abort()

    async def _listen(self) -> None:
        try:
            while data := await self._reader.read(65_536):
                for item in self._parser.feed(data):
                    assert not isinstance(item, Fault), item
                    if isinstance(item, p.Burst):
                        self.packets += [
                            p.Publish(topic, payload, number, first & 15)
                            for topic, payload, number, first in item.messages
                        ]
                    elif isinstance(item, p.Acks):
                        self.packets += [p.Ack(p.PUBACK, number) for number in item.packet_ids]
                    else:
                        self.packets.append(item)
                self._arrived.set()
                await self.awake.wait()
        except ConnectionError:
            pass
        finally:
            self.closed.set()
            self._arrived.set()
            self._writer.close()  # as clients do when the server has closed its side

    def write(self, data: bytes) -> None:
        """Send raw bytes."""
        self._writer.write(data)

    async def drain(self) -> None:
        """Wait until the socket has taken what was written."""
        await self._writer.drain()

    def send(self, *packets: p.Packet) -> None:
        """Send packets in one write."""
        self.write(b"".join(encode(packet, self.version) for packet in packets))

    async def expect(self, kind: type[T], where: Callable[[T], object] = lambda _: True) -> T:
        """The next packet of a kind that fulfils the condition, taken out of what has come."""
        return (await self.take(kind, 1, where))[0]

    async def take(self, kind: type[T], count: int, where: Callable[[T], object] = lambda _: True) -> list[T]:
        """The next packets of a kind, in order, taken out of what has come."""
        try:
            async with asyncio.timeout(WITHIN):
                while True:
                    found = [packet for packet in self.packets if isinstance(packet, kind) and where(packet)][:count]
                    if len(found) == count:
                        for packet in found:
                            self.packets.remove(packet)
                        return found
                    if self.closed.is_set():
                        raise Gone(f"closed before {count} {kind.__name__}; there is {self.packets}")
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError as error:
            raise AssertionError(f"no {count} {kind.__name__}; there is {self.packets[:20]}") from error

    async def end(self) -> None:
        """Wait until the server has closed the connection."""
        await asyncio.wait_for(self.closed.wait(), WITHIN)

    async def connect(self, credential: Credential | str | None, client_id: str = "c1", **fields: Any) -> p.ConnAck:
        """Say CONNECT with a device's credential or a token, and return the answer."""
        if isinstance(credential, Credential):
            fields.setdefault("username", credential.username)
            fields.setdefault("password", credential.password.encode())
        elif credential is not None:
            fields.setdefault("username", "token")
            fields.setdefault("password", credential.encode())
        self.send(p.Connect(self.version, client_id, **fields))
        return await self.expect(p.ConnAck)

    async def subscribe(self, *filters: str | p.Request, packet_id: int = 100) -> tuple[int, ...]:
        """Subscribe at QoS 1 and return the reasons."""
        requests = tuple(p.Request(wanted, 1) if isinstance(wanted, str) else wanted for wanted in filters)
        self.send(p.Subscribe(packet_id, requests))
        return (await self.expect(p.SubAck, lambda ack: ack.packet_id == packet_id)).reasons

    async def ping(self) -> None:
        """Come to know that everything sent before was read."""
        self.send(p.PingReq())
        await self.expect(p.PingResp)


def message(topic: str, payload: bytes, packet_id: int = 0, *, retain: bool = False, dup: bool = False) -> p.Publish:
    """A PUBLISH at QoS 1 when it has a packet id, else at QoS 0."""
    flags = (2 if packet_id else 0) | (1 if retain else 0) | (8 if dup else 0)
    return p.Publish(topic.encode(), payload, packet_id, flags)


def ack(packet_id: int) -> p.Ack:
    """A PUBACK."""
    return p.Ack(p.PUBACK, packet_id)
