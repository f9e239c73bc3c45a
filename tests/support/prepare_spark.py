"""Lets Spark leave its classes as an archive before the tests start it some twenty times: each start takes half the time."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from iotsphere.drivers.spark.archive import options
from iotsphere.drivers.spark.java import java_home
from iotsphere.drivers.spark.session import open_session


def main() -> None:
    """Use a little of all that the tests use, end, and wait until the classes are kept."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        home = java_home(os.environ, folder)
        if options(home, may_write=False):
            return
        print("Spark: keeping its classes for faster starts", flush=True)
        spark = open_session("prepare", "local[1]", {"spark.sql.shuffle.partitions": "1"}, folder)
        use(spark, folder)
        gateway = SparkContext._gateway
        assert gateway is not None
        spark.stop()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        if not options(home, may_write=False):
            print("Spark: no classes were kept; it starts as slowly as before")


def use(spark: SparkSession, folder: Path) -> None:
    """A batch with a join, a window and Python in it, and a stream with state."""
    files = str(folder / "rows")
    rows = spark.range(1_000).withColumns({"key": F.expr("id % 7"), "name": F.expr("concat('n', id % 5)")})
    rows.write.parquet(files)
    kept = spark.read.parquet(files).mapInArrow(lambda batches: batches, rows.schema).persist()
    sums = kept.groupBy("key").agg(F.sum("id").alias("sum"), F.median("id"), F.max("name"))
    kept.selectExpr("*", "lag(id) OVER (PARTITION BY key ORDER BY id) AS before").join(sums, "key").toArrow()
    stream = spark.readStream.schema(rows.schema).parquet(files).groupBy("key").count()
    query = (
        stream.writeStream.outputMode("complete")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(lambda part, _: part.toArrow() and None)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
