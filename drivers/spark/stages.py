"""What Spark says of the work of a pass, or of a batch: which of its jobs is under way, its tasks, and the rows it has read."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import SparkSession

from .progress import Progress


class Stages:
    """The jobs and stages of a session from now on. Nothing else may run in the session meanwhile."""

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        self._tracker = context.statusTracker()
        # The tracker knows no rows; the store behind it does, also where no page of Spark's shows it.
        self._java = context._jsc.sc()
        store = self._java.statusStore()
        self._every = (None, *(getattr(store, f"stageList$default${number}")() for number in range(2, 6)))
        self._first_job: int | None = None
        self._last_before = max((stage.stageId() for stage in self._known()), default=-1)

    def look(self, progress: Progress, *, rows: bool) -> None:
        """Set step and tasks, and with ``rows`` also rows."""
        if jobs := self._tracker.getActiveJobsIds():  # numbered in order, by the session
            self._first_job = jobs[0] if self._first_job is None else self._first_job
            progress.step = jobs[-1] - self._first_job + 1
        stages = [self._tracker.getStageInfo(number) for number in self._tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        progress.tasks = (sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known))
        if rows:
            progress.rows = max(progress.rows, self.rows())

    def rows(self, *, whole: bool = False) -> int:
        """How many rows were read: by tasks that have ended, and by others up to some seconds ago.

        A job may read its range more than once, so this is what the stage read that read most. ``whole``: of all that
        has ended, after waiting for Spark to take note of it; 0 where it does not.
        """
        if whole:
            try:
                self._java.listenerBus().waitUntilEmpty()
            except Py4JJavaError:  # it is far behind, so its figures would be wrong
                return 0
        return max((stage.inputRecords() for stage in self._known() if stage.stageId() > self._last_before), default=0)

    def _known(self) -> list[Any]:
        found = self._java.statusStore().stageList(*self._every)
        return [found.apply(index) for index in range(found.size())]
