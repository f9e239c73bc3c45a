"""The readings: the same columns for Spark and for Arrow."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from iotsphere.drivers.spark.schema import ARROW_SCHEMA, COLUMNS, KEY, NAMES, SPARK_SCHEMA, listed

pytestmark = pytest.mark.timeout(600)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_both_schemas_say_the_same() -> None:
    assert from_arrow_schema(ARROW_SCHEMA) == SPARK_SCHEMA
    assert to_arrow_schema(SPARK_SCHEMA, timezone="UTC").names == ARROW_SCHEMA.names == list(NAMES)
    assert set(KEY) < set(NAMES)
    assert [column.name for column in COLUMNS if column.nullable] == [
        "value", "value_text", "value_bool", "unit", "skew_ms",
    ]  # fmt: skip


def test_spark_reads_a_table_of_readings(spark: SparkSession) -> None:
    row = ("d", "dev", "temperature", 21.5, None, None, "C", NOON, NOON, None, ["late"], "m-1", 0, 7, 0)
    table = pa.Table.from_pylist([dict(zip(NAMES, row, strict=True))], schema=ARROW_SCHEMA)
    frame = spark.createDataFrame(table.to_pandas(), schema=SPARK_SCHEMA)
    (found,) = frame.collect()
    assert found["value"] == 21.5
    assert list(found["quality"]) == ["late"]
    assert found["offset"] == 7
    assert frame.selectExpr("unix_millis(event_time)").first()[0] == int(NOON.timestamp() * 1000)  # type: ignore[index]


def test_a_column_is_listed_as_arrow_does_it() -> None:
    moments = [1_767_225_600_000_000, None, 1_767_225_600_000_000]
    for column in (
        pa.array(moments, pa.timestamp("us", "UTC")),
        pa.array(["a", None, "a", ""]),
        pa.array([1, 2, 3]),
        pa.array([1.5, None, float("inf")]),
        pa.array([True, False]),
        pa.nulls(2, pa.int64()),
        pa.array([], pa.string()),
    ):
        assert listed(column) == column.to_pylist()
        assert [type(value) for value in listed(column)] == [type(value) for value in column.to_pylist()]
