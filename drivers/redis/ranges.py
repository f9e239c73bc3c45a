"""Reading ranges of the streams with a connection that waits, for workers that do nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from redis import Redis
from redis.exceptions import RedisError

from ...adapters.record import CorruptRecord, Packed, unpack
from ...entities.errors import LogUnavailable, UnknownDomain
from ...entities.message import Entry
from ...entities.position import Bounds, Gap, Partition, Position
from ...use_cases.ports.message_log import Slice
from .endpoint import Endpoint
from .keys import Keys
from .link import source
from .options import DEFAULTS, RedisOptions
from .scripts import READ
from .shelves import State
from .trimming import AT

LIMIT: Final = 1_024
MAX_BYTES: Final = 1 << 20
Row = tuple[bytes, list[bytes]]


class RedisRanges:
    """The ``LogRanges`` of a Redis server. ``url``: redis://, rediss:// or unix://."""

    def __init__(self, url: str, options: RedisOptions = DEFAULTS) -> None:
        self._url = url
        self._keys = Keys(options.prefix)
        self._timeout = options.timeout
        # Knows the server by name and how to say what went wrong; it opens nothing by itself.
        self._endpoint = Endpoint(url, "memory", options)
        self._redis: Redis | None = None

    def __enter__(self) -> Self:
        """Connect. Raises LogUnavailable."""
        client = Redis.from_url(
            self._url,
            protocol=2,
            client_name="iotsphere-ranges",
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
        )
        # The answer as it comes is a list of (id, [field, record]); the library would make dicts of it.
        client.response_callbacks.pop("XRANGE", None)
        self._redis = client
        self._ask("PING")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        if self._redis is not None:
            self._redis.close()
            self._redis = None

    def partitions(self, channel: str, domains: Sequence[str] = ()) -> Sequence[Partition]:
        """The channel's partitions."""
        names = domains or sorted(name.decode() for name in self._ask("SMEMBERS", self._keys.domains))
        found: list[Partition] = []
        for domain in names:
            count = self._ask("HGET", self._keys.channels(domain), channel)
            if count is None and domains:
                raise UnknownDomain(f"there is no channel {channel!a} in a domain {domain!a} of {self._endpoint.name}")
            found += [Partition(domain, channel, number) for number in range(int(count or 0))]
        return sorted(found)

    def bounds(self, partition: Partition) -> Bounds:
        """What is retained."""
        state = self._state(partition)
        return Bounds(state.lineage.position(state.first), state.lineage.position(state.last))

    def at(self, partition: Partition, time: int) -> Position:
        """The position before the first entry that was appended at or after ``time`` (ms)."""
        names = self._keys.partition(partition)
        offset = self._ask("EVAL", source(AT), 3, names.log, names.meta, names.marks, time)
        if offset is None:
            raise self._unknown(partition)
        return self._state(partition).lineage.position(int(offset))

    def read(self, partition: Partition, after: Position, upto: Position) -> Iterator[Slice]:
        """The entries of a range."""
        state = self._state(partition)
        offset, end, before, beyond = state.lineage.span(partition, after, upto, state.first, state.last)
        if before is not None:
            yield Slice(partition, [], state.lineage.position(offset), before)
        log = self._keys.partition(partition).log
        limit = 32  # until it is known how large the records are
        while offset < end:
            place, last = state.lineage.position(offset), state.lineage.position(end)
            rows: list[Row] = self._ask(
                "XRANGE", log, f"({place.epoch}-{place.offset}", f"{last.epoch}-{last.offset}", "COUNT", limit
            )
            if not rows or _offset(rows[0][0]) != offset + 1:
                state = self._state(partition)
                hole = (_offset(rows[0][0]) if rows else end + 1) - 1
                reason = "retention" if hole < state.first else "corrupt"
                yield Slice(partition, [], state.lineage.position(hole), Gap(partition, offset + 1, hole, reason))
                offset = hole
                continue
            for piece in _slices(partition, rows):
                yield piece
                offset = piece.end.offset
            size = sum(len(row[1][1]) for row in rows)
            limit = min(LIMIT, max(1, MAX_BYTES * len(rows) // max(size, 1)))
        if beyond is not None:
            yield Slice(partition, [], state.lineage.position(offset), beyond)

    def _state(self, partition: Partition) -> State:
        """The partition's lineage and bounds, from one moment."""
        names = self._keys.partition(partition)
        # Of one moment, since a script runs by itself: its answer begins with what is known of the partition.
        answer = self._ask("EVAL", source(READ), 2, names.log, names.meta, "-", 0, 0)
        if answer is None:
            raise self._unknown(partition)
        _, last, _, lineage, first = answer[:5]
        return State(lineage, _offset(first) if first else int(last) + 1, int(last))

    def _unknown(self, partition: Partition) -> UnknownDomain:
        return UnknownDomain(f"there is no partition {partition} on {self._endpoint.name}: start its gateway first")

    def _client(self) -> Redis:
        if self._redis is None:
            raise LogUnavailable("this log was closed, or never opened")
        return self._redis

    def _ask(self, *command: str | int) -> Any:
        """Run a command that changes nothing."""
        try:
            return self._client().execute_command(*command)  # type: ignore[no-untyped-call]  # the library's is not typed
        except (RedisError, OSError) as error:
            raise self._endpoint.translate(error) from error


def _offset(stored_id: bytes) -> int:
    return int(stored_id.partition(b"-")[2])


def _slices(partition: Partition, rows: Sequence[Row]) -> Iterator[Slice]:
    """Rows as slices, with damaged records and holes as gaps between them."""
    before = Position(int(rows[0][0].partition(b"-")[0]), _offset(rows[0][0]) - 1)
    # Ids ascend, so ends that fit the count leave no room for a hole: nearly always all is well, and quickly done.
    if rows[-1][0] == b"%d-%d" % (before.epoch, before.offset + len(rows)):
        with suppress(CorruptRecord):
            sound = Packed(partition, before, [row[1][1] for row in rows])
            yield Slice(partition, sound, Position(before.epoch, before.offset + len(rows)))
            return
    entries: list[Entry] = []
    gap: Gap | None = None
    place = before
    for stored_id, (_, record) in rows:
        epoch, _, number = stored_id.partition(b"-")
        position = Position(int(epoch), int(number))
        try:
            if position.offset != place.offset + 1:
                raise CorruptRecord("there is a hole before it")
            entry = unpack(record, partition, position)
        except CorruptRecord:
            if entries:
                yield Slice(partition, entries, place, gap)
                entries, gap = [], None
            if position.offset != place.offset + 1:
                return
            gap = Gap(partition, gap.first if gap is not None else position.offset, position.offset, "corrupt")
        else:
            entries.append(entry)
        place = position
    yield Slice(partition, entries, place, gap)
