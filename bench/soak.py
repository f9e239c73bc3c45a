"""Ten minutes at half the ceiling: memory and times minute by minute, while Redis rewrites its file under load."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from tests.support.servers import ask

from .part import Scale
from .programs import BenchFailed
from .report import faults, total_faults
from .run import Audience, Load, Result, measure
from .section import Section, short
from .subjects import Subject, iotsphere_on_redis

MINUTES = 10
CEILING_S = 5.0
WARMUP_S = 3.0
MIB = 2.0**20
HEADINGS = ("minute", "gateway MiB", "redis MiB", "delivery ms p50/p99/max", "the file of Redis")


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident memory in MiB at a moment, in seconds since the start, and whether Redis was rewriting its file."""

    at: float
    gateway: float
    redis: float
    rewriting: bool


def seconds(scale: Scale) -> float:
    """What this part takes."""
    return MINUTES * minute(scale) + WARMUP_S + CEILING_S + 8


def minute(scale: Scale) -> float:
    """The length of what the table calls a minute; less only to try this part out."""
    return 1.0 if scale.quick else 60.0


async def soak(scale: Scale, folder: Path) -> Section:
    """Find the ceiling, then stay at half of it; two rewrites of the file are forced on the way."""
    async with iotsphere_on_redis("everysec", "logged")(folder, 20) as subject:
        ceiling = await measure(subject, Load(0, CEILING_S if not scale.quick else 2.0), folder)
        length = MINUTES * minute(scale)
        load = Load(ceiling.rate / 2, length + WARMUP_S, warmup=WARMUP_S)
        samples: list[Sample] = []
        watching = asyncio.create_task(watch(subject, folder, samples, minute(scale)))
        try:
            run = await measure(subject, load, folder, Audience(1, minute(scale)))
        finally:
            watching.cancel()
            (ended,) = await asyncio.gather(watching, return_exceptions=True)
        if not isinstance(ended, asyncio.CancelledError):
            raise BenchFailed(f"the memory was not watched to the end: {ended}")
        await subject.check_ledger(ceiling.acked + run.acked)
    return table(run, samples, minute(scale), load.rate)


async def watch(subject: Subject, folder: Path, samples: list[Sample], length: float) -> None:
    """Sample the memory once a second or oftener, and ask for a rewrite in the third and in the seventh minute."""
    loop = asyncio.get_running_loop()
    begun = loop.time() + WARMUP_S
    port = redis_port(folder)
    wanted = [2.2 * length, 6.2 * length]
    while True:
        at = loop.time() - begun
        if wanted and at >= wanted[0]:
            wanted.pop(0)
            answer = await asyncio.to_thread(ask, port, "BGREWRITEAOF")
            if not answer.startswith(b"+"):
                raise BenchFailed(f"Redis does not rewrite its file: {answer.decode()}")
        rewriting = any(child.name() for child in psutil.Process(subject.pids["redis"]).children())
        memory = [psutil.Process(subject.pids[name]).memory_info().rss / MIB for name in ("gateway", "redis")]
        if at >= 0:
            samples.append(Sample(at, memory[0], memory[1], rewriting))
        await asyncio.sleep(min(1.0, length / 20))


def redis_port(folder: Path) -> int:
    """The port of the Redis that logs into the folder."""
    for line in (folder / "redis" / "server.log").read_text(errors="replace").splitlines():
        if "port=" in line:
            return int(line.partition("port=")[2].partition(".")[0])
    raise BenchFailed("the log of Redis does not say its port")


def table(run: Result, samples: Sequence[Sample], length: float, rate: float) -> Section:
    """A row a minute."""
    cells, memory = [], []
    for number, part in enumerate(run.slices[:MINUTES]):
        own = [each for each in samples if number * length <= each.at < (number + 1) * length]
        if not own:
            raise BenchFailed(f"no sample of the memory in minute {number + 1}")
        memory.append(max(each.gateway for each in own))
        cells.append(
            (
                f"{number + 1}",
                f"{memory[-1]:,.0f}",
                f"{max(each.redis for each in own):,.0f}",
                " / ".join(short(part[f"{name}_ms"]) for name in ("p50", "p99", "max")),
                "rewritten" if any(each.rewriting for each in own) else "",
            )
        )
    if len(cells) < 3:
        raise BenchFailed(f"only {len(cells)} minutes were told")
    usual = median(part["p99_ms"] for part in run.slices[:MINUTES])
    worst = max(part["p99_ms"] for part in run.slices[:MINUTES])
    return Section(
        "soak",
        f"{len(cells)} minutes at {rate:,.0f} messages/s, half the ceiling",
        HEADINGS,
        tuple(cells),
        (
            f"{run.delivered:,} messages; lost / reordered / duplicated {faults([run])}.",
            f"Memory of the gateway in the last minute: {memory[-1] / memory[1]:.2f} × that of the second.",
            f"p99 of the worst minute {short(worst)} ms, of the median minute {short(usual)} ms.",
            "Redis keeps the whole log of the week in memory, so its memory grows with the messages.",
        ),
        {"soak/memory": memory[-1] / memory[1], "soak/p99": worst / usual, "faults": total_faults([run])},
        failed=not run.is_clean,
        others=(run.others / run.seconds,),
        raw={"run": run.as_json(), "memory": memory},
    )
