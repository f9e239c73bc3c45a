"""`python -m bench.spark_rollup`: the rollup in batch beside DuckDB on the same files, and in stream into MongoDB.

With `--skew`, a fleet of which one device sends nine readings in ten runs beside an even one, by turns.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Final, NamedTuple

import duckdb
import pyarrow.parquet as pq
import typer
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from iotsphere.drivers.spark.jobs import Run
from iotsphere.drivers.spark.jobs.rollup import JOB
from iotsphere.drivers.spark.schema import SPARK_SCHEMA
from iotsphere.drivers.spark.session import open_session
from tests.support.mongo import NAME, single
from tests.support.readings import Plan, pieces

from .spark_cost import Cost, cost_of

METRICS: Final = ("temperature", "humidity", "battery", "energy")
# The same rows, as DuckDB would be asked for them; without the growth of counters and the marks.
PEER: Final = """
WITH once AS (SELECT * FROM read_parquet('{files}') WHERE value IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY message_id, metric, sample ORDER BY "offset") = 1)
SELECT device_id, metric, date_trunc('{unit}', event_time) AS start, count(*), sum(value), min(value), max(value),
    avg(value), arg_max(value, (event_time, "offset", sample)), quantile_disc(value, [0.5, 0.95, 0.99])
FROM once GROUP BY ALL"""


def run_to(database: str, *, following: bool) -> Run:
    """A run of the job that writes into a database."""
    return Run(JOB.settings({"keep_minutes_days": "0"}), "bench", following, Path(), database)


def in_batch(spark: SparkSession, files: str, run: Run) -> Cost:
    """All rows of all three resolutions, computed and counted but kept nowhere, as with DuckDB."""
    readings = spark.read.schema(SPARK_SCHEMA).parquet(files)
    return cost_of(lambda: JOB.transform(readings, run).write.format("noop").mode("overwrite").save())


def by_duckdb(files: str) -> Cost:
    """The same by DuckDB on as many threads."""

    def work() -> None:
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'; SET threads = 2")
            for unit in ("minute", "hour", "day"):
                query = PEER.format(files=f"{files}/*.parquet", unit=unit)
                connection.execute(f"CREATE OR REPLACE TABLE rows AS {query}")

    return cost_of(work)


def in_stream(spark: SparkSession, files: str, run: Run, checkpoint: Path, batches: list[float] | None = None) -> Cost:
    """A file a batch, into the database of the run. ``batches``: gets the seconds of each batch."""

    def keep(frame: DataFrame, batch: int) -> None:
        JOB.write(frame, run, batch)

    def work() -> None:
        readings = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1).parquet(files)
        stream = JOB.transform(readings, run).writeStream.outputMode(JOB.mode).foreachBatch(keep)
        query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        if batches is not None:
            times = (told.durationMs["triggerExecution"] for told in query.recentProgress if told.numInputRows)
            batches.extend(time / 1_000 for time in times)

    return cost_of(work)


class Turns(NamedTuple):
    """What the streams of one fleet cost, and the seconds of their batches but the first of each, which starts things."""

    costs: list[Cost]
    batches: list[float]

    def told(self, rows: int) -> str:
        """For people."""
        wall, cpu = (median(values) for values in zip(*((cost.wall, cost.cpu) for cost in self.costs), strict=True))
        batch = f"{median(self.batches):.1f} s a batch ({min(self.batches):.1f}-{max(self.batches):.1f})"
        return f"{batch}; {Cost(wall, cpu).told(rows)}"


def by_turns(spark: SparkSession, folder: Path, fleets: Sequence[str], port: int, rounds: int) -> dict[str, Turns]:
    """Stream each fleet of a folder once a round, so that all of them meet the same machine."""
    found = {fleet: Turns([], []) for fleet in fleets}
    for number in range(rounds):
        for fleet in fleets:
            name = f"{fleet}-{number}"
            run = run_to(f"mongodb://127.0.0.1:{port}/{name}?replicaSet={NAME}", following=True)
            batches: list[float] = []
            cost = in_stream(spark, str(folder / fleet), run, folder / f"checkpoint-{name}", batches)
            found[fleet].costs.append(cost)
            found[fleet].batches.extend(batches[1:] or batches)
    return found


def main(
    *,
    rows: Annotated[int, typer.Option(help="Readings in batch; 0 for no batch.")] = 5_000_000,
    streamed: Annotated[int, typer.Option(help="Readings in stream; 0 for no stream.")] = 1_000_000,
    devices: int = 500,
    period_s: Annotated[float, typer.Option(help="Seconds between two messages of a device.")] = 5.0,
    skew: Annotated[bool, typer.Option(help="Beside it, one device sends nine in ten of the readings.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="How often each stream is run, by turns.")] = 1,
) -> None:
    """Measure, and say what was found."""
    console, folder = Console(width=150), Path(tempfile.mkdtemp(prefix="iotsphere-rollup-"))
    try:
        spark = open_session("bench", "local[2]", {"spark.sql.shuffle.partitions": "4"}, folder / "spark")
        write_fleet(folder / "warm", 40_000, 20_000, devices, period_s)
        if rows:
            write_fleet(folder / "batch", rows, 1_000_000, devices, period_s)
            in_batch(spark, str(folder / "warm"), run_to("", following=False))
            ours = in_batch(spark, str(folder / "batch"), run_to("", following=False))
            peer = by_duckdb(str(folder / "batch"))
            console.print(f"batch of {rows:,}: {ours.told(rows)}")
            console.print(f"DuckDB on the same: {peer.told(rows)}; {ours.wall / peer.wall:.1f} times as long here")
        if streamed:
            fleets = ("even", "skewed") if skew else ("even",)
            for fleet in fleets:
                write_fleet(folder / fleet, streamed, 100_000, devices, period_s, skew=fleet == "skewed")
            with single(folder / "mongo") as server:
                by_turns(spark, folder, ("warm",), server.port, 1)
                found = by_turns(spark, folder, fleets, server.port, rounds)
            console.print(f"streams of {streamed:,} into MongoDB, 100,000 a batch, the middle of {rounds}:")
            for fleet in fleets:
                console.print(f"{fleet:6}: {found[fleet].told(streamed)}")
            if skew:
                even, skewed = (median(found[fleet].batches) for fleet in fleets)
                console.print(f"a batch of the skewed fleet takes {skewed / even:.2f} times as long")
        spark.stop()
    finally:
        shutil.rmtree(folder)


def write_fleet(
    folder: Path, rows: int, piece: int, devices: int = 500, period_s: float = 5.0, *, skew: bool = False
) -> None:
    """Write the readings of a fleet as Parquet files of so many rows; ``skew``: nine in ten are of one device."""
    folder.mkdir()
    plan = Plan(rows, devices, METRICS, period_s=period_s, late=0)
    for number, fleet in enumerate(pieces(plan, piece)):
        table = fleet.rows
        if skew:
            names = table["device_id"].to_pylist()
            hot = ["meter-hot" if number % 10 else name for number, name in enumerate(names)]
            table = table.set_column(table.column_names.index("device_id"), table.field("device_id"), [hot])
        pq.write_table(table, folder / f"part-{number:05d}.parquet")


if __name__ == "__main__":
    typer.run(main)
