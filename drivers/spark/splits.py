"""What one worker reads: a range of one partition of the log, as Arrow batches, through short outages."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ...adapters.record import Packed
from ...entities.errors import MessagesMissed, Unavailable
from ...entities.message import Entry
from ...entities.position import Gap, Partition, Position
from ...use_cases.ports.log_ranges import LogRanges
from .columns import Format
from .schema import batch_of

ROWS: Final = 10_000
BYTES: Final = 8 << 20
PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)

logger = logging.getLogger(__name__)


class Split(InputPartition):
    """The messages of a partition after ``start`` up to and with ``end``."""

    def __init__(self, partition: Partition, start: Position, end: Position) -> None:
        super().__init__(None)
        self.partition = partition
        self.start = start
        self.end = end

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """The split that a row names."""
        place = Partition(row["domain"], row["channel"], row["partition"])
        ends = (Position(row[f"{end}_epoch"], row[f"{end}_offset"]) for end in ("start", "end"))
        return cls(place, *ends)

    def row(self) -> tuple[Any, ...]:
        """Its name as a row of the format ``splits``."""
        return (*self.partition, *self.start, *self.end)

    def __repr__(self) -> str:
        return f"{self.partition} {self.start.epoch}-{self.start.offset} to {self.end.epoch}-{self.end.offset}"


def divided(split: Split, most: int) -> list[Split]:
    """The split in parts of at most ``most`` messages, evenly; nothing where it is empty."""
    partition, start, end = split.partition, split.start, split.end
    if start == end:
        return []
    count = end.offset - start.offset
    if count <= most or start == Position(0, 0):
        return [split]
    parts = -(-count // most)
    edges = [start.offset + count * index // parts for index in range(1, parts)]
    stops = [*(Position(end.epoch, edge) for edge in edges), end]
    return [Split(partition, *pair) for pair in zip([start, *stops[:-1]], stops, strict=True)]


class Losses(NamedTuple):
    """What to do about messages that are gone. ``folder``: where each gap is noted, as a file that its range names."""

    fail: bool
    folder: str

    def meet(self, gap: Gap) -> None:
        """Raise MessagesMissed, or note the gap."""
        where = (
            f"{gap.partition} offsets {gap.first} to {gap.last}" if gap.missing else f"{gap.partition} from {gap.first}"
        )
        what = f"{gap.missing or 'some'} messages of {where} are gone ({gap.reason})"
        if self.fail:
            raise MessagesMissed(
                f"{what}: begin at another place with --from and a new checkpoint, or read on past them with "
                "failOnDataLoss=false",
                gaps=(gap,),
            )
        logger.warning("%s; reading on, as failOnDataLoss=false says", what)
        if self.folder:
            folder = Path(self.folder)
            folder.mkdir(parents=True, exist_ok=True)
            name = f"{str(gap.partition).replace('/', '~')}~{gap.first}~{gap.last}.json"
            text = json.dumps(
                {"partition": str(gap.partition), "first": gap.first, "last": gap.last, "reason": gap.reason}
            )
            (folder / name).write_text(text + "\n", encoding="utf-8")


def noted(folder: str) -> dict[Path, int]:
    """The notes of gaps in a folder, and when each was written last (ns): what is noted later can be told from them."""
    return {path: path.stat().st_mtime_ns for path in Path(folder).glob("*.json")} if folder else {}


def passed_over(folder: str, before: Mapping[Path, int]) -> int:
    """How many messages the gaps have that were noted since; one that several share counts once.

    A gap of which nobody knows how far it reaches counts as one message.
    """
    fresh = [path for path, written in noted(folder).items() if before.get(path) != written]
    gaps = [json.loads(path.read_text(encoding="utf-8")) for path in fresh]
    found, ends = 0, dict[str, int]()
    for gap in sorted(gaps, key=lambda gap: int(gap["first"])):
        first, last, partition = gap["first"], gap["last"], gap["partition"]
        if last < first:
            found += 1
            continue
        end = ends.get(partition, first - 1)
        found += max(0, last - max(end, first - 1))
        ends[partition] = max(end, last)
    return found


def read_split(
    split: Split, opening: Callable[[], LogRanges], form: Format, losses: Losses
) -> Iterator[pa.RecordBatch]:
    """The rows of a split. Raises MessagesMissed, and LogUnavailable when the log stays away for a quarter minute."""
    if form.name == "splits":  # whoever gets them reads them
        yield batch_of([split.row()], form.arrow())
        return
    waiting = _Waiting(form)
    place = split.start
    pauses = iter(PAUSES_S)
    while True:
        try:
            with opening() as ranges:
                for piece in ranges.read(split.partition, place, split.end):
                    if piece.gap is not None:
                        losses.meet(piece.gap)
                    yield from waiting.add(piece.entries)
                    place = piece.end
            break
        except Unavailable as error:
            pause = next(pauses, None)
            if pause is None or not error.retry:
                raise
            logger.warning("%s: reading %s again in %.1f s", error, split, pause)
            time.sleep(pause)
    yield from waiting.rest()


class _Waiting:
    """Entries that are to become rows, in their order: stored ones all at once, where the format knows how."""

    def __init__(self, form: Format) -> None:
        self._add = form.add
        self._decode = form.decode
        self._schema = form.arrow()
        self._packed: list[Packed] = []
        self._rows: list[tuple[Any, ...]] = []
        self._size = 0

    def add(self, entries: Sequence[Entry]) -> Iterator[pa.RecordBatch]:
        """Take entries, and give the rows of many."""
        if self._decode is not None and isinstance(entries, Packed):
            yield from self._of_rows(0)
            if entries:
                self._packed.append(entries)
                self._size += entries.size
            if self._size >= BYTES or sum(map(len, self._packed)) >= ROWS:
                yield from self._of_packed()
            return
        yield from self._of_packed()
        for entry in entries:
            self._add(entry, self._rows)
        yield from self._of_rows(ROWS - 1)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The rows of all that still waits."""
        yield from self._of_packed()
        yield from self._of_rows(0)

    def _of_packed(self) -> Iterator[pa.RecordBatch]:
        if self._packed and self._decode is not None:
            batch = self._decode(self._packed, self._schema)
            self._packed, self._size = [], 0
            for start in range(0, batch.num_rows, ROWS):
                yield batch.slice(start, ROWS)

    def _of_rows(self, most: int) -> Iterator[pa.RecordBatch]:
        """Rows as batches, until there are no more than so many."""
        while len(self._rows) > most:
            yield batch_of(self._rows[:ROWS], self._schema)
            del self._rows[:ROWS]
