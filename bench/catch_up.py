"""A reader far behind: how fast it catches up, and what the others feel of it."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path

from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.support.gateway import Gateway

from .part import Scale
from .programs import BenchFailed
from .report import faults, total_faults
from .run import CONNECTS_WITHIN_S, Audience, Heard, Listening, Load, Result, device_list, generate, measure
from .section import Section, percentiles
from .subjects import Subject, iotsphere_on_redis

BEHIND = 1_000_000
BEHIND_QUICK = 60_000
FILTER = "iotsphere/devices/+/telemetry/missed"
RATE = 2_000.0
FILL_WITHIN_S = 300.0
HEADINGS = ("who", "messages/s", "delivery ms p50/p99/p99.9", "lost / reordered / duplicated")


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The reader that was behind: messages, the seconds from its request to the last of them, and the check."""

    messages: int
    seconds: float
    heard: Heard


def seconds(scale: Scale) -> float:
    """What this part takes."""
    return _behind(scale) / 20_000 + 2 * _live(scale) + 6


def _behind(scale: Scale) -> int:
    return BEHIND_QUICK if scale.quick else BEHIND


def _live(scale: Scale) -> float:
    return scale.seconds if scale.quick else 2 * scale.seconds


async def catch_up(scale: Scale, folder: Path) -> Section:
    """Fill the log past a cursor; then measure the others before, and while the reader comes back with its cursor."""
    async with iotsphere_on_redis("everysec", "logged")(folder, 20) as subject:
        cursor = await cursor_now(subject.running)
        filled, acked_file = await fill(subject, _behind(scale), folder)
        load = Load(RATE, _live(scale), warmup=0.5)
        usual = await measure(subject, load, folder)
        meanwhile, reader = await asyncio.gather(
            measure(subject, load, folder), late_reader(subject, cursor, (filled, acked_file), folder, after=1.5)
        )
        await subject.check_ledger(filled + usual.acked + meanwhile.acked)
    return table(usual, meanwhile, reader)


async def cursor_now(gateway: Gateway) -> str:
    """Where a client stands that subscribes now. Raises BenchFailed when it may not."""
    async with connect(
        gateway.websocket,
        subprotocols=[Subprotocol("iotsphere.v1.json")],
        additional_headers={"Authorization": f"Bearer {gateway.token}"},
        proxy=None,
    ) as client:
        await client.send(json.dumps({"type": "subscribe", "ref": 1, "filters": [FILTER], "from": "live"}))
        answer = json.loads(await client.recv())
    if "cursor" not in answer:
        raise BenchFailed(f"no cursor for a subscription: {answer}")
    return str(answer["cursor"])


async def fill(subject: Subject, count: int, folder: Path) -> tuple[int, Path]:
    """Publish so many messages that nobody reads; how many were acknowledged, and the file that says which."""
    devices, acked = device_list(folder / "devices-missed", [subject]), folder / "acked-missed"
    load = Load(0, FILL_WITHIN_S, warmup=0, suffix="telemetry/missed", count=count)
    program = await generate(subject, load, devices, acked)
    try:
        await program.answer(within=CONNECTS_WITHIN_S)
        answer = await program.answer(within=FILL_WITHIN_S + 60)
        await program.wait()
    finally:
        await program.end()
    return int(answer["acked"]), acked


async def late_reader(subject: Subject, cursor: str, missed: tuple[int, Path], folder: Path, after: float) -> CaughtUp:
    """Come back with the cursor, ``after`` seconds from now, and read all that was missed."""
    await asyncio.sleep(after)
    filled, acked = missed
    devices = device_list(folder / "devices-late", [subject])
    asked = time.monotonic_ns()
    received = folder / "received-late"
    listening = await Listening.start(subject, devices, received, Audience(), "--filter", FILTER, "--from", cursor)
    try:
        heard = await listening.hear(filled, [acked])
    finally:
        await listening.program.end()
    return CaughtUp(heard.answer["distinct"], (heard.answer["last_ns"] - asked) / 1e9, heard)


def table(usual: Result, meanwhile: Result, reader: CaughtUp) -> Section:
    """The reader, and the others before and meanwhile."""
    found, missing = reader.heard.answer, reader.heard.missing
    wrong = missing.lost + missing.phantom + found["reordered"] + found["duplicated"] + found["foreign"]
    rate = reader.messages / reader.seconds
    behind = f"the reader, {reader.messages:,} behind"
    cells = (
        (behind, f"{rate:,.0f}", "—", f"{missing.lost} / {found['reordered']} / {found['duplicated']}"),
        ("another client, before", f"{usual.rate:,.0f}", percentiles(usual.delivery), faults([usual])),
        ("another client, meanwhile", f"{meanwhile.rate:,.0f}", percentiles(meanwhile.delivery), faults([meanwhile])),
    )
    ratio = meanwhile.delivery["p99"] / usual.delivery["p99"]
    far = reader.messages >= BEHIND  # a short way says nothing about the long one
    figures = {"catch-up/rate": rate, "catch-up/others": ratio} if far else {}
    figures["faults"] = wrong + total_faults([usual, meanwhile])
    verdicts = (not wrong, usual.is_clean, meanwhile.is_clean)
    return Section(
        "catch-up",
        "Catching up",
        HEADINGS,
        cells,
        (f"It was level again after {reader.seconds:.1f} s; the others' p99 meanwhile was {ratio:.1f} × their usual.",),
        figures,
        frozenset(number for number, verdict in enumerate(verdicts) if not verdict),
        not all(verdicts),
        (usual.others / usual.seconds,),
        {"reader": found, "usual": usual.as_json(), "meanwhile": meanwhile.as_json()},
    )
