"""Keeping a lake fit, beside its running writer: few files, sorted days, nothing too old, and a short log.

Files are joined by tiers: those below 1 MiB when there are eight of them in a date, then those below 8 MiB, and so on.
A row is so rewritten a few times at most, however slowly a date fills, and a date has a few dozen files at any time.
When a date is over, its files are sorted by device once more, so that who asks for one device reads few, and what was
sent twice is marked. Of late rows, what was sent twice is marked too, but a date is looked at a few times a day at most:
that reads all of its ids.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import partial
from math import inf
from typing import Any, Final

import pyarrow as pa
from deltalake import ColumnProperties, DeltaTable, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError

from .copies import copies_in, mark
from .delta import ATTEMPTS, LOG, NO_HOOKS, PAUSE_S, DeltaLake
from .parquet import DATE, DELTAS, EVENT, NO_DICTIONARY, sync

MIB: Final = 1024 * 1024
TIERS: Final = (MIB, 8 * MIB, 64 * MIB, 256 * MIB)
MANY: Final = 8
CLOSED_AFTER: Final = timedelta(days=2)
# Transactions of the table: how many rows a date had when it was sorted last, and when copies were looked for.
SORTED: Final = "sorted:"
MARKED: Final = "marked:"
GROWN: Final = 1.2  # a sorted date that late rows made so much larger is sorted anew
MARK_EVERY_S: Final = 6 * 3_600
CHECKPOINT_EVERY: Final = 50
SPILL_BYTES: Final = 512 * MIB
WRITING: Final = WriterProperties(
    compression="ZSTD",
    max_row_group_size=500_000,
    column_properties={
        name: ColumnProperties(dictionary_enabled=False, encoding="DELTA_BINARY_PACKED" if name in DELTAS else "PLAIN")
        for name in sorted(NO_DICTIONARY)
    },
)
Files = Mapping[date, list[tuple[int, int]]]


class Upkeep:
    """The upkeep of a lake. ``keep_days``: 0 keeps all. ``vacuum_hours``: how long files stay that are not in it.

    Each step is a commit of its own, or removes only what no version of the last ``vacuum_hours`` names; a writer's
    files that are not committed yet are younger than that. Raises what ``DeltaLake.table`` raises.
    """

    def __init__(self, lake: DeltaLake, keep_days: int = 0, vacuum_hours: int = 24) -> None:
        self.lake = lake
        self._keep_days = keep_days
        self._vacuum_hours = max(1, vacuum_hours)
        self._done_at = time.monotonic()
        self._vacuumed_at = 0.0
        self._checkpoint = -1
        self._rows_when: dict[str, int] = {}
        self._marked_at: dict[date, float] = {}
        self._marked = 0

    def is_due(self, every_s: float) -> bool:
        """Tell whether the last time is so many seconds ago."""
        return time.monotonic() - self._done_at >= every_s

    def run(self, today: date | None = None) -> dict[str, int]:
        """Do what is to be done. Returns ``joined``, ``removed`` and ``vacuumed`` files, ``sorted`` dates, ``marked`` rows."""
        today, self._marked = today or datetime.now(UTC).date(), 0
        counts = {
            "removed": self._retire(today),
            "joined": self._join(),
            "sorted": self._close_dates(today),
            "marked": self._marked,
            "vacuumed": self._vacuum(),
        }
        self._shorten_log()
        self._done_at = time.monotonic()
        return {name: count for name, count in counts.items() if count}

    def _retire(self, today: date) -> int:
        if not 0 < self._keep_days < today.toordinal():  # for ever, or for longer than there are dates
            return 0
        oldest = today - timedelta(days=self._keep_days)
        gone = ", ".join(f"'{day}'" for day, last in self._last_days().items() if last < oldest)
        if not gone:
            return 0
        metrics = self._commit(lambda table: table.delete(f"{DATE} IN ({gone})", post_commithook_properties=NO_HOOKS))
        return int((metrics or {}).get("num_removed_files", 0))

    def _join(self) -> int:
        joined = 0
        for target in TIERS:
            for day, files in self._files().items():
                if sum(size < target for size, _ in files) >= MANY:
                    joined += int((self._compact(day, target) or {}).get("numFilesRemoved", 0))
        return joined

    def _compact(self, day: date, target: int) -> dict[str, Any] | None:
        return self._commit(
            lambda table: table.optimize.compact(
                partition_filters=[(DATE, "=", day.isoformat())],
                target_size=target,
                max_concurrent_tasks=1,
                writer_properties=WRITING,
                post_commithook_properties=NO_HOOKS,
            )
        )

    def _close_dates(self, today: date) -> int:
        """Mark the copies in each date that is over, and in what came late; sort it, again when that made it grow."""
        done = 0
        for day, files in self._files().items():
            rows = sum(count for _, count in files)
            if day > today - CLOSED_AFTER or rows == self._rows(MARKED, day):
                continue
            grown = rows >= self._rows(SORTED, day) * GROWN
            if not grown and time.monotonic() < self._marked_at.get(day, -inf) + MARK_EVERY_S:
                continue
            marked = self._mark(day)
            self._marked += marked or 0
            if marked is None or (grown and self._commit(partial(self._sort_one, day=day)) is None):
                continue  # a writer of the same date is at it: the next time
            # A crash before this has it done once more. (An optimisation carries no transactions of its own.)
            self._commit(partial(self._note, names=(MARKED, SORTED) if grown else (MARKED,), day=day, rows=rows))
            self._marked_at[day] = time.monotonic()
            done += grown
        return done

    def _mark(self, day: date) -> int | None:
        """Mark the copies in a date that is over, and return how many rows they are; None when it gave way."""
        # Dated by another time than their own, copies of a message do not lie together.
        copies = copies_in(self.lake.table(), day) if self.lake.dated_by == EVENT else ()
        if not len(copies):
            return 0
        metrics = self._commit(
            partial(
                mark,
                day=day,
                copies=copies,
                max_spill_size=SPILL_BYTES,
                writer_properties=WRITING,
                post_commithook_properties=NO_HOOKS,
            )
        )
        return None if metrics is None else int(metrics["num_target_rows_updated"])

    def _rows(self, what: str, day: date) -> int:
        """How many rows a date had when this was done last; 0 when it never was."""
        name = what + day.isoformat()
        if name not in self._rows_when:
            self._rows_when[name] = self.lake.table().transaction_version(name) or 0
        return self._rows_when[name]

    def _note(self, table: DeltaTable, names: tuple[str, ...], day: date, rows: int) -> dict[str, Any]:
        noted = {name + day.isoformat(): rows for name in names}
        self.lake.commit([], [Transaction(name, rows) for name in noted], table)
        self._rows_when |= noted
        return {}

    def _sort_one(self, table: DeltaTable, day: date) -> dict[str, Any]:
        return table.optimize.z_order(
            ["device_id"],  # by its first 16 bytes; times stay in the order in which they came
            partition_filters=[(DATE, "=", day.isoformat())],
            target_size=TIERS[-1],
            max_concurrent_tasks=1,
            max_spill_size=SPILL_BYTES,
            writer_properties=WRITING,
            post_commithook_properties=NO_HOOKS,
        )

    def _vacuum(self) -> int:
        """Remove files that are in no version of late, those of killed workers too; a look at all files, so seldom."""
        now = time.monotonic()
        if self._vacuumed_at and now - self._vacuumed_at < 3_600:
            return 0
        self._vacuumed_at = now
        gone = self.lake.table().vacuum(
            retention_hours=self._vacuum_hours,
            enforce_retention_duration=False,
            dry_run=False,
            full=True,
            post_commithook_properties=NO_HOOKS,
        )
        return len(gone)

    def _shorten_log(self) -> None:
        """Write a checkpoint, and only when the disk has it remove the commits of before yesterday."""
        table = self.lake.table()
        version = table.version()
        if version - self._checkpoint < CHECKPOINT_EVERY:
            return
        log = self.lake.folder / LOG
        table.create_checkpoint()
        for path in (*log.glob(f"{version:020d}.checkpoint*"), log / "_last_checkpoint", log):
            sync(path)
        table.cleanup_metadata()
        self._checkpoint = version

    def _commit(self, step: Callable[[DeltaTable], dict[str, Any]]) -> dict[str, Any] | None:
        """Do a step, again on the newest version when the writer was faster; give way, with None, when it always is."""
        for attempt in range(ATTEMPTS):
            before = self.lake.paths()
            try:
                result = step(self.lake.table())
                self.lake.harden(before)
                return result
            except CommitFailedError:
                time.sleep(PAUSE_S * attempt)
        return None

    def _last_days(self) -> dict[date, date]:
        """For each date the last day that its rows are of: a later one, where they were dated by another time once."""
        facts = self._facts()
        columns = (facts[f"partition.{DATE}"], facts[f"max.{self.lake.dated_by}"])
        found: dict[date, date] = {}
        for day, newest in zip(*(column.to_pylist() for column in columns), strict=True):
            # What is stated is up to a millisecond too high.
            last = day if newest is None else (newest - timedelta(milliseconds=1)).date()
            found[day] = max(day, last, found.get(day, day))
        return found

    def _facts(self) -> pa.Table:
        return pa.table(self.lake.table().get_add_actions(flatten=True))

    def _files(self) -> Files:
        """Size and rows of the files of each date."""
        facts = self._facts()
        found: defaultdict[date, list[tuple[int, int]]] = defaultdict(list)
        columns = (facts[f"partition.{DATE}"], facts["size_bytes"], facts["num_records"])
        for day, size, rows in zip(*(column.to_pylist() for column in columns), strict=True):
            found[day].append((size, rows))
        return found
