"""Every reading in a Delta table, partitioned by the date of its event time, that DuckDB, pandas and Spark open."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from ..schema import KEY
from ..sinks.copies import COPY
from ..sinks.delta import DeltaLake
from ..sinks.parquet import DATE, EVENT
from ..sinks.upkeep import Upkeep
from ..unread import Unread
from . import Counts, Job, Option, Run

UNTRUSTED: Final = "clock_untrusted"
OPTIONS: Final = (
    Option("keep_days", 0, "readings whose event is older than so many days are removed; 0 keeps all"),
    Option("compact_s", 300, "seconds between two looks at what small files are to be joined; 0 never looks"),
    Option("vacuum_hours", 24, "hours for which a file that is no longer part of the table is kept for its readers"),
)


def transform(readings: DataFrame, run: Run | None = None) -> DataFrame:  # noqa: ARG001  there is nothing to choose
    """The readings with the UTC ``date`` of their event time, in which no clock can make a date of its own."""
    return dated(believable(readings))


def believable(readings: DataFrame) -> DataFrame:
    """Readings whose event time is that of reception where it lies more than 30 days before or 5 minutes after it.

    The source says so already; rows of another origin get the same mark ``clock_untrusted``, and keep their skew.
    """
    event, received = F.col("event_time"), F.col("received_time")
    wild = ~event.between(received - F.expr("INTERVAL 30 DAYS"), received + F.expr("INTERVAL 5 MINUTES"))
    skew = F.unix_millis(event) - F.unix_millis(received)
    # Not array_sort, whose order is a function: Spark does not compile those, nor what stands beside them.
    marks = F.sort_array(F.array_union("quality", F.array(F.lit(UNTRUSTED))))
    return readings.withColumns(
        {
            "event_time": F.when(wild, received).otherwise(event),
            "skew_ms": F.when(wild, F.coalesce("skew_ms", skew)).otherwise(F.col("skew_ms")),
            "quality": F.when(wild, marks).otherwise(F.col("quality")),
        }
    )


def dated(readings: DataFrame, by: str = EVENT) -> DataFrame:
    """Readings with ``date``, the day of one of their times in UTC whatever the zone of the session is."""
    day = F.floor(F.unix_micros(by) / F.lit(86_400_000_000)).cast("int")
    return readings.withColumn(DATE, F.date_from_unix_date(day))


def distinct(readings: DataFrame) -> DataFrame:
    """Each sample once, the one that came first, of a lake in which a message that was sent twice stands twice."""
    return _numbered(readings).where("copy = 1").drop("copy")


def marked(readings: DataFrame) -> DataFrame:
    """All rows, with ``duplicate`` in the quality of each but the first of a sample."""
    marks = F.array_sort(F.array_union("quality", F.array(F.lit(COPY))))
    again = F.col("copy") > 1
    return _numbered(readings).withColumn("quality", F.when(again, marks).otherwise(F.col("quality"))).drop("copy")


def _numbered(readings: DataFrame) -> DataFrame:
    first = Window.partitionBy(*KEY).orderBy("received_time", "partition", "offset")
    return readings.withColumn("copy", F.row_number().over(first))


@cache
def lake_in(folder: Path) -> DeltaLake:
    """The table of a folder, opened once in a process."""
    return DeltaLake(folder)


def write(result: DataFrame, run: Run, batch: int) -> Counts:
    """Add the rows that the table does not hold yet. A batch run leaves it tidy; a stream does when it is due."""
    return _and_upkeep(lake_in(run.output).append(result, run.application, batch), run)


def _and_upkeep(counts: Counts, run: Run) -> Counts:
    if run.following:
        return {**counts, **tick(run)}
    return {**counts, **maintain(run)} if run.options["compact_s"] else counts


def write_unread(unread: Unread, run: Run, batch: int) -> Counts:
    """The same of readings that are still to be read: whoever reads some writes them, in one go."""
    rows = transform(unread.readings, run)
    counts = lake_in(run.output).append(rows, run.application, batch, unread)
    return _and_upkeep(counts, run)


def maintain(run: Run) -> Counts:
    """Join small files, sort closed days, remove what is too old, and what nobody reads any more."""
    return _upkeep(run).run()


def tick(run: Run) -> Counts:
    """Do the upkeep when it is due."""
    upkeep, every = _upkeep(run), run.options["compact_s"]
    return upkeep.run() if every and upkeep.lake.exists and upkeep.is_due(every) else {}


def _upkeep(run: Run) -> Upkeep:
    return _upkeep_of(run.output, run.options["keep_days"], run.options["vacuum_hours"])


@cache
def _upkeep_of(folder: Path, keep_days: int, vacuum_hours: int) -> Upkeep:
    return Upkeep(lake_in(folder), keep_days, vacuum_hours)


JOB: Final = Job(
    name="lake",
    version=1,
    transform=transform,
    write=write,
    direct=write_unread,
    options=OPTIONS,
    output="lake",
    tick=tick,
    maintain=maintain,
)
