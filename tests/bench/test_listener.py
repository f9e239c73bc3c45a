"""The listener against a small server that repeats, swaps, drops and splits messages on purpose."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from bench.bitmaps import compare, write_acked
from bench.programs import BenchFailed, Program

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the programs are compiled on the spot")

Send = Callable[[ServerConnection], Any]


def envelope(device: str, seq: int, due: int = 0, *, note: str = "", order: int = 1) -> dict[str, Any]:
    metadata = {
        "messageId": f"{device}-{seq}",
        "topic": f"iotsphere/devices/{device}/telemetry",
        "source": note,
        "correlationId": None,
    }
    payload = {"nested": {"seq": [9, {"t": "]"}]}, "seq": seq, "note": note, "t": due, "value": -21.5}
    message = [("metadata", metadata), ("payload", payload)]
    return dict(message[::order])


def frame(*messages: dict[str, Any], spaced: bool = False) -> str:
    separators = None if spaced else (",", ":")
    return json.dumps(
        {"type": "messages", "subscription": "s1", "cursor": "c", "messages": list(messages)}, separators=separators
    )


async def listen(
    tmp_path: Path, send: Send, expect: int, devices: int = 2, *more: str, connections: int = 1
) -> tuple[dict[str, Any], Path]:
    """Run the listener against a server that answers the subscription and then does what ``send`` does.

    It is told what to expect when all is sent: then neither side can keep it waiting for so long that it gives up.
    """
    requests: list[Any] = []
    told = asyncio.Event()
    sent = asyncio.Semaphore(0)

    async def handler(socket: ServerConnection) -> None:
        requests.append((socket.request.headers["Authorization"] if socket.request else None, await socket.recv()))
        await socket.send('{"type":"ok","ref":1,"subscription":"s1","cursor":"c","missed":[]}')
        await told.wait()
        await send(socket)
        sent.release()
        await socket.wait_closed()

    names, received = tmp_path / "devices", tmp_path / "received"
    names.write_text("".join(f"d{number} - -\n" for number in range(devices)))
    async with serve(
        handler, "127.0.0.1", 0, subprotocols=[Subprotocol("iotsphere.v1.json")], compression=None
    ) as door:
        port = next(iter(door.sockets)).getsockname()[1]
        arguments = ["--devices", str(names), "--port", str(port), "--token", "T", "--received", str(received)]
        program = await Program.start("listen", [*arguments, "--idle", "1", "--connections", str(connections), *more])
        try:
            await program.tell("from 1")  # before it is connected, so that it knows when the first message comes
            assert await program.answer(60) == {"event": "ready"}
            told.set()
            async with asyncio.timeout(60):
                for _ in range(connections):
                    await sent.acquire()
            await program.tell(f"expect {expect}")
            answer = await program.answer(60)
            assert await program.wait() == 0
        finally:
            await program.end()
    authorization, request = requests[0]
    assert authorization == "Bearer T"
    assert json.loads(request) == {
        "type": "subscribe",
        "ref": 1,
        "filters": ["iotsphere/devices/+/telemetry/#"],
        "from": "live",
    }
    return answer, received


async def test_clean_frames_of_every_make_are_counted_and_timed(tmp_path: Path) -> None:
    async def send(socket: ServerConnection) -> None:
        due = time.monotonic_ns() - 50_000_000
        await socket.send(frame(envelope("d0", 0, due), envelope("d1", 0, due, order=-1), spaced=True))
        await socket.send(frame(envelope("d0", 1, due, note='"}],\\ [{"seq":7'), envelope("d1", 1, due)))
        await socket.ping()
        large = frame(*(envelope("d0", seq, due, note="x" * 2_000) for seq in range(2, 402)))
        assert len(large) > 800_000
        await socket.send(large)

        async def pieces() -> AsyncIterator[str]:
            text = frame(envelope("d1", 2, due))
            for start in range(0, len(text), 40):
                yield text[start : start + 40]

        await socket.send(pieces())

    answer, received = await listen(tmp_path, send, 405, 2, "--idle", "60")
    counts = {name: answer[name] for name in ("messages", "distinct", "counted", "reordered", "duplicated", "foreign")}
    assert counts == {
        "messages": 405,
        "distinct": 405,
        "counted": 405,
        "reordered": 0,
        "duplicated": 0,
        "foreign": 0,
    }
    assert answer["frames"] >= 5
    assert 50 <= answer["p50_ms"] <= answer["p99_ms"] <= answer["max_ms"] < 20_000
    acked = tmp_path / "acked"
    acked.write_bytes(b"".join(sent.to_bytes(8, "little") + _bits((1 << sent) - 1) for sent in (402, 3)))
    assert compare(acked, received) == (0, 0, 0)


async def test_planted_faults_are_found(tmp_path: Path) -> None:
    async def send(socket: ServerConnection) -> None:
        await socket.send(frame(*(envelope("d0", seq) for seq in (0, 1, 1, 3, 2, 5))))
        await socket.send(frame(envelope("d1", 0), envelope("stranger", 0), envelope("d1", 0)))
        await socket.send('{"type":"lagging","subscription":"s1","behind":5}')

    answer, received = await listen(tmp_path, send, expect=100)
    counts = {name: answer[name] for name in ("distinct", "reordered", "duplicated", "foreign", "notices")}
    assert counts == {"distinct": 6, "reordered": 1, "duplicated": 2, "foreign": 1, "notices": 1}
    acked = tmp_path / "acked"
    sent_acked = ((6, 0b111111), (3, 0b011))  # d0 lacks 4; d1 lacks 1, and 2 was never acknowledged
    acked.write_bytes(b"".join(sent.to_bytes(8, "little") + _bits(bits) for sent, bits in sent_acked))
    assert compare(acked, received) == (2, 0, 1)
    acked.write_bytes(b"".join(sent.to_bytes(8, "little") + _bits(bits) for sent, bits in ((5, 0b11111), (1, 1))))
    assert compare(acked, received).phantom == 1


async def test_each_of_several_clients_has_its_own_account(tmp_path: Path) -> None:
    order: list[ServerConnection] = []

    async def send(socket: ServerConnection) -> None:
        order.append(socket)
        if len(order) == 3:
            for number, each in enumerate(order):
                numbers = ((0, 1, 2), (0, 2), (0, 2, 1, 1))[number]
                await each.send(frame(*(envelope("d0", seq) for seq in numbers)))

    answer, received = await listen(tmp_path, send, 3, 1, connections=3)
    assert {name: answer[name] for name in ("distinct", "reordered", "duplicated")} == {
        "distinct": 8,
        "reordered": 1,
        "duplicated": 1,
    }
    acked = tmp_path / "acked"
    write_acked(acked, [3])
    assert compare(acked, received, 3) == (1, 0, 0)  # one client lacks one
    with pytest.raises(ValueError, match="different sets"):
        compare(acked, received, 2)
    with pytest.raises(ValueError, match="different sets"):
        compare(acked, received, 4)


async def test_a_cursor_is_where_reading_begins(tmp_path: Path) -> None:
    async def send(socket: ServerConnection) -> None:
        await socket.send(frame(envelope("d0", 0)))

    asked: list[Any] = []

    async def handler(socket: ServerConnection) -> None:
        asked.append(json.loads(await socket.recv()))
        await socket.send('{"type":"ok","ref":1}')
        await send(socket)
        await socket.wait_closed()

    names = tmp_path / "devices"
    names.write_text("d0 - -\n")
    async with serve(handler, "127.0.0.1", 0, subprotocols=[Subprotocol("iotsphere.v1.json")]) as door:
        port = next(iter(door.sockets)).getsockname()[1]
        words = ["--devices", str(names), "--port", str(port), "--token", "T", "--from", "C.1", "--filter", "a/+"]
        program = await Program.start("listen", words)
        try:
            await program.answer(60)
            await program.tell("expect 1")
            assert (await program.answer(60))["distinct"] == 1
        finally:
            await program.end()
    assert asked == [{"type": "subscribe", "ref": 1, "filters": ["a/+"], "from": "C.1"}]


async def test_the_times_of_each_slice_are_told_while_it_listens(tmp_path: Path) -> None:
    expected, told_some = asyncio.Event(), asyncio.Event()

    async def handler(socket: ServerConnection) -> None:
        await expected.wait()
        await socket.send(json.dumps(envelope("d0", 0, time.monotonic_ns())))
        await told_some.wait()
        for seq in range(1, 30):
            await socket.send(json.dumps(envelope("d0", seq, time.monotonic_ns())))
        await socket.wait_closed()

    names = tmp_path / "devices"
    names.write_text("d0 - -\n")
    async with serve(handler, "127.0.0.1", 0, compression=None) as door:
        port = next(iter(door.sockets)).getsockname()[1]
        words = ["--devices", str(names), "--port", str(port), "--protocol", "envelopes", "--slice", "0.2"]
        program = await Program.start("listen", [*words, "--idle", "60"])
        try:
            await program.tell(f"from {time.monotonic_ns()}")
            await program.answer(60)
            await program.tell("expect 30")
            expected.set()
            told: list[int] = []
            while (answer := await program.answer(60)).get("event") == "slice":
                told.append(answer["counted"])
                if len(told) >= 2 and sum(told) > 0:
                    told_some.set()
        finally:
            await program.end()
    assert answer["distinct"] == 30
    assert len(told) >= 2
    assert 0 < sum(told) <= answer["counted"]


async def test_a_refusal_is_shown(tmp_path: Path) -> None:
    async def send(socket: ServerConnection) -> None:
        await socket.send('{"type":"error","ref":1,"code":"forbidden","message":"no grant"}')

    with pytest.raises(BenchFailed, match=r"listen ended early.*no grant"):
        await listen(tmp_path, send, expect=1)


async def test_broken_json_is_an_error(tmp_path: Path) -> None:
    async def send(socket: ServerConnection) -> None:
        await socket.send('{"type":"messages","messages":[{"metadata":{"topic":"x"},"payload":{"seq":1')

    with pytest.raises(BenchFailed, match="no JSON"):
        await listen(tmp_path, send, expect=1)


def _bits(bits: int) -> bytes:
    data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    return len(data).to_bytes(8, "little") + data


async def test_a_missing_server_is_an_error(tmp_path: Path) -> None:
    names = tmp_path / "devices"
    names.write_text("d0 - -\n")
    program = await Program.start("listen", ["--devices", str(names), "--port", "1"])
    with pytest.raises(BenchFailed, match="cannot connect"):
        await program.answer(60)
    assert await program.wait() == 1
