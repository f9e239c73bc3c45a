"""`python -m bench.spark_lake`: the lake as a stream from Redis Streams, and as a batch of growing size."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import pyarrow.parquet as pq
import typer
from matplotlib.figure import Figure
from rich.console import Console

from iotsphere.drivers.spark.jobs import Run
from iotsphere.drivers.spark.jobs.lake import JOB
from iotsphere.drivers.spark.session import open_session
from tests.support.readings import Plan, pieces
from tests.support.servers import redis
from tests.support.telemetry import fill_redis

from .spark_cost import Cost, cost_of

ROOT: Final = Path(__file__).parent.parent
TARGET: Final = 35_000
SIZES: Final = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)


@dataclass(frozen=True, slots=True)
class Streamed:
    """``rate``: rows a second from the end of the first batch on, which starts the workers, to the end of the last.

    ``cpu``: CPU seconds for a million rows over the same time, of all processes but Redis.
    """

    rows: int
    batches: int
    rate: float
    cpu: float


def stream(folder: Path, messages: int, per_batch: int) -> Streamed:
    """Write what a Redis log holds into a lake, with upkeep. Raises RuntimeError when it fails or loses a row."""
    with redis(folder / "redis") as server:
        log = fill_redis(server.port, messages, devices=1_000)
        command = [sys.executable, "-m", "bench.spark_stream", log, str(folder / "lake"), str(folder / "checkpoint")]
        result = subprocess.run(
            [*command, "--per-batch", str(per_batch), "--compact-s", "30"],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if result.returncode != 0:
        raise RuntimeError(result.stderr[-4_000:])
    told = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    batches = [facts for facts in told if "batch" in facts]
    rows = sum(facts["rows"] for facts in batches)
    if rows != messages:
        raise RuntimeError(f"{messages} messages became {rows} rows")
    later = sum(facts["rows"] for facts in batches[1:])
    wall, cpu = (batches[-1][name] - batches[0][name] for name in ("at", "cpu"))
    return Streamed(rows, len(batches), later / wall, cpu / later * 1e6)


def grow(folder: Path, sizes: Sequence[int]) -> list[tuple[int, Cost]]:
    """What batches of growing size cost, the first after a small one that starts everything."""
    spark = open_session("bench", "local[2]")
    settings = {option.name: option.default for option in JOB.options}
    found = []
    for size in (10_000, *sizes):
        source = folder / f"log-{size}"
        source.mkdir()
        for number, fleet in enumerate(pieces(Plan(readings=size, devices=1_000, period_s=10.0), 1_000_000)):
            pq.write_table(fleet.rows, source / f"{number:05d}.parquet")
        rows = spark.read.parquet(str(source))
        run = Run(settings, f"bench-{size}", False, folder / f"lake-{size}", database="")

        def work(frame: object = rows, into: Run = run) -> None:
            JOB.write(JOB.transform(frame, into), into, 0)  # type: ignore[arg-type]  # bound now, not when it is called

        found.append((size, cost_of(work)))
        shutil.rmtree(source)
        shutil.rmtree(run.output)
    spark.stop()
    return found[1:]


def plot(costs: Sequence[tuple[int, Cost]], path: Path) -> None:
    """Draw seconds over rows, beside a line for costs that grow as rows do."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    sizes = [size for size, _ in costs]
    walls = [cost.wall for _, cost in costs]
    axes.loglog(sizes, walls, "o-", label="by the clock")
    axes.loglog(sizes, [cost.cpu for _, cost in costs], "s-", label="CPU, all processes")
    axes.loglog(sizes, [walls[-1] * size / sizes[-1] for size in sizes], "--", color="gray", label="as rows grow")
    axes.set_xlabel("readings in one batch")
    axes.set_ylabel("seconds")
    axes.set_title("Readings into the lake, with upkeep")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main(
    *,
    messages: Annotated[int, typer.Option(help="Messages of one reading in the stream; 0 for no stream.")] = 1_000_000,
    per_batch: Annotated[int, typer.Option(help="Messages a batch.")] = 200_000,
    most: Annotated[int, typer.Option(help="Readings of the largest batch; 0 for no growth.")] = 30_000_000,
    picture: Annotated[Path, typer.Option(help="Where the plot goes.")] = ROOT / "bench" / "results" / "spark-lake.svg",
) -> None:
    """Measure the stream against its target, and how the cost of a batch grows."""
    folder = Path(tempfile.mkdtemp(prefix="iotsphere-lake-"))
    console = Console()
    try:
        if messages:
            told = stream(folder, messages, per_batch)
            console.print(
                f"stream from Redis: {told.rate:,.0f} rows/s over {told.batches} batches, {told.cpu:.1f} CPU s per million; "
                f"target {TARGET:,}"
            )
        if costs := grow(folder, [size for size in SIZES if size <= most]) if most else []:
            for size, cost in costs:
                console.print(f"batch of {size:,}: {cost.told(size)}")
            plot(costs, picture)
            console.print(f"plot: {picture}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    typer.run(main)
