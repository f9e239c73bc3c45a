"""Results as documents in a store of the operator's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from ....entities.errors import RequestInvalid
from .kept import DocumentSink, Kept

MONGODB: Final = ("mongodb://", "mongodb+srv://")
EMBEDDED_FILE: Final = "analytics.db"
BATCH: Final = 1_000
_WRITTEN: Final = StructType([StructField("written", LongType(), False)])


Encode = Callable[[pa.RecordBatch], list[Kept]]


def open_sink(database: str) -> AbstractContextManager[DocumentSink]:
    """The sink of an address, ``mongodb://…/NAME``, or of a folder. Raises RequestInvalid, DatabaseUnavailable."""
    if database.startswith(MONGODB):
        from .mongo import MongoSink  # noqa: PLC0415  only where it is chosen

        return MongoSink(database)
    if "://" in database:
        raise RequestInvalid(
            "results are kept in mongodb://HOST:PORT/NAME?replicaSet=… or in a folder: give one of them"
        )
    from .embedded import EmbeddedSink  # noqa: PLC0415  only where it is chosen

    return EmbeddedSink(Path(database) / EMBEDDED_FILE)


def look(database: str) -> None:
    """Make sure that MongoDB, where it is chosen, answers. Raises RequestInvalid, DatabaseUnavailable."""
    if database.startswith(MONGODB):
        from .mongo import MongoSink  # noqa: PLC0415  only where it is chosen

        with MongoSink(database) as sink:
            sink.ping()


def keep(result: DataFrame, database: str, collection: str, encode: Encode) -> dict[str, int]:
    """Write a frame and return the count of documents. Executors write to MongoDB, the driver to its own folder."""
    if database.startswith(MONGODB):
        written = result.mapInArrow(partial(_write_part, database, collection, encode), _WRITTEN)
        return {collection: sum(row.written for row in written.collect())}
    count = 0
    with open_sink(database) as sink:
        for batch in result.toArrow().to_batches(BATCH):
            count += sink.write(collection, encode(batch))
    return {collection: count}


def _write_part(
    database: str, collection: str, encode: Encode, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    count = 0
    with open_sink(database) as sink:
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH):
                count += sink.write(collection, encode(batch.slice(start, BATCH)))
    yield pa.RecordBatch.from_pydict({"written": pa.array([count], pa.int64())})
