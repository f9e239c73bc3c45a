"""Reading ranges of a log's file while its gateway writes it: a connection of its own that can change nothing."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from ...adapters.record import CorruptRecord, Packed
from ...entities.errors import LogUnavailable, UnknownDomain
from ...entities.position import Bounds, Partition, Position
from ...use_cases.ports.message_log import Slice
from ..lineage import Span, clipped
from . import chunks
from .catalogue import Catalogue
from .chunks import Shelf
from .connection import open_reader, translate
from .file import FILE_NAME

T = TypeVar("T")
LIMIT: Final = 4_096
MAX_BYTES: Final = 1 << 20
Connection = sqlite3.Connection


class SqliteRanges:
    """The ``LogRanges`` of the log in a folder, on the machine where it lies.

    Each slice is read from one consistent state of the file, in a transaction that ends with it, so that a slow reader
    keeps the gateway from nothing.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._catalogue = Catalogue()
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        """Open the file. Raises LogUnavailable."""
        if not self._path.exists():
            raise LogUnavailable(
                f"there is no log at {self._path}: start its gateway first, or name its data folder DIR, in Python as "
                "log='sqlite:DIR', on the command line with --data DIR or IOTSPHERE_DATA"
            )
        try:
            self._connection = open_reader(self._path)
        except sqlite3.Error as error:
            raise translate(error, self._path) from error
        self._ask(self._catalogue.load)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def partitions(self, channel: str, domains: Sequence[str] = ()) -> Sequence[Partition]:
        """The channel's partitions."""
        self._ask(self._catalogue.load)
        found = sorted(one for one in self._catalogue.shelves if one.channel == channel)
        for domain in domains:
            if not any(one.domain == domain for one in found):
                raise UnknownDomain(f"there is no channel {channel!a} in a domain {domain!a} of {self._path}")
        return [one for one in found if not domains or one.domain in domains]

    def bounds(self, partition: Partition) -> Bounds:
        """What is retained."""
        return self._ask(lambda connection: chunks.bounds(connection, self._shelf(partition)))

    def at(self, partition: Partition, time: int) -> Position:
        """The position before the first entry that was appended at or after ``time`` (ms)."""
        return self._ask(lambda connection: chunks.at(connection, self._shelf(partition), time))

    def read(self, partition: Partition, after: Position, upto: Position) -> Iterator[Slice]:
        """The entries of a range."""
        shelf = self._shelf(partition)

        def span(connection: Connection) -> Span:
            kept = chunks.bounds(connection, shelf)
            return shelf.lineage.span(partition, after, upto, kept.first.offset, kept.last.offset)

        start, end, before, beyond = self._ask(span)
        place = shelf.lineage.position(start)
        if before is not None:
            yield Slice(partition, [], place, before)
        while place.offset < end:
            limit = min(end - place.offset, LIMIT)
            piece = self._ask(partial(_sound, shelf=shelf, after=place, end=end)) or self._ask(
                partial(chunks.read, shelf=shelf, after=place, limit=limit, max_bytes=MAX_BYTES)
            )
            entries = [entry for entry in piece.entries if entry.position.offset <= end]
            gap = clipped(piece.gap, end)
            if not entries and gap is None:
                raise LogUnavailable(f"{self._path} ended at {place.offset} while {end} was still to be read: retry")
            yield Slice(partition, entries, piece.end, gap)
            place = piece.end
        if beyond is not None:
            yield Slice(partition, [], place, beyond)

    def _shelf(self, partition: Partition) -> Shelf:
        try:
            return self._catalogue.shelves[partition]
        except KeyError as error:
            raise UnknownDomain(f"there is no partition {partition} in {self._path}") from error

    def _ask(self, question: Callable[[Connection], T]) -> T:
        """Answer a question from one state of the file."""
        connection = self._connection
        if connection is None:
            raise LogUnavailable(f"{self._path} is not open: it was closed, or never opened")
        try:
            connection.execute("BEGIN")
            self._catalogue.follow_epoch(connection)
            answer = question(connection)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise translate(error, self._path) from error
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        return answer


def _sound(connection: Connection, shelf: Shelf, after: Position, end: int) -> Slice | None:
    """The entries after a position as they are stored; None where one of them is damaged, gone, or of another epoch."""
    before = Position(shelf.lineage.position(after.offset + 1).epoch, after.offset)
    if after.offset < chunks.first_retained(connection, shelf) - 1:
        return None
    place, size = after.offset, 0
    found: list[bytes] = []
    with closing(chunks.holding(connection, shelf, place + 1, end)) as rows:
        for first, count, sizes, stored in rows:
            edges = list(accumulate(struct.unpack(f"<{len(sizes) // 4}I", sizes), initial=0))
            if not first <= place + 1 < first + count or len(edges) != count + 1 or edges[-1] != len(stored):
                return None
            start, stop = place + 1 - first, min(count, end + 1 - first)
            found += [stored[edges[index] : edges[index + 1]] for index in range(start, stop)]
            place, size = first + stop - 1, size + len(stored)
            if size >= MAX_BYTES or len(found) >= LIMIT:
                break
    if not found or shelf.lineage.position(place).epoch != before.epoch:
        return None
    with suppress(CorruptRecord):
        return Slice(shelf.partition, Packed(shelf.partition, before, found), Position(before.epoch, place))
    return None
