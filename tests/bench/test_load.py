"""The load generator against a small MQTT server that keeps a record."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from bench.bitmaps import compare
from bench.programs import BenchFailed, Program
from tests.support.device import packet, read_packet

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the programs are compiled on the spot")


class Recorder:
    """Acknowledges every publish after ``delay`` seconds, except the numbers in ``ignore``, while it ``answers``."""

    def __init__(self, code: int = 0, delay: float = 0.0, ignore: frozenset[int] = frozenset()) -> None:
        self.connects: list[bytes] = []
        self.messages: list[tuple[str, Any]] = []
        self.ended = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self._code, self._delay, self._ignore = code, delay, ignore

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            self.connects.append((await read_packet(reader))[1])
            writer.write(bytes((0x20, 2, 0, self._code)))
            while (head_rest := await read_packet(reader))[0] == 0x32:
                rest = head_rest[1]
                end = 2 + int.from_bytes(rest[:2], "big")
                body = json.loads(rest[end + 2 :])
                self.messages.append((rest[2:end].decode(), body))
                if body.get("seq") in self._ignore:
                    continue
                await self.answers.wait()
                await asyncio.sleep(self._delay)
                writer.write(packet(0x40, rest[end : end + 2]))
            self.ended += head_rest == (0xE0, b"")
        writer.close()


@asynccontextmanager
async def generator(tmp_path: Path, recorder: Recorder, *arguments: str) -> AsyncIterator[Program]:
    names = tmp_path / "devices"
    names.write_text("d0 user0 secret0\nd1 - -\n")
    async with await asyncio.start_server(recorder.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        common = ["--devices", str(names), "--port", str(port), "--acked", str(tmp_path / "acked")]
        program = await Program.start("load", [*common, *arguments])
        try:
            yield program
        finally:
            await program.end()


async def test_open_loop_keeps_its_rate_and_numbers_every_message(tmp_path: Path) -> None:
    recorder = Recorder()
    async with generator(tmp_path, recorder, "--rate", "500", "--seconds", "1", "--warmup", "0.5") as program:
        started = await program.answer(60)
        answer = await program.answer(60)
        assert await program.wait() == 0
    assert started["event"] == "started"
    assert answer["sent"] == answer["acked"] == 500
    assert recorder.connects == [
        b"\x00\x04MQTT\x04\xc2\x00\x3c\x00\x02d0\x00\x05user0\x00\x07secret0",
        b"\x00\x04MQTT\x04\x02\x00\x3c\x00\x02d1",
    ]
    for device in ("d0", "d1"):
        mine = [body for topic, body in recorder.messages if topic == f"iotsphere/devices/{device}/telemetry"]
        assert [body["seq"] for body in mine] == list(range(250))
        assert all(started["at"] <= body["t"] < started["at"] + 1_000_000_000 for body in mine)
        assert mine[0].keys() == {"seq", "t", "value"}
    received = tmp_path / "received"
    whole = (32).to_bytes(8, "little") + ((1 << 250) - 1).to_bytes(32, "little")
    received.write_bytes(whole * 2)
    assert compare(tmp_path / "acked", received) == (0, 0, 0)


async def test_latency_counts_from_when_a_message_fell_due(tmp_path: Path) -> None:
    recorder = Recorder(delay=0.02)  # serves 50 messages a second and device: half of what falls due
    arguments = ("--rate", "200", "--seconds", "1", "--warmup", "0", "--drain", "50")
    async with generator(tmp_path, recorder, *arguments) as program:
        await program.answer(60)
        answer = await program.answer(60)
    assert answer["sent"] == answer["acked"] == 200
    assert answer["p99_ms"] > 900  # the last ones waited behind all the others
    assert answer["max_ms"] >= answer["p999_ms"] >= answer["p99_ms"] >= answer["p50_ms"] > 300


async def test_what_fell_due_while_the_generator_stood_still_is_sent(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.answers.clear()  # so it cannot have ended before it is stopped
    async with generator(tmp_path, recorder, "--rate", "200", "--seconds", "1", "--warmup", "0") as program:
        await program.answer(60)
        os.kill(program.pid, signal.SIGSTOP)
        await asyncio.sleep(1.1)  # it wakes after its end
        os.kill(program.pid, signal.SIGCONT)
        recorder.answers.set()
        answer = await program.answer(60)
    assert answer["sent"] == answer["acked"] == len(recorder.messages) == 200


async def test_closed_loop_never_exceeds_its_window(tmp_path: Path) -> None:
    recorder = Recorder(ignore=frozenset(range(10)))
    arguments = ("--rate", "0", "--seconds", "0.2", "--window", "10", "--drain", "0.2")
    async with generator(tmp_path, recorder, *arguments) as program:
        await program.answer(60)
        answer = await program.answer(60)
        assert await program.wait() == 2
    assert (answer["sent"], answer["acked"]) == (20, 0)


async def test_envelopes_carry_unique_ids(tmp_path: Path) -> None:
    recorder = Recorder()
    arguments = ("--rate", "0", "--seconds", "20", "--count", "25", "--window", "5", "--format", "envelope")
    async with generator(tmp_path, recorder, *arguments) as program:
        await program.answer(60)
        answer = await program.answer(60)
        await program.wait()
    assert answer["acked"] == len(recorder.messages) == 25
    topic, first = recorder.messages[0]
    metadata = first["metadata"]
    assert metadata["topic"] == topic
    assert topic.split("/")[2] == metadata["source"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", metadata["timestamp"])
    assert (metadata["correlationId"], metadata["messageType"], metadata["version"]) == (None, "event", "1.0")
    uuid4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
    ids = [body["metadata"]["messageId"] for _, body in recorder.messages]
    assert all(uuid4.fullmatch(each) for each in ids)
    assert len(set(ids)) == len(ids)


async def test_a_count_ends_the_load_and_padding_fills_the_payload(tmp_path: Path) -> None:
    recorder = Recorder()
    arguments = ("--rate", "0", "--seconds", "20", "--window", "7", "--count", "25", "--pad", "3000")
    async with generator(tmp_path, recorder, *arguments) as program:
        await program.answer(60)
        answer = await program.answer(60)
        assert await program.wait() == 0
    assert (answer["sent"], answer["acked"]) == (25, 25)
    assert {body["pad"] for _, body in recorder.messages} == {"x" * 3000}


async def test_a_refused_device_is_an_error(tmp_path: Path) -> None:
    async with generator(tmp_path, Recorder(code=5)) as program:
        with pytest.raises(BenchFailed, match="CONNACK refuses the device: d0"):
            await program.answer(60)
