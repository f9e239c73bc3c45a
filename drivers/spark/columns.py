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
from ...adapters.record import Packed
from ...adapters.telemetry_rows import LATEST_MS, add_rows
from ...entities.errors import MessageRefused
from ...entities.message import Entry
from .decoding import readings_of
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


SPLITS: Final = StructType(
    [
        StructField("domain", StringType(), False),
        StructField("channel", StringType(), False),
        StructField("partition", IntegerType(), False),
        *(StructField(f"{end}_{part}", LongType(), False) for end in ("start", "end") for part in ("epoch", "offset")),
    ]
)


@dataclass(frozen=True, slots=True)
class Format:
    """Which rows an entry has. ``add(entry, rows)`` adds them to a list of tuples in the order of the columns.

    ``decode``: the same rows of many stored records of one partition at once, where there is a quicker way.
    """

    name: str
    spark: StructType
    add: Callable[[Entry, list[Any]], None]
    decode: Callable[[Sequence[Packed], pa.Schema], pa.RecordBatch] | None = None

    def arrow(self) -> pa.Schema:
        """The columns as Spark asks for them."""
        return to_arrow_schema(self.spark, timezone="UTC")


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
            _shown(record.timestamp) * 1000, _shown(received) * 1000, get("source"), get("messageType"), get("correlationId"),
            get("quality"), payload, record.partition.number, position.epoch, position.offset,
        )
    )  # fmt: skip


def _shown(time: int) -> int:
    """A time (ms) that a calendar has, whatever a forged record says."""
    return min(max(time, 0), LATEST_MS)


def _add_nothing(entry: Entry, rows: list[Any]) -> None:
    """Entries have no rows of their own."""


FORMATS: Final = {
    "readings": Format("readings", SPARK_SCHEMA, add_rows, readings_of),
    "messages": Format("messages", MESSAGES, add_message),
    "splits": Format("splits", SPLITS, _add_nothing),
}
