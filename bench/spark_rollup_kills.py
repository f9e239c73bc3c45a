"""`python -m bench.spark_rollup_kills`: kill -9 the driver of the rollup's stream again and again, and add up MongoDB.

Where it is killed: ``writing`` is after rows of a batch reached the database and before Spark has written down that the
batch is done; ``anywhere`` is at some moment of a batch.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import pymongo
import typer
from rich.console import Console

SPOTS: Final = ("writing", "anywhere")
SECONDS: Final = 400
ROOT: Final = Path(__file__).parent.parent
Client = pymongo.MongoClient[dict[str, Any]]


class Sums(NamedTuple):
    """What the rows of minutes add up to. ``alike``: whether those of hours and days do so too."""

    rows: int
    readings: int
    total: float
    alike: bool


def survive(data: Path, database: str, folder: Path, spots: Sequence[str], per_batch: int) -> Sums:
    """Run the stream, kill it at each of the spots, let it end at last, and add up. Raises RuntimeError."""
    kill(data, database, folder, spots, per_batch)
    with _stream(data, database, folder, per_batch) as child:
        printed, told = child.communicate(timeout=SECONDS)
        if child.returncode != 0 or '"ended": "done"' not in printed:
            raise RuntimeError(printed + told[-4_000:])
    return sums_in(database)


def kill(data: Path, database: str, folder: Path, spots: Sequence[str], per_batch: int) -> None:
    """Run the stream and kill it at each of the spots. Raises RuntimeError."""
    rng = random.Random(1)

    def inside() -> bool:
        """Whether more is counted than all batches that are done can have held: the rest is of one that is not."""
        return sums_in(database).readings > _batches(folder) * per_batch

    for spot in spots:
        with (
            Client(database) as client,
            client.get_default_database().watch(max_await_time_ms=200) as changes,
            _stream(data, database, folder, per_batch) as child,
        ):
            try:
                while not _is_at(spot, child, changes, rng, inside):
                    os.killpg(child.pid, signal.SIGCONT)
            finally:
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


def sums_in(database: str) -> Sums:
    """Add up the rows of the job in a MongoDB."""
    adding = {"_id": "$resolution", "rows": {"$sum": 1}, "readings": {"$sum": "$count"}, "total": {"$sum": "$sum"}}
    with Client(database) as client:
        found = {one["_id"]: one for one in client.get_default_database()["rollups"].aggregate([{"$group": adding}])}
    wanted = [(one["readings"], one["total"]) for one in found.values()]
    minutes = found.get("1m", {"rows": 0, "readings": 0, "total": 0.0})
    alike = set(found) == {"1m", "1h", "1d"} and len(set(wanted)) == 1
    return Sums(minutes["rows"], minutes["readings"], minutes["total"], alike)


def _stream(data: Path, database: str, folder: Path, per_batch: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "iotsphere", "spark", "rollup", "--data", str(data), "--database", database]
    chosen = ["--checkpoint", str(folder), "--source", f"maxMessagesPerBatch={per_batch}", "--every", "0", "--json"]
    return subprocess.Popen(
        [*command, *chosen, "--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _is_at(
    spot: str, child: subprocess.Popen[str], changes: Any, rng: random.Random, inside: Callable[[], bool]
) -> bool:
    """Wait until a row is set, freeze the driver, and tell whether it is at the spot."""
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        if child.poll() is not None:
            raise RuntimeError(f"the stream ended before it was killed: {child.communicate()[1][-4_000:]}")
        if changes.try_next() is None:
            continue
        if spot == "anywhere":
            time.sleep(rng.random() * 2)
            return True
        os.killpg(child.pid, signal.SIGSTOP)
        return inside()
    raise RuntimeError("the stream wrote nothing in time")


def _batches(folder: Path) -> int:
    return len([path for path in folder.glob("*/commits/*") if path.name.isdigit()])


def main(
    kills: Annotated[int, typer.Option(help="How often the driver is killed.")] = 10,
    messages: Annotated[int, typer.Option(help="Messages in the log.")] = 100_000,
) -> None:
    """Fill a log, kill the rollup's stream into a MongoDB, and check that each message is counted once."""
    from tests.support.mongo import NAME, single  # noqa: PLC0415  tests are no part of the package
    from tests.support.telemetry import fill_sqlite  # noqa: PLC0415

    folder = Path(tempfile.mkdtemp(prefix="iotsphere-kills-"))
    try:
        fill_sqlite(folder / "data", messages)
        with single(folder / "mongo") as server:
            database = f"mongodb://127.0.0.1:{server.port}/kills?replicaSet={NAME}"
            spots = [SPOTS[number % len(SPOTS)] for number in range(kills)]
            per_batch = max(1, messages // (kills * 4))
            sums = survive(folder / "data", database, folder / "checkpoint", spots, per_batch)
        Console().print(f"{kills} kills, {messages:,} messages: {sums}")
        if (sums.readings, sums.total, sums.alike) != (messages, messages * (messages - 1) / 2, True):
            raise typer.Exit(1)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    typer.run(main)
