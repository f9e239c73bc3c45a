"""A device as a careful maker would write it: MQTT 3.1.1, QoS 1, and everything unacknowledged is sent again.

It speaks over a real socket, keeps a bounded number of messages in flight, survives its server being killed, and knows
afterwards what was acknowledged. Its packets are written by hand, so that no client library can hide a fault.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from .gateway import Credential
from .history import Published

RECONNECT_PAUSE = 0.05


class DeviceGaveUp(RuntimeError):
    """The server answered in a way that no restart explains."""


def _text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(2, "big") + data


def packet(head: int, rest: bytes) -> bytes:
    """An MQTT packet: the first byte, the length, the rest."""
    length, size = b"", len(rest)
    while True:
        size, digit = divmod(size, 128)
        length += bytes([digit | (128 if size else 0)])
        if not size:
            return bytes([head]) + length + rest


async def read_packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The next packet: its first byte and its rest. Raises IncompleteReadError at the end of the stream."""
    head = (await reader.readexactly(1))[0]
    length, shift = 0, 0
    while True:
        digit = (await reader.readexactly(1))[0]
        length |= (digit & 127) << shift
        shift += 7
        if not digit & 128:
            return head, await reader.readexactly(length)


class Device:
    """A device that publishes ``count`` messages, one by one numbered, until each is acknowledged.

    It sends full envelopes with ids of its own, or, with ``plain``, bare payloads, which nobody can tell from new ones
    when they are sent again.
    ``address``: where to connect, asked before each attempt. ``window``: messages in flight. ``pause``: seconds between
    two new messages. ``topic``: the rest of the topic below the device. ``padding``: characters added to each payload.
    ``allowed``: it stops there, until it has been raised and the connection lost.
    """

    def __init__(
        self,
        credential: Credential,
        address: Callable[[], tuple[str, int]],
        *,
        count: int,
        window: int = 20,
        pause: float = 0.0,
        topic: str = "telemetry/temperature",
        padding: int = 0,
        plain: bool = False,
    ) -> None:
        self.credential = credential
        self.connections = 0
        self.acked: set[int] = set()
        self.sent = 0
        self.allowed = count
        self._address = address
        self._count = count
        self._window = window
        self._pause = pause
        self._topic = f"iotsphere/devices/{credential.device_id}/{topic}"
        self._padding = "x" * padding
        self._plain = plain
        self._ids = [str(uuid.uuid4()) for _ in range(count)]
        self._in_flight: dict[int, bytes] = {}

    def history(self) -> list[Published]:
        """What was sent so far, and whether it was acknowledged."""
        name = self.credential.device_id
        return [
            Published(
                name, seq, self._topic, None if self._plain else self._ids[seq], self._payload(seq), seq in self.acked
            )
            for seq in range(self.sent)
        ]

    async def run(self) -> None:
        """Publish until every message is acknowledged, over as many connections as that takes."""
        while len(self.acked) < self._count:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._one_connection()
            await asyncio.sleep(RECONNECT_PAUSE)

    async def _one_connection(self) -> None:
        reader, writer = await asyncio.open_connection(*self._address())
        try:
            await self._greet(reader, writer)
            room = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._take_acknowledgements(reader, room))
                tasks.create_task(self._send(writer, room))
        except* (ConnectionError, asyncio.IncompleteReadError) as group:
            raise ConnectionError("the connection was lost") from group
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        who = self.credential
        flags = bytes([4, 0b11000010, 0, 60])
        login = _text(who.device_id) + _text(who.username) + _text(who.password)
        writer.write(packet(0x10, _text("MQTT") + flags + login))
        head, rest = await read_packet(reader)
        if head != 0x20 or rest[1] not in (0, 3):  # 3: the server is unavailable for now
            raise DeviceGaveUp(f"{who.device_id}: CONNECT was answered with {head:#x} {rest.hex()}")
        if rest[1] == 3:
            raise ConnectionError("the server is not ready yet")
        self.connections += 1

    async def _send(self, writer: asyncio.StreamWriter, room: asyncio.Event) -> None:
        for seq, body in self._in_flight.items():  # in the old order, before anything new
            writer.write(self._publish(seq, body, again=True))
        await writer.drain()
        while len(self.acked) < self._count:
            if self.sent < self.allowed and len(self._in_flight) < self._window:
                seq, body = self.sent, self._body(self.sent)
                self._in_flight[seq] = body
                self.sent += 1
                writer.write(self._publish(seq, body, again=False))
                await writer.drain()
                if self._pause:
                    await asyncio.sleep(self._pause)
            else:
                room.clear()
                await room.wait()
        writer.write(packet(0xE0, b""))
        await writer.drain()

    async def _take_acknowledgements(self, reader: asyncio.StreamReader, room: asyncio.Event) -> None:
        while len(self.acked) < self._count:
            head, rest = await read_packet(reader)
            if head != 0x40:
                continue
            number = int.from_bytes(rest[:2], "big")
            seq = next((seq for seq in self._in_flight if seq % 65_535 + 1 == number), None)
            if seq is None:
                raise DeviceGaveUp(f"{self.credential.device_id}: PUBACK {number} for nothing that is in flight")
            del self._in_flight[seq]
            self.acked.add(seq)
            room.set()

    def _payload(self, seq: int) -> dict[str, object]:
        return {"seq": seq, "value": 21.5, "padding": self._padding} if self._padding else {"seq": seq, "value": 21.5}

    def _body(self, seq: int) -> bytes:
        payload = self._payload(seq)
        if self._plain:
            return json.dumps(payload, separators=(",", ":")).encode()
        metadata = {
            "messageId": self._ids[seq],
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "topic": self._topic,
            "source": self.credential.device_id,
            "correlationId": None,
            "messageType": "event",
            "version": "1.0",
        }
        return json.dumps({"metadata": metadata, "payload": payload}, separators=(",", ":")).encode()

    def _publish(self, seq: int, body: bytes, *, again: bool) -> bytes:
        number = (seq % 65_535 + 1).to_bytes(2, "big")
        return packet(0x32 | (0x08 if again else 0), _text(self._topic) + number + body)
