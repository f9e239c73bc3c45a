"""A stream of the job `lake` in a process of its own, to be measured or killed: one line of JSON for each batch."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import DataFrame

from iotsphere.drivers.spark.jobs import Run
from iotsphere.drivers.spark.jobs.lake import JOB
from iotsphere.spark import session, telemetry_stream


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
    settings = {option.name: option.default for option in JOB.options} | {"compact_s": compact_s}
    run = Run(settings, checkpoint.name, following=True, output=output, database="")

    def keep(frame: DataFrame, batch: int) -> None:
        start = time.perf_counter()
        counts = JOB.write(JOB.transform(frame, run), run, batch)
        upkept = JOB.tick(run)
        tell(batch=batch, seconds=time.perf_counter() - start, **counts, **upkept)

    def tell(**facts: object) -> None:
        print(json.dumps({"at": time.time(), **facts}), flush=True)

    tell(started=True)
    stream = telemetry_stream(spark, log=log, maxMessagesPerBatch=per_batch).writeStream.foreachBatch(keep)
    query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    tell(ended=True)
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    typer.run(main)
