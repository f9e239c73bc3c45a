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
_WRITTEN: Final = StructType([StructField(name, LongType(), False) for name in ("written", "stayed")])


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
    """Write a frame and return how many documents were set, and how many stayed since they know more, if any.

    Executors write to MongoDB, the driver to its own folder.
    """
    write = partial(_write_part, database, collection, encode)
    if database.startswith(MONGODB):
        parts = [tuple(row) for row in result.mapInArrow(write, _WRITTEN).collect()]
    else:
        (part,) = write(iter(result.toArrow().to_batches(BATCH)))
        parts = list(zip(*part.to_pydict().values(), strict=True))
    written, stayed = (sum(counts) for counts in zip((0, 0), *parts, strict=True))
    return {collection: written, **({f"{collection}_that_stayed": stayed} if stayed else {})}


def _write_part(
    database: str, collection: str, encode: Encode, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    written = given = 0
    with open_sink(database) as sink:
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH):
                documents = encode(batch.slice(start, BATCH))
                given += len(documents)
                written += sink.write(collection, documents)
    yield pa.RecordBatch.from_pydict(
        {"written": pa.array([written], pa.int64()), "stayed": pa.array([given - written], pa.int64())}
    )
