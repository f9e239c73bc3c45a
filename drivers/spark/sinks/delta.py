"""A Delta table of readings: workers write files, and the driver makes them visible in one commit, each reading once.

A sample is in the table once for each place in the log (domain, partition, offset) at which its message stands. The
commit that brings rows also says, as a Delta transaction, up to which offset of each partition the table has them:

* A batch beyond these marks is new and is committed as it is. That is the usual case and costs nothing.
* A batch that reaches below a mark may be known: it was committed before a crash, its checkpoint was deleted or restored,
  or somebody fills in a range. Only then the table is asked which of the rows it holds.
* Two writers that commit at once collide at the marks; the later one looks again. So no batch number decides what is
  skipped, and a checkpoint of any age can be used with any table.

Sources: the Delta transaction protocol (application transactions, optimistic concurrency).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from ....entities.errors import DatabaseUnavailable, RequestInvalid
from ..unread import Unread
from .opening import PLACE, opened
from .parquet import DATE, EVENT, FACTS, Written, dated, sync, writing

ATTEMPTS: Final = 12
PAUSE_S: Final = 0.2
MARK: Final = "place:"
LOG: Final = "_delta_log"
CONFIGURATION: Final = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
# Checkpoints and old log files are seen to in the upkeep, where they reach the disk in a safe order.
NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
# For each place of the log: the lowest and highest offset of some rows, and the highest that the table has had.
Marks = Mapping[str, tuple[int, int, int]]


class DeltaLake:
    """A table in a folder that every worker sees under the same path, partitioned by the column ``date``.

    ``dated_by``: the time whose day in UTC that is.
    """

    def __init__(self, folder: Path, dated_by: str = EVENT) -> None:
        self.folder = folder.absolute()
        self.dated_by = dated_by
        self._table: DeltaTable | None = None

    @property
    def exists(self) -> bool:
        """Tell whether something was ever committed here. A full disk leaves an empty log of a table that it did not take."""
        log = self.folder / LOG
        if self._table is None:
            mend(log)
        return any(next(log.glob(kind), None) for kind in ("*.json", "*.checkpoint*.parquet"))

    def table(self) -> DeltaTable:
        """The newest version of the table. Raises RequestInvalid for none, one that cannot be read, and another tool's."""
        try:
            if self._table is not None and self.exists:
                self._table.update_incremental()
                return self._table
            if not self.exists:
                raise RequestInvalid(f"{self.folder} holds no lake: fill it with iotsphere spark lake")
            self._table = opened(self.folder)
        except DeltaError as error:
            self._table = None
            raise RequestInvalid(f"{self.folder} cannot be read as a Delta table: {error}") from error
        return self._table

    def look(self) -> None:
        """Raise RequestInvalid where the folder holds a table already, and not one that rows can be added to."""
        if self.exists:
            self.table()

    def append(self, rows: DataFrame, application: str, batch: int, unread: Unread | None = None) -> dict[str, int]:
        """Write rows with the readings' columns and ``date``, durably, those only that the table does not hold yet.

        ``unread``: the same rows, for workers that read them by themselves; only where some are known already do they
        take the long way.

        Returns ``rows`` and ``files`` written, and ``known`` rows that were there. Repeating it changes nothing. A new
        column of the rows becomes a nullable column of the table. Raises RequestInvalid when a column has another type
        than in the table, and DatabaseUnavailable when the disk does not take it or others commit all the time.
        """
        self.provide(_utc_schema(rows))
        written = self._write(rows, batch) if unread is None else self._write_unread(unread, batch)
        given = sum(file.rows for file in written)
        for attempt in range(ATTEMPTS):
            table = self.table()
            marks = marks_of(written, table)
            if holding := self._holding(table, written, marks):
                fresh = _without(rows, holding, marks)
                self._discard(written)
                written = self._write(fresh, batch)
                marks = marks_of(written, table)
            if not written:
                break
            try:
                self.commit(written, [*_marked(marks), Transaction(application, batch)], table)
                break
            except CommitFailedError:
                time.sleep(PAUSE_S * attempt)
            except DeltaError as error:  # a full disk, say; the batch comes again
                raise DatabaseUnavailable(f"nothing can be written to {self.folder}: {error}") from error
        else:
            self._discard(written)
            raise DatabaseUnavailable(f"other writers changed {self.folder} {ATTEMPTS} times meanwhile: run it again")
        kept = sum(file.rows for file in written)
        return {"rows": kept, "known": given - kept, "files": len(written)}

    def provide(self, schema: pa.Schema) -> None:
        """Make the table, or give it the columns that it lacks. Raises RequestInvalid and DatabaseUnavailable."""
        wanted = Schema.from_arrow(schema)
        for attempt in range(ATTEMPTS):
            try:
                if not self.exists:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    DeltaTable.create(
                        str(self.folder), wanted, mode="ignore", partition_by=[DATE], configuration=CONFIGURATION
                    )
                    self._sync(-1)
                there = {field.name: field for field in self.table().schema().fields}
                fresh = []
                for field in wanted.fields:
                    if field.name not in there:
                        fresh.append(Field(field.name, field.type, nullable=True))
                    elif there[field.name].type != field.type:
                        raise RequestInvalid(
                            f"column {field.name} is {field.type} in the readings and {there[field.name].type} in "
                            f"{self.folder}: write to another folder, or give the new column another name"
                        )
                if fresh:
                    self.table().alter.add_columns(fresh, post_commithook_properties=NO_HOOKS)
                    self._table = None
                return
            except CommitFailedError:
                time.sleep(PAUSE_S * attempt)
        raise DatabaseUnavailable(f"other writers changed {self.folder} {ATTEMPTS} times meanwhile: run it again")

    def _write(self, rows: DataFrame, batch: int) -> list[Written]:
        writers = rows.sparkSession.sparkContext.defaultParallelism
        told = rows.coalesce(writers).mapInArrow(writing(self.folder, batch), FACTS).collect()
        return [told_file(row.asDict()) for row in told]

    def _write_unread(self, unread: Unread, batch: int) -> list[Written]:
        write, read, by = writing(self.folder, batch), unread.reading, self.dated_by

        def at_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return write(dated(read(batches), by))

        writers = unread.splits.sparkSession.sparkContext.defaultParallelism
        told = unread.splits.coalesce(writers).mapInArrow(at_once, FACTS).collect()
        return [told_file(row.asDict()) for row in told]

    def commit(self, written: Sequence[Written], transactions: list[Transaction], table: DeltaTable) -> None:
        """Make files visible, all at once and durably. Raises CommitFailedError when somebody else was faster."""
        now = int(time.time() * 1_000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values={DATE: file.date},
                modification_time=now,
                data_change=True,
                stats=file.statistics,
            )
            for file in written
        ]
        before = table.version()
        table.create_write_transaction(
            actions,
            mode="append",
            schema=table.schema(),
            partition_by=[DATE],
            commit_properties=CommitProperties(app_transactions=transactions, max_commit_retries=ATTEMPTS),
            post_commithook_properties=NO_HOOKS,
        )
        self._sync(before)

    def paths(self) -> set[str]:
        """The files of the newest version, relative to the folder."""
        return set(pa.table(self.table().get_add_actions())["path"].to_pylist())

    def harden(self, before: set[str]) -> None:
        """Have the disk take the files that joined the table since ``before``, and the newest commits."""
        fresh = [self.folder / path for path in self.paths() - before]
        for path in (*fresh, *{path.parent for path in fresh}):
            sync(path)
        self._sync(self.table().version() - 2)

    def _sync(self, after: int) -> None:
        """Have the disk take the commits after a version, before Spark writes down that the batch is done."""
        log = self.folder / LOG
        version = after + 1
        while (path := log / f"{version:020d}.json").exists():
            sync(path)
            version += 1
        sync(log)

    def _discard(self, written: Sequence[Written]) -> None:
        """Remove files that are not wanted after all, unless a commit that was told to have failed has them."""
        held = self.paths()
        for file in written:
            if file.path not in held:
                (self.folder / file.path).unlink(missing_ok=True)

    def _holding(self, table: DeltaTable, written: Sequence[Written], marks: Marks) -> list[str]:
        """The table's files that may hold some of the rows already: none, when all lie beyond the marks."""
        if all(low > mark for low, _, mark in marks.values()):
            return []
        low, high = _reach(marks)
        facts = pa.table(table.get_add_actions(flatten=True))
        # A message that was taken at another time is another one, although it has the offset of a log that is gone.
        stated = [json.loads(file.statistics) for file in written]
        earliest = datetime.fromisoformat(min(each["minValues"]["received_time"] for each in stated))
        latest = datetime.fromisoformat(max(each["maxValues"]["received_time"] for each in stated))
        columns = ["path", "min.offset", "max.offset", "min.received_time", "max.received_time"]
        return [
            str(self.folder / path)
            for path, first, last, oldest, newest in zip(*(facts[name].to_pylist() for name in columns), strict=True)
            if first <= high and last >= low and oldest <= latest and newest >= earliest
        ]


def _reach(marks: Marks) -> tuple[int, int]:
    """The lowest and the highest offset that may be known, over all places."""
    below = [(low, min(high, mark)) for low, high, mark in marks.values() if low <= mark]
    return min(low for low, _ in below), max(high for _, high in below)


def _without(rows: DataFrame, paths: Sequence[str], marks: Marks) -> DataFrame:
    """The rows that none of the files holds from the same place of the log."""
    held = rows.sparkSession.read.schema(rows.select(*PLACE).schema).parquet(*paths)
    known = held.where(F.col("offset").between(*_reach(marks))).select(*PLACE)
    return rows.join(known, on=list(PLACE), how="left_anti").select(*rows.columns)


def told_file(facts: Mapping[str, Any]) -> Written:
    """A file as a worker told of it."""
    places = {place: (low, high) for place, (low, high) in json.loads(facts["places"]).items()}
    return Written(**{**facts, "places": places})


def marks_of(written: Sequence[Written], table: DeltaTable) -> Marks:
    """For each place of the log in the files: lowest and highest offset, and up to which one the table had it."""
    ends: dict[str, tuple[int, int]] = {}
    for file in written:
        for place, (low, high) in file.places.items():
            before = ends.get(place, (low, high))
            ends[place] = (min(before[0], low), max(before[1], high))
    return {place: (low, high, _mark(table, place)) for place, (low, high) in ends.items()}


def _mark(table: DeltaTable, place: str) -> int:
    mark = table.transaction_version(MARK + place)
    return -1 if mark is None else mark


def _marked(marks: Marks) -> list[Transaction]:
    return [Transaction(MARK + place, max(high, mark)) for place, (_, high, mark) in marks.items()]


def mend(log: Path) -> None:
    """Put aside what a power cut left of the newest commit, so that the table is what it was before.

    Commits are renamed into place whole; one that is empty or torn was never on the disk, and its batch comes again.
    """
    newest = max((path for path in log.glob("[0-9]*.json") if path.stem.isdigit()), default=None)
    if newest is None:
        return
    try:
        for line in newest.read_text(encoding="utf-8").splitlines():
            json.loads(line)
        whole = newest.stat().st_size > 0
    except ValueError:
        whole = False
    if not whole:
        newest.rename(newest.with_suffix(".torn"))


def _utc_schema(rows: DataFrame) -> Any:
    return to_arrow_schema(rows.schema, timezone="UTC", error_on_duplicated_field_names_in_struct=True)
