"""The listener at the doors of peers: MQTT, NATS and plain envelopes, each with planted faults."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from bench.bitmaps import compare, write_acked
from bench.programs import BenchFailed, Program
from tests.support.device import packet, read_packet
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the programs are compiled on the spot")

FAULTY = (0, 1, 1, 3, 2)  # one twice, two in the wrong order, and the fifth never
TOPIC = "iotsphere/devices/d0/telemetry"


def payload(seq: int) -> bytes:
    return json.dumps({"seq": seq, "t": 1, "value": 21.5}).encode()


@asynccontextmanager
async def listener(tmp_path: Path, port: int, *words: str) -> AsyncIterator[Program]:
    names = tmp_path / "devices"
    names.write_text("d0 - -\n")
    arguments = ["--devices", str(names), "--port", str(port), "--received", str(tmp_path / "received")]
    program = await Program.start("listen", [*arguments, "--idle", "1", *words])
    try:
        yield program
    finally:
        await program.end()


class Turns(NamedTuple):
    """``told``: the server may begin. ``sent``: it has sent all."""

    told: asyncio.Event
    sent: asyncio.Event


def turns() -> Turns:
    return Turns(asyncio.Event(), asyncio.Event())


async def what_it_finds(tmp_path: Path, program: Program, turn: Turns) -> dict[str, Any]:
    """Let the server begin once the listener is ready; then hold what was found to what was planted.

    It is told what to expect when all is sent: then the server cannot keep it waiting for so long that it gives up.
    """
    await program.answer(60)
    turn.told.set()
    async with asyncio.timeout(60):
        await turn.sent.wait()
    await program.tell("expect 5")
    answer = await program.answer(60)
    await program.wait()
    assert {name: answer[name] for name in ("distinct", "duplicated", "reordered", "foreign")} == {
        "distinct": 4,
        "duplicated": 1,
        "reordered": 1,
        "foreign": 0,
    }
    write_acked(tmp_path / "acked", [5])
    assert compare(tmp_path / "acked", tmp_path / "received") == (1, 0, 0)
    return answer


async def test_faults_of_an_mqtt_broker_are_found_and_every_message_is_acknowledged(tmp_path: Path) -> None:
    turn = turns()
    acknowledged: list[bytes] = []
    wishes: list[bytes] = []

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await read_packet(reader)
            writer.write(packet(0x20, b"\x00\x00"))
            wishes.append((await read_packet(reader))[1])
            writer.write(packet(0x90, b"\x00\x01\x01"))
            await turn.told.wait()
            for number, seq in enumerate(FAULTY, 1):
                topic = TOPIC.encode()
                head = len(topic).to_bytes(2, "big") + topic + number.to_bytes(2, "big")
                writer.write(packet(0x32, head + payload(seq)))
            turn.sent.set()
            acknowledged.extend([(await read_packet(reader))[1] for _ in FAULTY])
            await reader.read()
        writer.close()

    async with await asyncio.start_server(broker, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with listener(tmp_path, port, "--protocol", "mqtt") as program:
            await what_it_finds(tmp_path, program, turn)
            await until(lambda: acknowledged, "the acknowledgements are read")
    assert wishes[0].endswith(b"iotsphere/devices/+/telemetry/#\x01")  # QoS 1
    assert acknowledged == [number.to_bytes(2, "big") for number in range(1, 6)]


async def nats_to(socket: ServerConnection, turn: Turns, answer: bytes) -> list[bytes]:
    """Greet as a NATS server does, make the consumer, and deliver in frames that end in the middle of commands."""
    await socket.send(b'INFO {"server_id":"x"}\r\n')
    said = [await socket.recv(decode=False)]
    await socket.send(b"PING\r\nMSG bench.answer0 2 %d\r\n%s\r\n" % (len(answer), answer))
    said.append(await socket.recv(decode=False))
    await turn.told.wait()
    subject = b"$MQTT.msgs." + TOPIC.replace("/", ".").encode()
    stream = b"".join(b"MSG %s 1 %d\r\n%s\r\n" % (subject, len(payload(seq)), payload(seq)) for seq in FAULTY)
    for at in range(0, len(stream), 37):
        await socket.send(stream[at : at + 37])
    turn.sent.set()
    await socket.wait_closed()
    return said


async def test_faults_of_a_nats_stream_are_found(tmp_path: Path) -> None:
    turn, said = turns(), asyncio.Queue[list[bytes]]()

    async def server(socket: ServerConnection) -> None:
        said.put_nowait(await nats_to(socket, turn, b'{"stream_name":"S"}'))

    words = ("--protocol", "nats", "--stream", "S", "--filter", "a.*.b")
    async with serve(server, "127.0.0.1", 0, compression=None) as door:
        port = next(iter(door.sockets)).getsockname()[1]
        async with listener(tmp_path, port, *words) as program:
            await what_it_finds(tmp_path, program, turn)
        wish, pong = await asyncio.wait_for(said.get(), 60)
    assert pong == b"PONG\r\n"
    head, _, rest = wish.partition(b"PUB $JS.API.CONSUMER.CREATE.S bench.answer0 ")
    assert head.endswith(b"SUB bench.deliver0 1\r\nSUB bench.answer0 2\r\n")
    size, _, body = rest.partition(b"\r\n")
    request = json.loads(body[: int(size)])
    assert request["stream_name"] == "S"
    assert request["config"]["filter_subject"] == "a.*.b"
    assert request["config"]["deliver_policy"] == "new"


async def test_a_nats_server_that_makes_no_consumer_is_an_error(tmp_path: Path) -> None:
    async def server(socket: ServerConnection) -> None:
        turn = turns()
        turn.told.set()
        with suppress(ConnectionClosed):
            await nats_to(socket, turn, b'{"error":{"code":404,"description":"stream not found"}}')

    async with serve(server, "127.0.0.1", 0, compression=None) as door:
        port = next(iter(door.sockets)).getsockname()[1]
        async with listener(tmp_path, port, "--protocol", "nats", "--stream", "S") as program:
            with pytest.raises(BenchFailed, match="stream not found"):
                await program.answer(60)


async def test_faults_of_plain_envelopes_are_found(tmp_path: Path) -> None:
    turn = turns()

    async def server(socket: ServerConnection) -> None:
        await turn.told.wait()
        for seq in FAULTY:
            await socket.send(f'{{"metadata":{{"topic":"{TOPIC}"}},"payload":{payload(seq).decode()}}}')
        turn.sent.set()
        await socket.wait_closed()

    async with serve(server, "127.0.0.1", 0, compression=None) as door:
        port = next(iter(door.sockets)).getsockname()[1]
        async with listener(tmp_path, port, "--protocol", "envelopes") as program:
            await what_it_finds(tmp_path, program, turn)
