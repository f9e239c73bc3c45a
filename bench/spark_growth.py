"""`python -m bench.spark_growth`: what a reading costs as batches grow, from 0.1 to 30 million, in rollup and lake.

The readings of a size are those of the size before and more, made a piece at a time, so memory is that of one piece and
the disk holds the largest size once, and its lake. Small sizes are measured several times, in rounds, and the middle
is shown.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Final, NamedTuple

import pyarrow.parquet as pq
import typer
from pyspark.sql import SparkSession
from rich.console import Console

from iotsphere.drivers.spark.jobs import Run, lake
from iotsphere.drivers.spark.schema import SPARK_SCHEMA
from iotsphere.drivers.spark.session import open_session
from tests.support.readings import Fleet, Plan, pieces

from .machine import describe
from .plot import Chart, svg
from .report import Marks, write_docs
from .section import Section
from .spark_cost import Cost, cost_of
from .spark_rollup import METRICS, in_batch, run_to

PAGE: Final = Path(__file__).parent.parent / "docs" / "explanation" / "performance.md"
MARKS: Final = Marks(
    "<!-- begin of what `python -m bench.spark_growth` writes -->",
    "<!-- end of what `python -m bench.spark_growth` writes -->",
)
PICTURE: Final = "../pictures/spark-growth.svg"
CAPTION: Final = "Seconds for a million readings against the readings of a batch: flat is linear growth"
HEADINGS: Final = ("job", "readings", "seconds", "seconds a million", "CPU s a million", "of the first")
SIZES: Final = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)
PIECE: Final = 100_000
DEVICES: Final = 500
JOBS: Final = ("rollup", "lake")
SMALL: Final = 1_000_000  # up to here a size is measured several times
ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class Point:
    """What one job cost over so many readings, the middle of ``runs`` of them."""

    job: str
    rows: int
    cost: Cost
    runs: int

    @property
    def wall(self) -> float:
        """Seconds by the clock for a million readings."""
        return self.cost.wall / self.rows * 1e6

    @property
    def cpu(self) -> float:
        """CPU seconds for a million readings."""
        return self.cost.per_million(self.rows)


class Log(NamedTuple):
    """Files of readings that grow: ``source`` gives the pieces."""

    folder: Path
    source: Iterator[Fleet]

    def upto(self, size: int) -> int:
        """Have readings of ``size`` at least, and return how many there are."""
        rows = sum(int(pq.read_metadata(path).num_rows) for path in self.folder.iterdir())
        number = len(list(self.folder.iterdir()))
        while number * PIECE < size:
            table = next(self.source).rows
            pq.write_table(table, self.folder / f"part-{number:05d}.parquet")
            rows, number = rows + table.num_rows, number + 1
        return rows


def grow(folder: Path, sizes: Sequence[int], console: Console) -> list[Point]:
    """Measure each job at each size, after a small batch that starts everything."""
    spark = open_session("growth", "local[2]", {"spark.sql.shuffle.partitions": "4"}, folder / "spark")
    points = []
    try:
        log = Log(folder / "log", pieces(Plan(sizes[-1], DEVICES, METRICS, period_s=5.0, late=0), PIECE))
        log.folder.mkdir()
        log.upto(PIECE)
        for job in JOBS:
            _measured(spark, job, log.folder)
        for size in sizes:
            rows = log.upto(size)
            rounds = ROUNDS if size <= SMALL else 1
            costs: dict[str, list[Cost]] = {job: [] for job in JOBS}
            for _ in range(rounds):
                for job in JOBS:
                    costs[job].append(_measured(spark, job, log.folder))
            for job in JOBS:
                point = Point(job, rows, _middle(costs[job]), rounds)
                points.append(point)
                console.print(f"{job:6} {rows:>10,}: {point.cost.told(rows)}")
    finally:
        spark.stop()
    return points


def _measured(spark: SparkSession, job: str, files: Path) -> Cost:
    """One run over all files. The rows of the rollup are counted and kept nowhere; those of the lake are on the disk."""
    if job == "rollup":
        return in_batch(spark, str(files), run_to("", following=False))
    output = Path(tempfile.mkdtemp(prefix="lake-", dir=files.parent))
    run = Run(lake.JOB.settings({}), "growth", False, output, database="")

    def work() -> None:
        readings = spark.read.schema(SPARK_SCHEMA).parquet(str(files))
        lake.JOB.write(lake.JOB.transform(readings, run), run, 0)

    try:
        return cost_of(work)
    finally:
        shutil.rmtree(output)


def _middle(costs: Sequence[Cost]) -> Cost:
    return Cost(median(cost.wall for cost in costs), median(cost.cpu for cost in costs))


def charts(points: Sequence[Point]) -> list[Chart]:
    """Two charts a job: by the clock, and of CPU."""
    found = []
    for job in JOBS:
        own = [point for point in points if point.job == job]
        found.append(Chart(f"{job}: seconds a million", "readings", tuple((point.rows, point.wall) for point in own)))
        found.append(Chart(f"{job}: CPU s a million", "readings", tuple((point.rows, point.cpu) for point in own)))
    return found


def table(points: Sequence[Point]) -> Section:
    """A row a point, and what a reading of the last batch of each job costs beside one of the first."""
    first = {point.job: point for point in reversed(points)}
    cells = tuple(
        (
            point.job, f"{point.rows:,}", f"{point.cost.wall:,.1f}", f"{point.wall:.1f}", f"{point.cpu:.1f}",
            f"{point.wall / first[point.job].wall:.2f} ×",
        )
        for point in points
    )  # fmt: skip
    notes = [
        "Each batch is what all batches before it held, and more. *Of the first*: the seconds a million, as a multiple of "
        "those of the job's smallest batch, which also pays for what each batch begins with. Growth is linear from one size "
        "to the next where the seconds a million are the same, and better where they are fewer.",
        *_steepest(points),
        f"{DEVICES} devices with {len(METRICS)} metrics each, a message every 5 seconds: a larger batch is a longer time.",
        "rollup: every row of minutes, hours and days, kept nowhere. lake: on the disk, files joined and sorted by the "
        "upkeep.",
    ]
    return Section("spark-growth", "", HEADINGS, cells, tuple(notes), picture=(PICTURE, CAPTION, _drawn(points)))


def _steepest(points: Sequence[Point]) -> Iterator[str]:
    """A sentence for each job about the step between two sizes that cost most by the clock."""
    for job in JOBS:
        own = [point for point in points if point.job == job]
        if len(own) < 2:
            continue
        before, after = max(pairwise(own), key=lambda step: step[1].wall / step[0].wall)
        seconds, cpu = after.cost.wall / before.cost.wall, after.cost.cpu / before.cost.cpu
        times = after.rows / before.rows
        growth = "more" if seconds > times else "no more"
        yield (
            f"The steepest step of {job}, from {before.rows:,} to {after.rows:,} readings: {times:.1f} times as many took "
            f"{seconds:.1f} times the seconds, {growth} than linear, and {cpu:.1f} times the CPU."
        )


def _drawn(points: Sequence[Point]) -> str:
    return svg(charts(points), CAPTION, columns=2)


def as_page(section: Section, machine: dict[str, str]) -> str:
    """What goes between the marks of the page."""
    facts = (
        f"{machine['date']}, {machine['cores']} cores ({machine['cpu']}), {machine['memory']}, "
        f"Python {machine['python']}, IoTSphere {machine['iotsphere']}."
    )
    return f"{facts}\n\n{section.markdown().partition(chr(10))[2].strip()}"


def main(
    most: Annotated[int, typer.Option(help="Readings of the largest batch.")] = SIZES[-1],
    write: Annotated[bool, typer.Option("--write-docs", help="Put table and plot into the documentation.")] = False,
) -> None:
    """Measure, say what was found, and write it down where that is asked for."""
    folder, console = Path(tempfile.mkdtemp(prefix="iotsphere-growth-")), Console(width=120)
    try:
        points = grow(folder, [size for size in SIZES if size <= most] or [most], console)
    finally:
        shutil.rmtree(folder)
    section = table(points)
    section.show(console)
    if write:
        write_docs(as_page(section, describe()), PAGE, MARKS)
        (PAGE.parent / PICTURE).write_text(_drawn(points))
        console.print(f"written: {PAGE}, and its picture")


if __name__ == "__main__":
    typer.run(main)
