"""Memory for jobs: rows of one hash bucket, with what is remembered of it, become results; in batch and in stream alike.

Thousands of series share a bucket and one piece of state, since a call into Python for each of them would cost more
than the work. Spark keeps the state with the batch's number: after a crash it begins a batch again from the state that
was before it, so the same rows give the same results.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column
    from pyspark.sql.streaming.state import GroupState

BUCKET: Final = "bucket"
BUCKETS: Final = 16
ROWS_AT_ONCE: Final = 10_000
OLDEST_US: Final = 30 * 86_400_000_000
NEWEST_US: Final = 300_000_000


class Moment(NamedTuple):
    """When a fold is called. ``now``: µs since 1970. ``whole``: these are all rows there will be; keep nothing."""

    now: int
    whole: bool


# State before (None: none), rows, when; to state after (the very same where nothing is new), and results.
Fold = Callable[[bytes | None, pa.Table, Moment], tuple[bytes, pa.Table]]


def bucket(*columns: str, of: int = BUCKETS) -> Column:
    """The hash bucket of a row, by the columns that name what is remembered."""
    return F.pmod(F.xxhash64(*columns), F.lit(of)).cast("int")


def timed(readings: DataFrame) -> DataFrame:
    """Readings with ``at`` and ``received``, µs since 1970, and ``untrusted``.

    A time that is more than 30 days older or 5 minutes newer than its reception is that of its reception, and untrusted;
    the source of the log says so already. In whole numbers, since a calendar costs more than the rest of the fold.
    """
    event, received = F.unix_micros("event_time"), F.unix_micros("received_time")
    wild = (event < received - OLDEST_US) | (event > received + NEWEST_US)
    return readings.withColumns(
        {
            "at": F.when(wild, received).otherwise(event),
            "received": received,
            "untrusted": wild | F.array_contains("quality", "clock_untrusted"),
        }
    )


def with_frontier(points: DataFrame) -> DataFrame:
    """Points of a stream, and behind each part that is read of the log a row for each bucket that says how far it went.

    That row has ``received`` and ``at`` of the newest message of the part, and the empty text as ``device``; so a bucket
    that gets no messages in a batch learns which time the others have reached, which the clock would not tell while a
    stream catches up.
    """

    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        newest, schema = 0, None
        for batch in batches:
            if batch.num_rows:
                newest, schema = max(newest, pc.max(batch["received"]).as_py()), batch.schema
            yield batch
        if schema is not None:
            known = {"device": "", "at": newest, "received": newest, "offset": 0, "untrusted": False}
            rows = [{name: known.get(name) for name in schema.names} | {BUCKET: number} for number in range(BUCKETS)]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    return points.mapInArrow(told, points.schema)


def folded(rows: DataFrame, fold: Fold, schema: StructType, wake_s: float = 0.0) -> DataFrame:
    """Apply a fold to each bucket of rows that have a column ``bucket``.

    ``wake_s``: in stream, call it for a bucket without new rows too, at most so often; 0 = never.
    """
    inside = [column for column in rows.columns if column != BUCKET]
    if not rows.isStreaming:

        def in_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            if rows := list(batches):
                table = pa.Table.from_batches(rows).select(inside)
                yield from fold(None, table, Moment(_now(), whole=True))[1].to_batches(ROWS_AT_ONCE)

        # A partition is a bucket. Grouping would sort the rows first, which costs more than all the rest.
        return rows.repartitionById(BUCKETS, BUCKET).mapInArrow(in_batch, schema)

    empty = pa.schema([pa.field(name, _arrow_type(rows, name)) for name in inside])

    def in_stream(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:  # noqa: ARG001
        # Spark joins results of several buckets, of which some are empty; it is right about their types.
        warnings.filterwarnings("ignore", "The behavior of DataFrame concatenation", FutureWarning)
        tables = [pa.Table.from_pandas(frame[inside], schema=empty, preserve_index=False) for frame in frames]
        table = pa.concat_tables(tables) if tables else empty.empty_table()
        before = state.get[0] if state.exists else None
        after, results = fold(before, table, Moment(_now(), whole=False))
        if after is not before:
            state.update((after,))
        if wake_s:
            state.setTimeoutDuration(int(wake_s * 1_000))
        yield results.to_pandas()

    timeout = GroupStateTimeout.ProcessingTimeTimeout if wake_s else GroupStateTimeout.NoTimeout
    return rows.groupBy(BUCKET).applyInPandasWithState(in_stream, schema, "memory binary", "update", timeout)


def _now() -> int:
    return time.time_ns() // 1_000


def _arrow_type(rows: DataFrame, name: str) -> pa.DataType:
    kinds = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
    }
    return kinds[rows.schema[name].dataType.simpleString()]
