"""One message to a hundred clients: what the gateway needs for it, and what `websockets.broadcast` needs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import free_port

from .bitmaps import write_acked
from .part import Scale
from .programs import HERE, Program
from .report import faults, total_faults
from .run import Audience, Listening, Load, Result, measure
from .section import Section, short
from .subjects import Subject, iotsphere_on_redis, strangers

CLIENTS = 100
RATE = 1_000.0
BURST = 10
# 100 clients are more than broadcast() serves at RATE; what a delivery costs it does not depend on the rate.
BROADCAST_RATE = 300.0
HEADINGS = (
    "what",
    "clients",
    "messages/s",
    "deliveries/s",
    "p99 ms",
    "CPU of one core",
    "lost / reordered / duplicated",
)


@dataclass(frozen=True, slots=True)
class Broadcast:
    """What `broadcast()` did: deliveries, CPU seconds for them, and faults."""

    delivered: int
    seconds: float
    cpu: float
    p99: float
    lost: int
    reordered: int
    duplicated: int


def seconds(scale: Scale) -> float:
    """What this part takes."""
    return 4 * (scale.seconds + 1) + 4


async def fan_out(scale: Scale, folder: Path) -> Section:
    """Messages evenly and in bursts of ten, to one client and to a hundred."""
    even = Load(RATE, scale.seconds, warmup=0.5)
    burst = Load(RATE, scale.seconds, warmup=0.5, tick_us=int(1e6 * BURST / RATE))
    async with iotsphere_on_redis("everysec", "logged")(folder, 20) as subject:
        runs = [
            (f"{RATE:,.0f}/s", CLIENTS, await measure(subject, even, folder, Audience(CLIENTS))),
            (f"{BURST} at a time", 1, await measure(subject, burst, folder)),
            (f"{BURST} at a time", CLIENTS, await measure(subject, burst, folder, Audience(CLIENTS))),
        ]
        await subject.check_ledger(sum(run.acked for _, _, run in runs))
    peer = await broadcast(scale.seconds, folder)
    return table([run for _, _, run in runs], [(f"gateway, {title}", clients) for title, clients, _ in runs], peer)


def table(runs: list[Result], titles: list[tuple[str, int]], peer: Broadcast) -> Section:
    """``runs``: evenly to all clients, in bursts to one, in bursts to all."""
    even, one, many = runs
    more = max(many.cpu["gateway"] - one.cpu["gateway"], 1e-9)
    ours, theirs = (many.delivered - one.delivered) / more, peer.delivered / peer.cpu
    cells = [
        (
            title,
            f"{clients}",
            f"{run.rate:,.0f}",
            f"{run.delivered / run.seconds:,.0f}",
            short(run.delivery["p99"]),
            f"{run.share('gateway'):.0%}",
            faults([run]),
        )
        for (title, clients), run in zip(titles, runs, strict=True)
    ]
    rate = peer.delivered / peer.seconds
    cells.append(
        (
            f"`broadcast()`, {BURST} at a time",
            f"{CLIENTS}",
            f"{rate / CLIENTS:,.0f}",
            f"{rate:,.0f}",
            short(peer.p99),
            f"{peer.cpu / peer.seconds:.0%}",
            f"{peer.lost} / {peer.reordered} / {peer.duplicated}",
        )
    )
    note = (
        f"When {BURST} frames wait, a core delivers {ours:,.0f} messages a second to clients beyond the first, and "
        f"`broadcast()` {theirs:,.0f}: {ours / theirs:.1f} times as many. With taking in, checking and storing counted as "
        f"well, the gateway delivers {many.delivered / many.cpu['gateway']:,.0f}."
    )
    figures = {
        "fan-out/share": 100 * even.share("gateway"),
        "fan-out/broadcast": ours / theirs,
        "faults": total_faults(runs),
    }
    clean = all(run.is_clean for run in runs)
    return Section(
        "fan-out",
        f"Fan-out to {CLIENTS} clients",
        HEADINGS,
        tuple(cells),
        (note,),
        figures,
        frozenset(number for number, run in enumerate(runs) if not run.is_clean),
        not clean,
        tuple(run.others / run.seconds for run in runs),
        [run.as_json() for run in runs],
    )


async def broadcast(length: float, folder: Path, clients: int = CLIENTS) -> Broadcast:
    """Let `broadcast()` send bursts to clients which check them as they check the gateway."""
    port = free_port()
    server = await Program.run([sys.executable, str(HERE / "stock" / "broadcast.py"), str(port)], "broadcast")
    try:
        await server.answer(within=30)
        listener = ("--protocol", "envelopes", "--host", "127.0.0.1", "--port", str(port))
        subject = Subject(("127.0.0.1", port), listener, strangers(1), {})
        devices = folder / "broadcast-devices"
        devices.write_text(f"{subject.credentials[0].device_id} - -\n")
        listening = await Listening.start(subject, devices, folder / "broadcast-received", Audience(clients))
        try:
            await server.tell(f"go {BROADCAST_RATE} {BURST} {length}")
            started = await server.answer(within=30)
            await listening.program.tell(f"from {started['at']}")
            answer = await server.answer(within=length + 60)
            acked = folder / "broadcast-acked"
            write_acked(acked, [answer["sent"]])
            heard = await listening.hear(answer["sent"], [acked])
        finally:
            await listening.program.end()
    finally:
        await server.end()
    found = heard.answer
    return Broadcast(
        found["distinct"],
        (found["last_ns"] - started["at"]) / 1e9,
        answer["cpu_seconds"],
        found["p99_ms"],
        heard.missing.lost,
        found["reordered"],
        found["duplicated"],
    )
