"""`python -m bench.spark_kills`: kill -9 the driver of the lake's stream again and again, and count what is in the lake.

Where it is killed: ``written`` is after a worker wrote a file of a batch that is not committed; ``committed`` is after
the table's commit and before Spark has written down that the batch is done; ``anywhere`` is at some moment.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import duckdb
import typer
from deltalake import DeltaTable
from rich.console import Console

SPOTS: Final = ("written", "committed", "anywhere")
SECONDS: Final = 240
WHOLE: Final = 100_000  # messages in a batch of the last run, which has nothing to fear
ROOT: Final = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Held:
    """What the lake holds: rows, different samples, different places of the log, and files beside the table."""

    rows: int
    samples: int
    places: int
    strays: int


def survive(log: str, folder: Path, spots: Sequence[str], per_batch: int, seed: int = 1) -> Held:
    """Run the stream, kill it at each of the spots, let it end at last, and count. Raises RuntimeError."""
    kill(log, folder, spots, per_batch, seed)
    with _stream(log, folder, WHOLE) as child:
        printed, told = child.communicate(timeout=4 * SECONDS)
        if child.returncode != 0 or '"ended"' not in printed:
            raise RuntimeError(told[-4_000:])
    return held_in(folder / "lake")


def kill(log: str, folder: Path, spots: Sequence[str], per_batch: int, seed: int = 1) -> None:
    """Run the stream and kill it at each of the spots. Raises RuntimeError."""
    rng = random.Random(seed)
    lake = folder / "lake"
    for spot in spots:
        with _stream(log, folder, per_batch) as child:
            try:
                _await(spot, child, lake, rng)
            finally:
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


def held_in(lake: Path) -> Held:
    """Count with DuckDB what a lake holds."""
    table = DeltaTable(str(lake))
    with duckdb.connect() as connection:
        connection.register("lake", table.to_pyarrow_dataset())
        sql = """SELECT count(*), count(DISTINCT (message_id, metric, sample)),
                 count(DISTINCT (domain, "partition", "offset", metric, sample)) FROM lake"""
        (rows, samples, places) = connection.execute(sql).fetchall()[0]
    strays = len(list(lake.glob("date=*/*.parquet"))) - len(table.file_uris())
    return Held(rows, samples, places, strays)


def _stream(log: str, folder: Path, per_batch: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.spark_stream", log, str(folder / "lake"), str(folder / "checkpoint")]
    return subprocess.Popen(
        [*command, "--per-batch", str(per_batch)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _await(spot: str, child: subprocess.Popen[str], lake: Path, rng: random.Random) -> None:
    """Wait until the stream is at a spot, beyond what it did before it was started."""
    before = _files(lake)
    ends = time.monotonic() + SECONDS
    batches = rng.randint(1, 3)

    def written() -> bool:
        """Whether there are more files than the batches that are committed made."""
        data, commits = _files(lake)
        fresh_commits = len(commits - before[1])
        return fresh_commits >= batches - 1 and len(data - before[0]) > fresh_commits * 2

    while time.monotonic() < ends:
        if child.poll() is not None:
            raise RuntimeError(f"the stream ended before it was killed: {child.communicate()[1][-4_000:]}")
        data, commits = _files(lake)
        if spot == "written" and written():
            # Frozen, it stays there; it may have committed since that look.
            os.killpg(child.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if written():
                return
            os.killpg(child.pid, signal.SIGCONT)
        if spot == "committed" and len(commits - before[1]) >= batches:
            return
        if spot == "anywhere" and data - before[0]:
            time.sleep(rng.random() * 3)
            return
        time.sleep(0.002)
    raise RuntimeError("the stream wrote nothing in time")


def _files(lake: Path) -> tuple[set[str], set[str]]:
    commits = {path.name for path in (lake / "_delta_log").glob("[0-9]*.json")}
    # The first commit makes the table and holds no row.
    return {path.name for path in lake.glob("date=*/*.parquet")}, commits - {f"{0:020d}.json"}


def main(
    kills: Annotated[int, typer.Option(help="How often the driver is killed.")] = 10,
    messages: Annotated[int, typer.Option(help="Messages in the log.")] = 200_000,
    redis: Annotated[str, typer.Option(help="redis://… of an empty server; else a SQLite log is made.")] = "",
) -> None:
    """Fill a log, kill the stream into the lake, and check that each message is there once."""
    from tests.support.telemetry import fill_redis, fill_sqlite  # noqa: PLC0415  tests are no part of the package

    folder = Path(tempfile.mkdtemp(prefix="iotsphere-kills-"))
    console = Console()
    try:
        port = int(redis.rpartition(":")[2].partition("/")[0]) if redis else 0
        log = fill_redis(port, messages) if redis else fill_sqlite(folder / "data", messages)
        spots = [SPOTS[number % len(SPOTS)] for number in range(kills)]
        held = survive(log, folder, spots, per_batch=max(1, messages // (kills * 5)))
        console.print(f"{kills} kills, {messages:,} messages: {held}")
        if not held.rows == held.samples == held.places == messages:
            raise typer.Exit(1)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    typer.run(main)
