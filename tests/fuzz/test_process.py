"""Hundreds of broken conversations with a running process: it serves on, keeps nothing of them, and owes nobody an end."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import psutil

from iotsphere.adapters.mqtt import packets as p
from tests.gateways.mqtt.peer import Peer
from tests.support.playground import open_playground

from .seeds import conversations
from .test_target import mutated

AT_ONCE = 20
ROUNDS = 20
CLOSED_WITHIN_S = 60.0
GROWTH_BYTES = 12 * 1024 * 1024


async def talk(address: tuple[str, int], stream: bytes, choose: random.Random) -> None:
    """Say it in pieces, then close this side, and wait for the other."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        at = 0
        while at < len(stream) and not writer.is_closing():
            size = choose.randint(1, 64)
            writer.write(stream[at : at + size])
            at += size
            await asyncio.sleep(0)
        with suppress(OSError):  # it may be closed by now
            writer.write_eof()
        with suppress(ConnectionError):
            async with asyncio.timeout(CLOSED_WITHIN_S):
                while await reader.read(65_536):
                    pass
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_process_outlives_what_hundreds_of_clients_break(tmp_path: Path) -> None:
    choose = random.Random(11)
    seeds = conversations()
    with open_playground(tmp_path) as opened:
        process = psutil.Process(opened.pid)
        async with Peer(opened.address) as witness:
            await witness.connect(None, "witness", keep_alive=600)
            await witness.subscribe("witness")
            grown = 0
            for number in range(ROUNDS):
                streams = [mutated(choose.choice(seeds), choose)[1:] for _ in range(AT_ONCE)]
                await asyncio.gather(*(talk(opened.address, stream, choose) for stream in streams))
                witness.send(p.Publish(b"witness", b"%d" % number, 0, 0))
                assert (await witness.expect(p.Publish)).payload == b"%d" % number
                if number == ROUNDS // 2:
                    grown = process.memory_info().rss
            assert process.memory_info().rss - grown < GROWTH_BYTES
        assert process.is_running()
        assert "watch_failed" not in (tmp_path / "log").read_text()
        assert "Traceback" not in (tmp_path / "log").read_text()
