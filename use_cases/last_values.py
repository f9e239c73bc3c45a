"""The last value of each topic, and its retained value: a view of the log that survives restarts.

"Last" is by event time, then by place in the log, so an older sample that arrives late never hides a newer one. The
view is kept in memory, follows the log, and is saved together with the positions that it has seen; after a crash the
rest is read again from the log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ..entities.message import Entry
from ..entities.position import Partition, Position
from ..entities.topic import TopicFilter
from .ports.documents import Documents

POSITIONS_KEY: Final = "$positions"
STEM_LEVELS: Final = 3


class Values(NamedTuple):
    """What is known of one topic: its last entry, and the entry that is its retained value."""

    last: Entry
    retained: Entry | None


Pack = Callable[[Values], bytes]
Unpack = Callable[[str, bytes], Values]


class LastValues:
    """Topic -> Values, by domain and channel. ``pack`` and ``unpack`` (domain, bytes) give them their stored form."""

    def __init__(self, documents: Documents, pack: Pack, unpack: Unpack) -> None:
        self._documents = documents
        self._pack = pack
        self._unpack = unpack
        self._values: dict[tuple[str, str], dict[str, Values]] = {}
        self._below: dict[str, dict[str, str]] = {}  # domain/kind/name -> topic -> channel
        self._changed: dict[str, set[str]] = {}

    def apply(self, entry: Entry) -> None:
        """Take one entry of the log into account. Entries of a partition must come in order; repeats are harmless."""
        record = entry.record
        partition = record.partition
        topics = self._values.get(partition[:2])
        if topics is None:
            topics = self._values.setdefault((partition.domain, partition.channel), {})
        known = topics.get(record.topic)
        if not record.body:
            if known is None or known.retained is None:
                return
            topics[record.topic] = Values(known.last, None)
        elif known is None:
            topics[record.topic] = Values(entry, entry if record.retain else None)
            self._remember(record.topic, partition.channel)
        elif record.timestamp >= known.last.record.timestamp:
            topics[record.topic] = Values(entry, entry if record.retain else known.retained)
        elif record.retain:
            topics[record.topic] = Values(known.last, entry)
        else:
            return
        changed = self._changed.get(partition.domain)
        if changed is None:
            changed = self._changed.setdefault(partition.domain, set())
        changed.add(record.topic)

    def get(self, partition: Partition, topic: str) -> Entry | None:
        """The last entry of one topic."""
        values = self._values.get(partition[:2], {}).get(topic)
        return values.last if values is not None else None

    def below(self, stem: str) -> Iterator[Entry]:
        """The last entry of each topic of one device or user; ``stem``: ``domain/devices/ID`` or ``domain/users/ID``."""
        domain = stem.partition("/")[0]
        for topic, channel in list(self._below.get(stem, {}).items()):
            yield self._values[domain, channel][topic].last

    def latest(self, filters: Iterable[TopicFilter]) -> Iterator[Entry]:
        """The last entry of each topic that a filter selects, each topic once."""
        return (values.last for values in self._select(filters))

    def retained(self, filters: Iterable[TopicFilter]) -> Iterator[Entry]:
        """The retained entry of each topic that a filter selects and that has one."""
        return (values.retained for values in self._select(filters) if values.retained is not None)

    def _remember(self, topic: str, channel: str) -> None:
        self._below.setdefault(_stem(topic.split("/")), {})[topic] = channel

    def _select(self, filters: Iterable[TopicFilter]) -> Iterator[Values]:
        """A filter that names its device or user costs as much as that has topics; others look at all topics."""
        seen: set[str] = set()
        for wanted in filters:
            for topic, channel in self._candidates(wanted):
                if topic not in seen:
                    seen.add(topic)
                    yield self._values[wanted.domain, channel][topic]

    def _candidates(self, wanted: TopicFilter) -> Iterator[tuple[str, str]]:
        stem = wanted.levels[:STEM_LEVELS]
        if len(stem) == STEM_LEVELS and "+" not in stem and "#" not in stem:
            below = self._below.get(_stem(stem), {})
            yield from [(topic, channel) for topic, channel in below.items() if wanted.matches(topic)]
            return
        pattern = _pattern(wanted)  # to make one costs more than to look at a few topics, and it is kept by the library
        for channel in sorted(wanted.channels):
            topics = self._values.get((wanted.domain, channel), {})
            yield from [(topic, channel) for topic in topics if pattern.match(topic)]

    async def load(self, domain: str) -> Mapping[Partition, Position]:
        """Read what was saved; returns the positions to follow the log from (empty: from the beginning)."""
        after = ""
        positions: dict[Partition, Position] = {}
        while documents := await self._documents.scan(_collection(domain), after=after, limit=1_000):
            for document in documents:
                if document.key == POSITIONS_KEY:
                    positions = _read_positions(domain, document.value)
                    continue
                values = self._unpack(domain, document.value)
                channel = values.last.record.partition.channel
                self._values.setdefault((domain, channel), {})[document.key] = values
                self._remember(document.key, channel)
            after = documents[-1].key
        return positions

    async def save(self, domain: str, positions: Mapping[Partition, Position]) -> bool:
        """Save what changed since the last save, with the positions, in one durable write.

        False, and nothing is written, when what is saved already comes from further on in the log.
        """
        known = await self._documents.get(_collection(domain), POSITIONS_KEY)
        if known is not None:
            saved = _read_positions(domain, known.value)
            if any(saved.get(partition, position) > position for partition, position in positions.items()):
                return False
        changed = self._changed.pop(domain, set())
        values: dict[str, bytes | None] = {}
        for (owner, _), topics in self._values.items():
            if owner == domain:
                values.update((topic, self._pack(topics[topic])) for topic in changed if topic in topics)
        values[POSITIONS_KEY] = json.dumps(
            [[p.channel, p.number, position.epoch, position.offset] for p, position in positions.items()]
        ).encode()
        try:
            await self._documents.put_many(_collection(domain), values)
        except BaseException:
            self._changed.setdefault(domain, set()).update(changed)
            raise
        return True


def _stem(levels: Sequence[str]) -> str:
    return "/".join(levels[:STEM_LEVELS])


def _collection(domain: str) -> str:
    return f"last-values/{domain}"


def _read_positions(domain: str, value: bytes) -> dict[Partition, Position]:
    return {
        Partition(domain, channel, number): Position(epoch, offset)
        for channel, number, epoch, offset in json.loads(value)
    }


def _pattern(wanted: TopicFilter) -> re.Pattern[str]:
    parts = []
    for index, level in enumerate(wanted.levels):
        slash = "/" if index else ""
        if level == "#":
            parts.append(f"(?:{slash}.*)?")
        elif level == "+":
            parts.append(f"{slash}[^/]+")
        else:
            parts.append(slash + re.escape(level))
    return re.compile("".join(parts) + r"\Z", re.DOTALL)
