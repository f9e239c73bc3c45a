"""The data source ``iotsphere``: the log as a Spark table, in batch and in stream, exactly the same rows each time.

Offsets are positions of the log, so a batch that is run again after a crash reads what it read before. The partitions
of the log become splits, which the workers read by themselves and parse where they are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ...entities.errors import RequestInvalid, Unavailable
from ...entities.position import Partition, Position
from ...entities.topic import DEFAULT_DOMAIN
from ...use_cases.ports.log_ranges import LogRanges
from .columns import FORMATS, Format
from .places import Offsets, Places, beginning, offsets, places, resolve, shared, time_of
from .splits import Losses, Split, divided, read_split

Opening = Callable[[str], LogRanges]
OUTAGE_S: Final = 60.0
AHEAD_MS: Final = 60_000  # by which the clock of the log's machine may be ahead
_KNOWN: Final = frozenset(
    name.lower()
    for name in (
        "log", "channel", "domain", "rows", "from", "to", "maxMessagesPerBatch", "splitMessages", "failOnDataLoss",
        "lossesFolder",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of a source, read. ``domains``: empty for all."""

    log: str
    channel: str
    domains: tuple[str, ...]
    form: Format
    start: str
    end: str
    per_batch: int
    per_split: int
    losses: Losses


def read_options(options: Mapping[str, str]) -> Wanted:
    """Read the options. Raises RequestInvalid, naming the option."""
    given = {name.lower(): value for name, value in options.items()}
    if unknown := sorted(given.keys() - _KNOWN):
        raise RequestInvalid(f"the source iotsphere has no option {unknown[0]!a}; see docs/reference/spark.md")
    if not given.get("log"):
        raise RequestInvalid("say which log to read: option log = sqlite:FOLDER or redis://HOST:PORT/DB")
    channel = given.get("channel", "telemetry")
    form = given.get("rows", "readings" if channel == "telemetry" else "messages")
    if form not in FORMATS:
        raise RequestInvalid(f"rows={form!a} is not one of {', '.join(FORMATS)}")
    if form == "readings" and channel != "telemetry":
        raise RequestInvalid(f"the channel {channel!a} holds no readings: use rows=messages")
    domain = given.get("domain", DEFAULT_DOMAIN)
    failing = given.get("failondataloss", "true").lower()
    if failing not in ("true", "false"):
        raise RequestInvalid(f"failOnDataLoss={failing!a} is neither true nor false")
    return Wanted(
        log=given["log"],
        channel=channel,
        domains=() if domain == "*" else tuple(domain.split(",")),
        form=FORMATS[form],
        start=given.get("from", "earliest"),
        end=given.get("to", "latest"),
        per_batch=_count(given, "maxMessagesPerBatch", 100_000),
        per_split=_count(given, "splitMessages", 50_000),
        losses=Losses(failing == "true", given.get("lossesfolder", "")),
    )


def borders(opening: Opening, wanted: Wanted) -> tuple[Places, Places]:
    """Where a range begins and ends, settled now. Raises LogUnavailable, UnknownDomain, RequestInvalid."""
    with opening(wanted.log) as ranges:
        known = ranges.partitions(wanted.channel, wanted.domains)
        now = time.time_ns() // 1_000_000
        start, end = resolve(ranges, known, wanted.start, now), resolve(ranges, known, wanted.end, now)
    since, until = time_of(wanted.start, now), time_of(wanted.end, now)
    if since is not None and since > now + AHEAD_MS:
        raise RequestInvalid(f"from={wanted.start!a} lies in the future: there is nothing yet")
    turned = since is not None and until is not None and since > until
    if turned or (any(start[one] > end[one] for one in known) and not any(start[one] < end[one] for one in known)):
        raise RequestInvalid(f"from={wanted.start!a} lies behind to={wanted.end!a}: exchange them")
    return start, end


def _count(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name.lower(), str(default))
    if not text.isdigit() or int(text) == 0:
        raise RequestInvalid(f"{name}={text!a} is no number above 0")
    return int(text)


class LogSource(DataSource):
    """Register a subclass that says how a log is opened; workers import it, so it lies in a module of the package."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.wanted = read_options(options)

    @staticmethod
    def opening(log: str) -> LogRanges:
        """The ranges of a log by its address; not yet opened."""
        raise NotImplementedError(f"this source does not say how {log} is opened")

    @classmethod
    def name(cls) -> str:
        """What ``spark.read.format`` takes."""
        return "iotsphere"

    def schema(self) -> StructType:
        """The columns of the readings, or those of messages."""
        return self.wanted.form.spark

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - there is one schema for each format
        """Reads once, from ``from`` to ``to``."""
        return LogReader(type(self).opening, self.wanted)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - as above; Spark's name
        """Reads on from ``from``."""
        return LogStreamReader(type(self).opening, self.wanted)


class LogReader(DataSourceReader):
    """Reads the range between two places once."""

    def __init__(self, opening: Opening, wanted: Wanted) -> None:
        self._opening = opening
        self._wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        """The splits. Raises LogUnavailable, RequestInvalid."""
        start, end = borders(self._opening, self._wanted)
        each = self._wanted.per_split
        return [split for one in start for split in divided(Split(one, start[one], end[one]), each)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split, as Arrow batches."""
        if not isinstance(partition, Split):  # Spark's own, where there are no splits at all
            return iter(())
        wanted = self._wanted
        return read_split(partition, lambda: self._opening(wanted.log), wanted.form, wanted.losses)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on; Spark keeps the offsets. One connection, in the process that plans the batches."""

    def __init__(self, opening: Opening, wanted: Wanted) -> None:
        self._opening = opening
        self._wanted = wanted
        self._ranges: LogRanges | None = None
        self._target: Places | None = None
        self._away_since: float | None = None

    def initialOffset(self) -> Offsets:
        """Where a stream without a checkpoint begins."""
        ranges = self._open()
        return offsets(resolve(ranges, self._partitions(), self._wanted.start, time.time_ns() // 1_000_000))

    def getDefaultReadLimit(self) -> ReadLimit:
        """So many messages a batch; Spark calls them rows."""
        return ReadMaxRows(self._wanted.per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        """Take note of the end that is to be reached."""
        ranges = self._open()
        self._target = {partition: ranges.bounds(partition).last for partition in self._partitions()}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Where the next batch ends.

        While the log is away there is nothing new; after a minute of that the stream ends with LogUnavailable.
        """
        try:
            begin, end = self._limits(start)
        except Unavailable as error:
            self.stop()
            self._away_since = self._away_since or time.monotonic()
            if not error.retry or time.monotonic() - self._away_since > OUTAGE_S:
                raise
            return start
        self._away_since = None
        if isinstance(limit, ReadAllAvailable):
            return offsets(end)
        return offsets(shared(begin, end, limit.max_rows if isinstance(limit, ReadMaxRows) else self._wanted.per_batch))

    def reportLatestOffset(self) -> Offsets | None:
        """The end of the log, for the progress; nothing while it is away."""
        try:
            ranges = self._open()
            return offsets({partition: ranges.bounds(partition).last for partition in self._partitions()})
        except Unavailable:  # told by latestOffset
            self.stop()
            return None

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The splits of a batch: from the offsets alone, so that they are the same each time."""
        begin = places(start)
        splits = [Split(one, begin.get(one, Position(0, 0)), upto) for one, upto in places(end).items()]
        return [part for split in splits for part in divided(split, self._wanted.per_split)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split, as Arrow batches."""
        if not isinstance(partition, Split):
            return iter(())
        opening, wanted = self._opening, self._wanted
        return read_split(partition, lambda: opening(wanted.log), wanted.form, wanted.losses)

    def stop(self) -> None:
        """Close the connection."""
        if self._ranges is not None:
            ranges, self._ranges = self._ranges, None
            ranges.__exit__(None, None, None)

    def _open(self) -> LogRanges:
        if self._ranges is None:
            self._ranges = self._opening(self._wanted.log).__enter__()
        return self._ranges

    def _partitions(self) -> Sequence[Partition]:
        return self._open().partitions(self._wanted.channel, self._wanted.domains)

    def _limits(self, start: Offsets) -> tuple[Places, Places]:
        """Where each partition stands, and how far it could be read now; partitions that are new begin at their start."""
        ranges, begin = self._open(), places(start)
        known = self._partitions() if self._target is None else sorted(self._target)
        end: Places = {}
        for partition in sorted({*known, *begin}):
            if partition not in begin:
                begin[partition] = beginning(ranges, partition)
            last = ranges.bounds(partition).last if self._target is None else self._target.get(partition)
            end[partition] = begin[partition] if last is None else last
            if self._target is not None and end[partition].offset < begin[partition].offset:
                end[partition] = begin[partition]
        return begin, end

    def __reduce__(self) -> tuple[Any, ...]:
        """Workers get the reader without its connection."""
        return type(self), (self._opening, self._wanted)
