"""Little jobs whose results lie in memory, for tests of what runs jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from iotsphere.drivers.spark.jobs import Counts, Job, Run
from iotsphere.drivers.spark.runner import Plan


@dataclass
class Kept:
    """What a job has written: the values of each batch by application and number."""

    batches: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    meanwhile: Callable[[int], None] = lambda _: None
    options: Mapping[str, Any] = field(default_factory=dict)

    def job(self, **changes: Any) -> Job:
        """A job that keeps the values of readings here."""
        return Job(**{"name": "keep", "version": 1, "transform": _values, "write": self.write, **changes})

    def write(self, result: DataFrame, run: Run, batch: int) -> Counts:
        """Set the values of a batch."""
        values = sorted(int(row[0]) for row in result.collect())
        self.meanwhile(batch)
        self.batches[run.application, batch] = values
        return {"kept": len(values)}

    @property
    def values(self) -> list[int]:
        """All values, sorted; also while a stream writes more."""
        return sorted(value for values in list(self.batches.values()) for value in values)

    def plan(self, folder: Path, log: str, job: Job | None = None, **changes: Any) -> Plan:
        """A plan for a job, with its checkpoint in the folder unless ``checkpoint`` says something else."""
        source = {"log": log, **changes.pop("source", {})}

        def make_run(application: str, following: bool) -> Run:
            return Run(self.options, application, following, folder / "out", str(folder))

        settings = {"job": job or self.job(), "checkpoint": folder / "checkpoint", **changes}
        return Plan(source=source, make_run=make_run, **settings)


def _values(readings: DataFrame, run: Run) -> DataFrame:
    assert run.application
    return readings.select("value")
