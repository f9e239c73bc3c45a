"""`python -m bench.spark_soak`: jobs that follow a running gateway for minutes, and what of theirs grows meanwhile.

Every message has an id of its own. State rows are what Spark itself says on its page of metrics; files and bytes are
counted where the jobs keep them; memory is that of all their processes.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Final

import httpx
import psutil
import typer
from rich.console import Console

import iotsphere
from iotsphere.drivers.spark.sinks.delta import LOG, DeltaLake
from tests.support.command_line import running
from tests.support.gateway import Gateway
from tests.support.servers import free_port
from tests.support.waiting import until

JOBS: Final = ("rollup", "lake")
DEVICES: Final = 50
AT_ONCE: Final = 20
MIB: Final = 2.0**20
STATE: Final = ("states-rowsTotal", "states-usedBytes")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a job. ``state`` and ``state_mib``: rows and memory of its state; ``kept`` and ``kept_mib``: files of its
    checkpoint; ``files``: live files of its table; ``log_files``: those of the table's log.
    """

    minute: float
    state: int
    state_mib: float
    kept: int
    kept_mib: float
    files: int
    log_files: int
    rss_mib: float


async def publish(gateway: Gateway, rate: float, seconds: float) -> int:
    """Publish readings with ids of their own, evenly, and return how many were acknowledged."""
    count, begun = 0, time.monotonic()
    async with iotsphere.connect(gateway.websocket, token=gateway.token) as client:
        while (at := time.monotonic() - begun) < seconds:
            if count >= at * rate:
                await asyncio.sleep(0.02)
                continue
            topics = [f"iotsphere/devices/d{(count + n) % DEVICES}/telemetry" for n in range(AT_ONCE)]
            await asyncio.gather(
                *(client.publish(topic, {"t": (count + n) % 997 / 10}) for n, topic in enumerate(topics))
            )
            count += AT_ONCE
    return count


async def soak(folder: Path, rate: float, minutes: float, lateness: int, console: Console) -> dict[str, list[Sample]]:
    """Run the jobs beside the gateway, look at them twice a minute, and check at the end that nothing is missing."""
    data = folder / "data"
    ports = {job: free_port() for job in JOBS}
    samples: dict[str, list[Sample]] = {job: [] for job in JOBS}
    async with Gateway(data) as gateway:
        follow = ("--follow", "--data", str(data), "--every", "5", "--json", "--conf", "spark.ui.enabled=true",
                  "--conf", "spark.sql.streaming.metricsEnabled=true", "--conf")  # fmt: skip
        words = {job: (*follow, f"spark.ui.port={port}") for job, port in ports.items()}
        async with (
            running("spark", "rollup", *words["rollup"], "--set", f"lateness_minutes={lateness}") as rollup,
            running("spark", "lake", *words["lake"], "--set", "compact_s=60") as lake,
        ):
            processes = {"rollup": rollup, "lake": lake}
            for job in JOBS:
                await until(partial(has_begun, data, job), f"{job} begins", 200)
            writing = asyncio.create_task(publish(gateway, rate, minutes * 60))
            begun = time.monotonic()
            while not writing.done():
                await asyncio.wait([writing], timeout=30)
                for job, process in processes.items():
                    sample = await look(data, job, ports[job], process.pid, (time.monotonic() - begun) / 60)
                    samples[job].append(sample)
                    console.print(f"{job:6} {sample}")
            written = await writing
            await until(lambda: lake_rows(data) == written, "the lake has all messages", 200)
            await asyncio.sleep(10)  # two batches more: the rollup reads as far as the lake did
            for process in processes.values():
                process.terminate()
                out, err = await process.communicate()
                if process.returncode:
                    raise RuntimeError(err.decode()[-4_000:])
                console.print(json.loads(out))
    check(data, written, console)
    return samples


def has_begun(data: Path, job: str) -> bool:
    """Whether a job's first batch is planned: its page of metrics answers from then on."""
    return any((data / "spark" / job).glob("*/offsets/0"))


async def look(data: Path, job: str, port: int, process: int, minute: float) -> Sample:
    """What a job holds at this moment."""
    async with httpx.AsyncClient() as client:
        gauges = (await client.get(f"http://127.0.0.1:{port}/metrics/json/", timeout=60)).json()["gauges"]
    rows, used = (sum(gauge["value"] for name, gauge in gauges.items() if name.endswith(end)) for end in STATE)
    sizes = [size for path in (data / "spark" / job).rglob("*") if (size := size_of(path)) is not None]
    files = log = 0
    if job == "lake" and (lake := DeltaLake(data / "lake")).exists:
        files, log = len(lake.paths()), len(list((lake.folder / LOG).iterdir()))
    mib = [round(each / MIB, 1) for each in (used, sum(sizes))]
    return Sample(round(minute, 1), rows, mib[0], len(sizes), mib[1], files, log, memory_of(process))


def size_of(path: Path) -> int | None:
    """The size of a file; None where it is none, or is gone again."""
    try:
        return path.stat().st_size if path.is_file() else None
    except FileNotFoundError:
        return None


def memory_of(process: int) -> float:
    """Resident memory of a process and all that it started, in MiB."""
    total = 0
    for each in (psutil.Process(process), *psutil.Process(process).children(recursive=True)):
        try:
            total += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return round(total / MIB, 1)


def lake_rows(data: Path) -> int:
    """How many rows the lake holds; 0 where there is none yet."""
    lake = DeltaLake(data / "lake")
    return int(lake.table().to_pyarrow_dataset().count_rows()) if lake.exists else 0


def check(data: Path, written: int, console: Console) -> None:
    """Every message is in the lake once, and was counted by the rollup once. Raises RuntimeError."""
    lake = DeltaLake(data / "lake").table().to_pyarrow_dataset()
    ids = lake.to_table(columns=["message_id"])["message_id"]
    with closing(sqlite3.connect(data / "analytics.db")) as kept:
        bodies = kept.execute("SELECT body FROM documents WHERE collection = 'rollups'").fetchall()
    days = [row["count"] for row in map(json.loads, chain.from_iterable(bodies)) if row["resolution"] == "1d"]
    held = (len(ids), len(ids.unique()), sum(days))
    console.print(f"{written:,} messages; lake: {held[0]:,} rows, {held[1]:,} ids; rollup of days: {held[2]:,}")
    if held != (written,) * 3:
        raise RuntimeError("the jobs do not hold what was acknowledged")


def told(samples: Sequence[Sample]) -> str:
    """The last look beside that at a third of the time."""
    early, late = astuple(samples[len(samples) // 3]), astuple(samples[-1])
    names = (
        "minute",
        "state rows",
        "their MiB",
        "files of the checkpoint",
        "its MiB",
        "files of the table",
        "files of its log",
        "MiB of memory",
    )
    return ", ".join(f"{name} {one:,} -> {other:,}" for name, one, other in zip(names, early, late, strict=True))


def main(
    *,
    rate: Annotated[float, typer.Option(help="Messages a second.")] = 200,
    minutes: Annotated[float, typer.Option(help="How long.")] = 10,
    lateness: Annotated[
        int, typer.Option(help="Minutes for which rollup waits for late readings, and holds them.")
    ] = 2,
) -> None:
    """Let rollup and lake follow a gateway, and say what grew between a third of the time and its end."""
    folder, console = Path(tempfile.mkdtemp(prefix="iotsphere-soak-")), Console(width=180)
    try:
        for job, samples in asyncio.run(soak(folder, rate, minutes, lateness, console)).items():
            console.print(f"{job}: {told(samples)}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    typer.run(main)
