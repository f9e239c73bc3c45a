"""A stream of the job `lake` in a process of its own, to be measured or killed: one line of JSON for each batch."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from iotsphere.drivers.spark.jobs import Counts, Run
from iotsphere.drivers.spark.jobs.lake import JOB, write_unread
from iotsphere.drivers.spark.runner import Plan, Runner
from iotsphere.drivers.spark.unread import Unread
from iotsphere.spark import IotSphereSource, session

from .spark_cost import cpu_of_all


def main(
    log: str,
    output: Path,
    checkpoint: Path,
    *,
    per_batch: Annotated[int, typer.Option(help="Messages a batch.")] = 100_000,
    compact_s: Annotated[int, typer.Option(help="Seconds between two upkeeps; 0 for none.")] = 0,
    master: str = "local[2]",
) -> None:
    """Write all that the log holds now into a lake, and end."""
    spark = session("lake", master)

    def keep(unread: Unread, run: Run, batch: int) -> Counts:
        start = time.perf_counter()
        counts = write_unread(unread, run, batch)
        tell(batch=batch, seconds=time.perf_counter() - start, **counts)
        return counts

    def make_run(application: str, following: bool) -> Run:
        return Run(JOB.settings({"compact_s": str(compact_s)}), application, following, output, database="")

    def tell(**facts: object) -> None:
        print(json.dumps({"at": time.time(), "cpu": cpu_of_all(), **facts}), flush=True)

    tell(started=True)
    source = {"log": log, "maxMessagesPerBatch": str(per_batch)}
    Runner(spark, Plan(replace(JOB, direct=keep), source, make_run, checkpoint), IotSphereSource)()
    tell(ended=True)
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    typer.run(main)
