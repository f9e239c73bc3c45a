"""Which rows of a lake's date are copies: of messages that were sent again after the gateway had forgotten their ids.

A date is looked at as a whole once it is over. The ids are read first and kept as 8 bytes a row; only where two rows agree
in these is anything compared exactly, which is seldom.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from ..schema import KEY
from .parquet import DATE

COPY: Final = "duplicate"
ORDER: Final = ("received_time", "partition", "offset")
# What tells a row from every other one; a log that was made anew gives its offsets once more.
ROW: Final = (*KEY, *ORDER)
QUALITY: Final = "quality"
ROWS_AT_ONCE: Final = 262_144


def copies_in(table: DeltaTable, day: date) -> pa.Table:
    """The rows of a date, by the columns ``ROW``, whose sample came before already, and which are not marked yet.

    Of several rows of a device with the same message id, metric and sample, the one that was received first is none.
    """
    rows = table.to_pyarrow_dataset(file_pruning_predicate=[(DATE, "=", day.isoformat())])
    again = _repeated(np.concatenate([np.empty(0, np.uint64), *map(_hashes, _batches(rows, KEY))]))
    names = (*ROW, QUALITY)
    suspects = pa.Table.from_batches(
        [batch.filter(pa.array(np.isin(_hashes(batch), again))) for batch in _batches(rows, names)]
        if len(again)
        else [],
        pa.schema([rows.schema.field(name) for name in names]),
    ).sort_by([(name, "ascending") for name in ORDER])
    numbered = suspects.append_column("place", pa.array(np.arange(len(suspects))))
    first = numbered.group_by(list(KEY)).aggregate([("place", "min")])["place_min"]
    wanted = pc.is_in(numbered["place"], value_set=pc.unique(first))
    return suspects.filter(pc.invert(pc.or_(wanted, _marked(suspects[QUALITY])))).select(list(ROW))


def mark(table: DeltaTable, day: date, copies: pa.Table, **how: Any) -> dict[str, Any]:
    """Mark these rows of a date in one commit, and return what is known of it. ``how``: further words of a merge."""
    same = " AND ".join(f'row."{name}" = copy."{name}"' for name in ROW)
    merger = table.merge(copies, f"row.{DATE} = '{day}' AND {same}", "copy", "row", **how)
    return merger.when_matched_update({QUALITY: f"array_sort(array_append(row.{QUALITY}, '{COPY}'))"}).execute()


def _marked(quality: pa.ChunkedArray) -> pa.Array:
    """Which of these lists of marks have the mark already."""
    whole = quality.combine_chunks()
    rows = pc.list_parent_indices(whole).filter(pc.equal(pc.list_flatten(whole), COPY))
    return pc.is_in(pa.array(np.arange(len(whole))), value_set=rows)


def _batches(rows: ds.Dataset, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """The rows that have all of the columns; of others, in a table of another origin, nothing can be told."""
    for batch in rows.to_batches(columns=list(columns), batch_size=ROWS_AT_ONCE):
        yield batch.drop_null()


def _hashes(batch: pa.RecordBatch) -> Any:
    """A number for each row's key; rows with the same key have the same."""
    total = np.zeros(batch.num_rows, np.uint64)
    for name in KEY:
        column = batch.column(name)
        if pa.types.is_integer(column.type):
            part = column.to_numpy(zero_copy_only=False).astype(np.uint64)
        else:
            words = column.dictionary_encode()
            part = pd.util.hash_array(np.array(words.dictionary.to_pylist(), dtype=object))[words.indices.to_numpy()]
        total = total * np.uint64(0x9E3779B97F4A7C15) + part
    return total


def _repeated(hashes: Any) -> Any:
    hashes.sort()
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
