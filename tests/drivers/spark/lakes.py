"""What tests of the lake look at, read by DuckDB or Arrow and never by the code that wrote it."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame, SparkSession

from iotsphere.drivers.spark.jobs import Run
from iotsphere.drivers.spark.jobs.lake import JOB
from iotsphere.drivers.spark.sinks.delta import DeltaLake, told_file
from iotsphere.drivers.spark.sinks.parquet import DATE, writing
from iotsphere.drivers.spark.sinks.upkeep import Upkeep
from tests.support.readings import Fleet, Plan

DAY = date(2026, 3, 1)
SMALL = Plan(readings=600, devices=10, period_s=60).clean  # ten minutes


def run_to(folder: Path, application: str = "app", *, following: bool = True, **options: Any) -> Run:
    """A run of the job ``lake`` that writes into a folder."""
    settings = {option.name: option.default for option in JOB.options}
    return Run(settings | options, application, following, folder, database="")


def frame(spark: SparkSession, rows: Fleet | pa.Table, folder: Path) -> DataFrame:
    """Rows as a frame that can be read several times, as those of the log can."""
    fleet = rows if isinstance(rows, Fleet) else Fleet(rows, rows)
    return spark.read.parquet(*map(str, fleet.write(folder)))


def query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """The answer of DuckDB about the table ``lake`` in a folder."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("lake", DeltaTable(str(folder)).to_pyarrow_dataset())
        return connection.execute(sql).fetchall()


def content(folder: Path) -> pa.Table:
    """All rows of the lake in the order of the log."""
    table = DeltaTable(str(folder)).to_pyarrow_table()
    return table.sort_by([(name, "ascending") for name in ("partition", "offset", "metric", "sample")])


def data_files(folder: Path) -> set[str]:
    """Every Parquet file below a folder, in the table or not."""
    return {path.relative_to(folder).as_posix() for path in folder.glob("date=*/*.parquet")}


def add(lake: DeltaLake, rows: pa.Table, batch: int) -> None:
    """What a worker and the driver do with a batch."""
    dated = rows.append_column(DATE, rows["event_time"].cast(pa.timestamp("us")).cast(pa.date32()))
    lake.provide(dated.schema)
    told = [row for facts in writing(lake.folder, batch)(dated.to_batches()) for row in facts.to_pylist()]
    while True:
        try:
            lake.commit([told_file(row) for row in told], [Transaction("app", batch)], lake.table())
            return
        except CommitFailedError:
            continue


def upkeep_of(lake: DeltaLake, keep_days: int = 0, vacuum_hours: int = 24) -> Upkeep:
    """As a process that has just started has it."""
    return Upkeep(lake, keep_days, vacuum_hours)
