"""Spark: the lake and the rollup as streams, and the rollup of a day beside DuckDB on the same files."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from iotsphere.drivers.spark.session import open_session
from tests.support.mongo import NAME, single

from .part import Scale
from .programs import BenchFailed
from .section import Section
from .spark_cost import Cost
from .spark_lake import Streamed, stream
from .spark_rollup import by_duckdb, in_batch, in_stream, run_to, write_fleet

MESSAGES = 2_000_000
PER_BATCH = 400_000
ROLLED = 1_000_000
WHOLE = 5_000_000
QUICKLY = 20  # so much less of everything in a quick round
HEADINGS = ("what", "rows/s", "CPU s per million rows", "beside DuckDB")


@dataclass(frozen=True, slots=True)
class Rolled:
    """What the rollup costs: ``rows`` in stream, ``whole`` in a batch, and DuckDB in the same batch."""

    rows: int
    streamed: Cost
    whole: int
    batch: Cost
    peer: Cost

    @property
    def against_peer(self) -> float:
        """How many times as long as DuckDB it takes."""
        return self.batch.wall / self.peer.wall


def seconds(scale: Scale) -> float:
    """What this part takes."""
    return 75 if scale.quick else 400


async def spark(scale: Scale, folder: Path) -> Section:
    """Measure both jobs, one after the other."""
    return await asyncio.to_thread(both, folder, QUICKLY if scale.quick else 1)


def both(folder: Path, part: int) -> Section:
    """The same, at one in so many messages. Raises BenchFailed."""
    try:
        lake = stream(folder / "lake", MESSAGES // part, PER_BATCH // part)
    except RuntimeError as error:
        raise BenchFailed(str(error)) from error
    return table(lake, rolled(folder / "rollup", ROLLED // part, WHOLE // part), comparable=part == 1)


def rolled(folder: Path, streamed: int, whole: int) -> Rolled:
    """The rollup of made-up fleets, each measured after a smaller one that starts everything."""
    folder.mkdir()
    session = open_session("bench", "local[2]", {"spark.sql.shuffle.partitions": "4"}, folder / "spark")
    try:
        for name, rows, piece in (("warm", 40_000, 20_000), ("batch", whole, 1_000_000), ("stream", streamed, 100_000)):
            write_fleet(folder / name, rows, piece)
        run = run_to("", following=False)
        in_batch(session, str(folder / "warm"), run)
        batch, peer = in_batch(session, str(folder / "batch"), run), by_duckdb(str(folder / "batch"))
        with single(folder / "mongo") as server:
            run = run_to(f"mongodb://127.0.0.1:{server.port}/bench?replicaSet={NAME}", following=True)
            in_stream(session, str(folder / "warm"), run, folder / "warm-checkpoint")
            cost = in_stream(session, str(folder / "stream"), run, folder / "checkpoint")
    finally:
        session.stop()
    return Rolled(streamed, cost, whole, batch, peer)


def table(lake: Streamed, found: Rolled, *, comparable: bool) -> Section:
    """Three rows. ``comparable``: there was enough of it to say something about the targets."""
    rate = found.rows / found.streamed.wall
    cells = (
        ("lake, as a stream from Redis", f"{lake.rate:,.0f}", f"{lake.cpu:.1f}", "—"),
        ("rollup, as a stream into MongoDB", f"{rate:,.0f}", f"{found.streamed.per_million(found.rows):.1f}", "—"),
        (
            f"rollup, a batch of {found.whole:,}",
            f"{found.whole / found.batch.wall:,.0f}",
            f"{found.batch.per_million(found.whole):.1f}",
            f"{found.against_peer:.1f} times as long",
        ),
    )
    figures = {"spark/lake": lake.rate, "spark/rollup": rate, "spark/duckdb": found.against_peer} if comparable else {}
    notes = (
        "Each was measured after a smaller one that started everything; on two cores, which also ran Redis and MongoDB.",
        f"Every one of the {lake.rows:,} messages is in the lake once.",
    )
    return Section("spark", "Telemetry in Spark", HEADINGS, cells, notes, figures)
