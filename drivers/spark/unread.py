"""Batches that say where readings lie and not what they are, for sinks whose workers read them and write them at once.

Between a worker that reads and one that writes, Spark turns columns into rows and back, which costs more CPU than both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from .columns import FORMATS
from .schema import SPARK_SCHEMA
from .splits import Losses, Split, read_split

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from ...use_cases.ports.log_ranges import LogRanges

# In a worker: rows that name splits, to the readings of these.
Reading = Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


@dataclass(frozen=True, slots=True)
class Unread:
    """Readings that nobody has read yet. ``splits``: what the source gives with ``rows=splits``."""

    splits: DataFrame
    reading: Reading

    @property
    def readings(self) -> DataFrame:
        """The readings themselves; each use reads the log again."""
        return self.splits.mapInArrow(self.reading, SPARK_SCHEMA)


def reading(opening: Callable[[str], LogRanges], log: str, losses: Losses) -> Reading:
    """How a worker reads the readings of a log."""
    return partial(_read, opening, log, losses)


def _read(
    opening: Callable[[str], LogRanges], log: str, losses: Losses, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            yield from read_split(Split.of(row), lambda: opening(log), FORMATS["readings"], losses)
