"""Which rows of a lake's date are copies: of messages that were sent again after the gateway had forgotten their ids.

A date is looked at as a whole once it is over. The ids are read first and kept as 8 bytes a row; only where two rows agree
in these is anything compared exactly, which is seldom.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import date
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from ..schema import KEY
from .parquet import DATE

COPY: Final = "duplicate"
PLACE: Final = ("domain", "partition", "offset")
ORDER: Final = ("received_time", "partition", "offset")
ROWS_AT_ONCE: Final = 262_144
Copies = Mapping[tuple[str, int], list[int]]


def copies_in(table: DeltaTable, day: date) -> Copies:
    """Offsets, by domain and partition of the log, of the messages of a date that came before already.

    Of several rows of a device with the same message id, metric and sample, the one that was received first is none.
    """
    rows = table.to_pyarrow_dataset(file_pruning_predicate=[(DATE, "=", day.isoformat())])
    again = _repeated(np.concatenate([np.empty(0, np.uint64), *map(_hashes, _batches(rows, KEY))]))
    if not len(again):
        return {}
    columns = tuple(dict.fromkeys((*KEY, *ORDER, *PLACE)))
    suspects = [
        batch.filter(pa.array(np.isin(_hashes(batch.select(list(KEY))), again))) for batch in _batches(rows, columns)
    ]
    first: dict[Any, tuple[Any, ...]] = {}
    places: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    found = sorted(
        (row for batch in suspects for row in batch.to_pylist()), key=lambda row: [row[name] for name in ORDER]
    )
    for row in found:
        place = tuple(row[name] for name in PLACE)
        if first.setdefault(tuple(row[name] for name in KEY), place) != place:
            places[row["domain"], row["partition"]].add(row["offset"])
    return {log: sorted(offsets) for log, offsets in places.items()}


def predicate(day: date, copies: Copies) -> str:
    """The rows of these messages that are not marked yet, as SQL. Offsets and partitions are numbers, domains are names."""
    parts = (
        f"""(domain = '{domain.replace("'", "''")}' AND "partition" = {partition}
            AND "offset" IN ({", ".join(map(str, offsets))}))"""
        for (domain, partition), offsets in copies.items()
    )
    return f"{DATE} = '{day}' AND NOT array_has(quality, '{COPY}') AND ({' OR '.join(parts)})"


def _batches(rows: ds.Dataset, columns: tuple[str, ...]) -> Any:
    return rows.to_batches(columns=list(columns), batch_size=ROWS_AT_ONCE)


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
