"""One row per sample and metric: the readings that every job gets, once for Spark and once for Arrow.

Rows that came late, twice, or from a clock that is not believed are kept and say so in ``quality``. ``event_time`` is
never further from ``received_time`` than 30 days back or 5 minutes ahead, so no row can move a watermark beyond that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


class Column(NamedTuple):
    """A column of the readings: its name, what it holds in words, whether it may be null, and both its types."""

    name: str
    meaning: str
    nullable: bool
    spark: DataType
    arrow: pa.DataType


_TEXT: Final = (StringType(), pa.string())
_TIME: Final = (TimestampType(), pa.timestamp("us", tz="UTC"))
_LONG: Final = (LongType(), pa.int64())
_INT: Final = (IntegerType(), pa.int32())

COLUMNS: Final = (
    Column("domain", "the tenant, which is the first level of the topic", False, *_TEXT),
    Column("device_id", "the device", False, *_TEXT),
    Column("metric", "the metric's name", False, *_TEXT),
    Column("value", "the value, where it is a number (true and false are none)", True, DoubleType(), pa.float64()),
    Column("value_text", "the value, where it is a text; objects and arrays as JSON", True, *_TEXT),
    Column("value_bool", "the value, where it is true or false", True, BooleanType(), pa.bool_()),
    Column("unit", "the unit that the message states", True, *_TEXT),
    Column("event_time", "when it was measured, in UTC", False, *_TIME),
    Column("received_time", "when the log took it, in UTC", False, *_TIME),
    Column("skew_ms", "the device's own time less received_time, in ms, where the device stated one", True, *_LONG),
    Column(
        "quality",
        "what is to be known of it, sorted; nothing where all is well",
        False,
        ArrayType(StringType(), False),
        pa.list_(pa.field("element", pa.string(), False)),
    ),
    Column("message_id", "the message that it came in", False, *_TEXT),
    Column("partition", "the partition of the log that holds the message", False, *_INT),
    Column("offset", "the message's offset in that partition", False, *_LONG),
    Column("sample", "the index of the sample within its message", False, *_INT),
)
NAMES: Final = tuple(column.name for column in COLUMNS)
# What tells samples apart: devices may use the same id, each on a topic of its own.
KEY: Final = ("domain", "device_id", "message_id", "metric", "sample")
SPARK_SCHEMA: Final = StructType([StructField(column.name, column.spark, column.nullable) for column in COLUMNS])
ARROW_SCHEMA: Final = pa.schema([pa.field(column.name, column.arrow, column.nullable) for column in COLUMNS])


def schemas(texts: Sequence[str], longs: Sequence[str], doubles: Sequence[str]) -> tuple[StructType, pa.Schema]:
    """The schema of rows with these columns, which may all be null, once for Spark and once for Arrow."""
    kinds = ((texts, _TEXT), (longs, _LONG), (doubles, (DoubleType(), pa.float64())))
    columns = [(name, *types) for names, types in kinds for name in names]
    spark = StructType([StructField(name, kind) for name, kind, _ in columns])
    return spark, pa.schema([pa.field(name, kind) for name, _, kind in columns])


def table_of(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Rows, each with a value for every column of the schema, as a table."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def batch_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as one Arrow batch; times are µs since 1970."""
    columns = [_column(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    return pa.array(values, kind)


def listed(column: pa.Array) -> list[Any]:
    """The values of a column, the same as ``to_pylist`` gives them, and much sooner where they repeat or are numbers."""
    if column.null_count == len(column):
        return [None] * len(column)
    kind = column.type
    if not column.null_count and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return list(column.to_numpy().tolist())
    if pa.types.is_string(kind) or pa.types.is_timestamp(kind):
        found = column.dictionary_encode()
        words = [*found.dictionary.to_pylist(), None]
        return [words[index] for index in found.indices.fill_null(len(words) - 1).to_numpy().tolist()]
    return list(column.to_pylist())
