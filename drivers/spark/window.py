"""For jobs that look at a whole window of time at once: in a stream, the readings are kept, and looked at every so often.

The window is a lake of its own beside the results, so that each reading counts once whatever crashes, and so that what
a stream says of a window is what a single pass over the same readings says. It is a window of reception: what came in it
belongs to it, however old it was then. So its table is dated by reception too. In one that an older release dated by
event, a date goes when all that it holds came before the window.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from .jobs import Counts, Run
from .jobs.lake import believable, dated
from .schema import NAMES, SPARK_SCHEMA
from .sinks.delta import DeltaLake
from .sinks.upkeep import Upkeep
from .unread import Unread

FOLDER: Final = "window"
RECEIVED: Final = "received_time"
UPKEEP_S: Final = 300.0


class Kept:
    """The readings of the last ``days`` (0: all), beside the results in a folder, and when they were looked at last."""

    def __init__(self, folder: Path, days: float) -> None:
        self._lake = DeltaLake(folder / FOLDER, RECEIVED)
        self._days = days
        self._upkeep = Upkeep(self._lake, keep_days=int(days) + 2 if days else 0, vacuum_hours=2)
        self._looked = 0.0
        self._found: Counts = {}
        self._tidied = False

    def add(self, readings: DataFrame, run: Run, batch: int, unread: Unread | None = None) -> Counts:
        """Keep the readings of a batch, each once. ``unread``: the same readings, for whoever reads and writes at once."""
        rows = dated(believable(readings), RECEIVED)
        counts = self._lake.append(rows, run.application, batch, unread)
        # A first time soon: who starts it every hour for what is new may end it before it is ever due.
        if not self._tidied or self._upkeep.is_due(UPKEEP_S):
            self._upkeep.run()
            self._tidied = True
        return counts

    def is_due(self, every_s: float) -> bool:
        """Tell whether there is something, and it is time to look at it again; then it is taken as looked at."""
        if not self._lake.exists or time.monotonic() - self._looked < every_s:
            return False
        self._looked = time.monotonic()
        return True

    def changed(self, found: Counts) -> Counts:
        """By how much what a look found is more than what the look before it found: summed up, that is the last look."""
        change = {name: found.get(name, 0) - self._found.get(name, 0) for name in {**self._found, **found}}
        self._found = found
        return change

    def readings(self, spark: SparkSession) -> DataFrame:
        """The readings of the last days, as they were when this was called; none, where all have gone."""
        paths = [str(self._lake.folder / path) for path in sorted(self._lake.paths())]
        if not paths:
            return spark.createDataFrame([], SPARK_SCHEMA)
        rows = spark.read.option("recursiveFileLookup", "true").parquet(*paths).select(*NAMES)
        if not self._days:
            return rows
        oldest = F.expr(f"current_timestamp() - make_dt_interval(0, 0, 0, {self._days * 86_400})")
        return rows.where(F.col(RECEIVED) >= oldest)


@cache
def kept_in(folder: Path, days: float) -> Kept:
    """The readings that a stream keeps beside its results."""
    return Kept(folder, days)


class Windowed(NamedTuple):
    """How such a job writes. ``transform``: the job's own; ``look(readings, run)`` keeps what it finds in readings.

    The run has the options ``days`` and ``every_s``. ``name``: what a look is called among the counts of a stream.
    """

    transform: Callable[[DataFrame, Run], DataFrame]
    look: Callable[[DataFrame, Run], Counts]
    name: str

    def write(self, result: DataFrame, run: Run, batch: int) -> Counts:
        """Look at a range; in a stream keep the readings, and look at the last days."""
        if run.following:
            return {**kept_in(run.output, run.options["days"]).add(result, run, batch), **self.tick(run)}
        return self.look(result, run)

    def write_unread(self, unread: Unread, run: Run, batch: int) -> Counts:
        """The same of readings that are still to be read: in a stream, whoever reads some keeps them, in one go."""
        if run.following:
            kept = kept_in(run.output, run.options["days"])
            return {**kept.add(unread.readings, run, batch, unread), **self.tick(run)}
        return self.look(self.transform(unread.readings, run), run)

    def tick(self, run: Run) -> Counts:
        """Look at the last days again when it is time to."""
        kept = kept_in(run.output, run.options["days"])
        spark = SparkSession.getActiveSession()
        if spark is None or not kept.is_due(run.options["every_s"]):
            return {}
        return {**kept.changed(self.look(kept.readings(spark), run)), self.name: 1}
