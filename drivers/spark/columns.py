"""From entries of the log to Arrow batches: readings of telemetry, or messages of any channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from ...adapters.envelope import payload_of
from ...adapters.telemetry_rows import add_rows
from ...entities.errors import MessageRefused
from ...entities.message import Entry
from .schema import SPARK_SCHEMA

MESSAGES: Final = StructType(
    [
        StructField("domain", StringType(), False),
        StructField("channel", StringType(), False),
        StructField("topic", StringType(), False),
        StructField("message_id", StringType(), False),
        StructField("event_time", TimestampType(), False),
        StructField("received_time", TimestampType(), False),
        StructField("source", StringType(), True),
        StructField("message_type", StringType(), True),
        StructField("correlation_id", StringType(), True),
        StructField("quality", StringType(), True),
        StructField("payload", StringType(), True),
        StructField("partition", IntegerType(), False),
        StructField("epoch", LongType(), False),
        StructField("offset", LongType(), False),
    ]
)


@dataclass(frozen=True, slots=True)
class Format:
    """Which rows an entry has. ``add(entry, rows)`` adds them to a list of tuples in the order of the columns."""

    name: str
    spark: StructType
    add: Callable[[Entry, list[Any]], None]

    def arrow(self) -> pa.Schema:
        """The columns as Spark asks for them."""
        return to_arrow_schema(self.spark, timezone="UTC")


def batch_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as one Arrow batch; times are µs since 1970."""
    columns = [_column(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    return pa.array(values, kind)


def add_message(entry: Entry, rows: list[Any]) -> None:
    """Add the row of an entry; without a payload where it has no body, as when a retained value is cleared."""
    position, received, record = entry
    metadata: dict[str, Any] = {}
    payload = None
    if record.body:
        try:
            payload = payload_of(record.body).decode()
            metadata = orjson.loads(record.body)["metadata"]
        except (MessageRefused, ValueError, KeyError, TypeError):
            payload = record.body.decode("utf-8", "backslashreplace")
            metadata = {"quality": "unreadable"}
    get = metadata.get if isinstance(metadata, dict) else {"quality": "unreadable"}.get
    rows.append(
        (
            record.partition.domain, record.partition.channel, record.topic, record.message_id,
            record.timestamp * 1000, received * 1000, get("source"), get("messageType"), get("correlationId"),
            get("quality"), payload, record.partition.number, position.epoch, position.offset,
        )
    )  # fmt: skip


FORMATS: Final = {
    "readings": Format("readings", SPARK_SCHEMA, add_rows),
    "messages": Format("messages", MESSAGES, add_message),
}
