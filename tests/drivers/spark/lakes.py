"""What tests of the lake look at, read by DuckDB or Arrow and never by the code that wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from iotsphere.drivers.spark.jobs import Run
from iotsphere.drivers.spark.jobs.lake import JOB
from tests.support.readings import Fleet


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
