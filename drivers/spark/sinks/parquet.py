"""What the workers do for the lake: write rows as Parquet files into a table's folder, and say what they have written.

Nobody reads such a file before the table's log names it. One that is never named (its worker was killed, or its task
ran twice) is removed later, with the other files that no version of the table holds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, timedelta
from math import isfinite
from pathlib import Path
from sys import float_info
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

DATE: Final = "date"
EVENT: Final = "event_time"  # whose UTC day is the date of a row, unless its table says another
SORTED_BY: Final = (("device_id", "ascending"), ("event_time", "ascending"), ("metric", "ascending"))
FLUSH_BYTES: Final = 96 * 1024 * 1024  # rows held before they are sorted and written as row groups
FILE_ROWS: Final = 8_000_000
OPEN_FILES: Final = 32
# Differences of sorted times and offsets are small numbers; a dictionary of them would be as long as the column.
DELTAS: Final = ("event_time", "received_time", "skew_ms", "offset")
NO_DICTIONARY: Final = frozenset((*DELTAS, "value"))
# Of every column that has an order: readers take a column without ends for one in which nothing can be found.
ORDERED: Final = (
    pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_timestamp,
)  # fmt: skip
LONGEST: Final = 32  # characters of a text that statistics state
BEYOND: Final = "\U0010ffff"
# How a written file is told to the driver.
FACTS: Final = "path string, date string, size long, rows long, statistics string, places string"


class Written(NamedTuple):
    """A file in the table's folder. ``places``: for each ``domain/partition`` of the log the lowest and highest offset.

    ``statistics``: as a Delta log states them, in JSON.
    """

    path: str
    date: str
    size: int
    rows: int
    statistics: str
    places: dict[str, tuple[int, int]]


def writing(folder: Path, batch: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` that writes all rows into files below a folder and yields their facts."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = _Files(folder, batch)
        held: list[pa.RecordBatch] = []
        size = 0
        try:
            for each in batches:
                held.append(each)
                size += each.nbytes
                if size >= FLUSH_BYTES:
                    files.add(in_utc(pa.Table.from_batches(held)))
                    held, size = [], 0
            if held:
                files.add(in_utc(pa.Table.from_batches(held)))
            written = files.close()
        except BaseException:
            files.abandon()
            raise
        for file in written:
            facts = {**file._asdict(), "places": json.dumps(file.places)}
            yield pa.RecordBatch.from_pylist([facts])

    return write


def dated(batches: Iterable[pa.RecordBatch], by: str = EVENT) -> Iterator[pa.RecordBatch]:
    """Readings as the source gives them, with the UTC ``date`` of one of their times."""
    for batch in batches:
        days = pc.floor_temporal(batch[by].cast(pa.timestamp("us")), unit="day").cast(pa.date32())
        yield batch.append_column(DATE, days)


class _Files:
    """The open files of one task: one for each date, rolled by rows, few at a time."""

    def __init__(self, folder: Path, batch: int) -> None:
        self._folder = folder
        self._batch = batch
        self._open: dict[date, _File] = {}
        self._written: list[Written] = []

    def add(self, rows: pa.Table) -> None:
        for day in pc.unique(rows[DATE]).to_pylist():
            part = rows.filter(pc.equal(rows[DATE], day)).drop_columns([DATE]).sort_by(list(SORTED_BY))
            if not part.num_rows:
                continue
            if day not in self._open:
                if len(self._open) >= OPEN_FILES:
                    self._finish(next(iter(self._open)))
                self._open[day] = _File(self._folder, f"{DATE}={day}/{self._batch:08d}-{uuid4().hex}.parquet", part)
            self._open[day].add(part)
            if self._open[day].rows >= FILE_ROWS:
                self._finish(day)

    def close(self) -> list[Written]:
        for day in list(self._open):
            self._finish(day)
        return self._written

    def abandon(self) -> None:
        """Remove what was written; the task failed."""
        for file in self._open.values():
            file.path.unlink(missing_ok=True)
        for written in self._written:
            (self._folder / written.path).unlink(missing_ok=True)

    def _finish(self, day: date) -> None:
        file = self._open.pop(day)
        try:
            self._written.append(file.close(day))
        except BaseException:
            file.path.unlink(missing_ok=True)
            raise


class _File:
    """A file being written, and what is known about its rows."""

    def __init__(self, folder: Path, name: str, first: pa.Table) -> None:
        self.path = folder / name
        self.rows = 0
        self._name = name
        self._low: dict[str, Any] = {}
        self._high: dict[str, Any] = {}
        self._nulls = dict.fromkeys(first.column_names, 0)
        self._places: dict[str, tuple[int, int]] = {}
        self.path.parent.mkdir(exist_ok=True)
        self._writer = pq.ParquetWriter(
            self.path,
            first.schema,
            compression="zstd",
            use_dictionary=[name for name in first.column_names if name not in NO_DICTIONARY],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in first.column_names if name in DELTAS},
        )

    def add(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)
        self.rows += rows.num_rows
        for name in rows.column_names:
            column = rows[name]
            self._nulls[name] += column.null_count
            if any(kind(column.type) for kind in ORDERED) and column.null_count < len(column):
                ends = pc.min_max(column).as_py()
                low, high = ends["min"], ends["max"]
                if isinstance(low, float) and not (isfinite(low) and isfinite(high)):  # JSON has no other numbers
                    low, high = -float_info.max, float_info.max
                self._low[name] = min(self._low.get(name, low), low)
                self._high[name] = max(self._high.get(name, high), high)
        for place, (low, high) in places(rows).items():
            before = self._places.get(place, (low, high))
            self._places[place] = (min(before[0], low), max(before[1], high))

    def close(self, day: date) -> Written:
        """Finish the file, and have the disk take it: the log must not name what a power cut may still undo."""
        self._writer.close()
        sync(self.path)
        sync(self.path.parent)
        statistics = {
            "numRecords": self.rows,
            "minValues": {name: _stated(value, up=False) for name, value in self._low.items()},
            "maxValues": {name: _stated(value, up=True) for name, value in self._high.items()},
            "nullCount": self._nulls,
        }
        size = self.path.stat().st_size
        return Written(self._name, day.isoformat(), size, self.rows, json.dumps(statistics), self._places)


def in_utc(rows: pa.Table) -> pa.Table:
    """The same instants, written as UTC whatever the zone of the session is."""
    fields = [
        field.with_type(pa.timestamp("us", tz="UTC")) if pa.types.is_timestamp(field.type) else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def places(rows: pa.Table) -> dict[str, tuple[int, int]]:
    """For each ``domain/partition`` of the log the lowest and the highest offset of the rows."""
    found = rows.group_by(["domain", "partition"]).aggregate([("offset", "min"), ("offset", "max")])
    return {f"{row['domain']}/{row['partition']}": (row["offset_min"], row["offset_max"]) for row in found.to_pylist()}


def _stated(value: Any, *, up: bool) -> Any:
    """A value as statistics state it: a time in ms, a text cut short, each rounded so that no row lies outside."""
    if isinstance(value, str) and len(value) > LONGEST and not (up and value[LONGEST] == BEYOND):
        return value[:LONGEST] + (BEYOND if up else "")
    if not isinstance(value, datetime):
        return value
    rest = timedelta(microseconds=value.microsecond % 1_000)
    whole = value - rest + (timedelta(milliseconds=1) if up and rest else timedelta())
    return whole.strftime("%Y-%m-%dT%H:%M:%S.") + f"{whole.microsecond // 1_000:03d}Z"


def sync(path: Path) -> None:
    """Have the disk take a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
