"""The simulated device: whatever its server does to its connections, each message arrives, in order, as it was."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

from .device import Device, DeviceGaveUp, packet, read_packet
from .gateway import Credential
from .waiting import until

CREDENTIAL = Credential("d1", "d1", "secret")


class RudeServer:
    """An MQTT server that aborts each connection after some publishes, some of which it had not acknowledged."""

    def __init__(self, takes: list[tuple[int, int]]) -> None:
        self._takes = takes
        self.connects: list[bytes] = []
        self.publishes: list[tuple[int, bool, bytes]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._serve(reader, writer)
        writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connects.append((await read_packet(reader))[1])
        acknowledge, take = self._takes.pop(0)
        writer.write(b"\x20\x02\x00\x00")
        for number in range(take):
            head, rest = await read_packet(reader)
            if head >> 4 != 3:
                return
            end = 2 + int.from_bytes(rest[:2], "big")
            body = rest[end + 2 :]
            self.publishes.append((json.loads(body)["payload"]["seq"], bool(head & 8), body))
            if number < acknowledge:
                writer.write(packet(0x40, rest[end : end + 2]))
                await writer.drain()


async def test_what_was_not_acknowledged_is_sent_again_unchanged_and_first() -> None:
    server = RudeServer([(3, 5), (0, 2), (100, 100)])
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        address = listening.sockets[0].getsockname()
        device = Device(CREDENTIAL, lambda: address, count=8, window=4)
        async with asyncio.timeout(60):
            await device.run()
    numbers = [(seq, again) for seq, again, _ in server.publishes]
    assert numbers[:5] == [(0, False), (1, False), (2, False), (3, False), (4, False)]
    assert numbers[5:7] == [(3, True), (4, True)]
    rest = [seq for seq, _ in numbers[7:]]
    assert rest == sorted(rest)
    assert rest[0] == 3
    assert {body for seq, _, body in server.publishes if seq == 3} == {server.publishes[3][2]}
    assert device.acked == set(range(8))
    assert device.connections == 3
    assert server.connects[0] == b"\x00\x04MQTT\x04\xc2\x00\x3c\x00\x02d1\x00\x02d1\x00\x06secret"


async def test_its_history_says_what_was_acknowledged() -> None:
    server = RudeServer([(1, 3), (0, 0)])
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        address = listening.sockets[0].getsockname()
        device = Device(CREDENTIAL, lambda: address, count=3, window=3, padding=5)
        running = asyncio.create_task(device.run())
        await until(lambda: device.connections == 2, "the device came back")
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    assert [(p.seq, p.acked) for p in device.history()] == [(0, True), (1, False), (2, False)]
    assert device.history()[0].topic == "iotsphere/devices/d1/telemetry/temperature"
    assert device.history()[2].content == {"seq": 2, "value": 21.5, "padding": "xxxxx"}


async def test_a_refused_login_is_an_error_and_not_a_reason_to_try_again() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_packet(reader)
        writer.write(b"\x20\x02\x00\x05")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listening:
        address = listening.sockets[0].getsockname()
        with pytest.raises(DeviceGaveUp, match="d1: CONNECT was answered with 0x20 0005"):
            await Device(CREDENTIAL, lambda: address, count=1).run()


def test_lengths_are_written_as_mqtt_wants_them() -> None:
    assert packet(0x30, b"")[:2] == b"\x30\x00"
    assert packet(0x30, bytes(127))[1:2] == b"\x7f"
    assert packet(0x30, bytes(128))[1:3] == b"\x80\x01"
    assert packet(0x30, bytes(20_000))[1:4] == b"\xa0\x9c\x01"
