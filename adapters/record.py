"""How a record is stored: one binary value with a checksum, the same in every durable driver.

Layout (little endian): crc32 of all that follows, format, flags, appended_at, timestamp, expires_at, then the lengths
of message id and topic, the message id, the topic and the body.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final, overload
from zlib import crc32

from ..entities.message import Entry, Record, StoredEntries
from ..entities.position import Partition, Position

_HEAD: Final = struct.Struct("<BBqqqHH")
_CRC: Final = struct.Struct("<I")
_SUM: Final = struct.Struct(f"<I{_HEAD.size}x")  # the checksum alone, of a head
_FORMAT: Final = 1
_RETAIN: Final = 1
_MINTED: Final = 2
_QOS: Final = 2  # of the bits that say how much less than 2 the QoS is, so that older records have 2
_START: Final = _CRC.size + _HEAD.size
_TAIL: Final = struct.Struct("<qHH")  # of the head: expires_at and the lengths
_TAIL_AT: Final = _START - _TAIL.size
# What lies before the message id, for those who read many records at a time: names, and types as NumPy writes them.
LAYOUT: Final = (
    ("crc", "<u4"),
    ("format", "u1"),
    ("flags", "u1"),
    ("appended_at", "<i8"),
    ("timestamp", "<i8"),
    ("expires_at", "<i8"),
    ("id_length", "<u2"),
    ("topic_length", "<u2"),
)
_ANY: Final = Partition("", "", 0)
_new: Final = tuple.__new__


class CorruptRecord(ValueError):
    """The stored bytes are not what was written."""


def pack(record: Record, appended_at: int) -> bytes:
    """Turn a record into its stored form."""
    _, topic_text, id_text, body, timestamp, expires_at, retain, minted, qos = record
    message_id = id_text.encode()
    topic = topic_text.encode()
    flags = (_RETAIN if retain else 0) | (_MINTED if minted else 0) | (2 - qos) << _QOS
    head = _HEAD.pack(_FORMAT, flags, appended_at, timestamp, expires_at, len(message_id), len(topic))
    rest = b"".join((head, message_id, topic, body))
    return _CRC.pack(crc32(rest)) + rest


def unpack(stored: bytes, partition: Partition, position: Position) -> Entry:
    """Turn a stored form back into an entry. Raises CorruptRecord when the checksum or the layout is wrong."""
    # A copy of the rest is cheaper than a view of it, up to tens of kilobytes.
    if len(stored) < _START or _CRC.unpack_from(stored)[0] != crc32(stored[4:]):
        raise CorruptRecord(f"{partition} {position.epoch}-{position.offset}: checksum mismatch")
    return _open(stored, partition, position)


def _open(stored: bytes, partition: Partition, position: Position) -> Entry:
    form, flags, appended_at, timestamp, expires_at, id_length, topic_length = _HEAD.unpack_from(stored, 4)
    if form != _FORMAT:
        raise CorruptRecord(f"{partition} {position.epoch}-{position.offset}: unknown record format {form}")
    middle = _START + id_length
    end = middle + topic_length
    if end > len(stored):
        raise CorruptRecord(f"{partition} {position.epoch}-{position.offset}: shorter than it says")
    try:
        topic = stored[middle:end].decode()
        message_id = stored[_START:middle].decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"{partition} {position.epoch}-{position.offset}: its names are no text") from error
    # Made as the tuples that they are: naming the fields costs as much as all the rest.
    facts = (
        partition,
        topic,
        message_id,
        stored[end:],
        timestamp,
        expires_at,
        flags & _RETAIN != 0,
        flags & _MINTED != 0,
        2 - (flags >> _QOS & 3),
    )
    return _new(Entry, (position, appended_at, _new(Record, facts)))


def _places(before: Position, numbers: Iterable[int]) -> list[Position]:
    epoch, offset = before
    offsets = map((offset + 1).__add__, numbers)
    return list(map(_new, repeat(Position), zip(repeat(epoch), offsets)))


class Packed(StoredEntries):
    """Consecutive records as they are stored, all sound; each becomes an entry only where somebody looks at it.

    ``before``: the position before the first. Raises CorruptRecord when one of them is damaged.
    """

    __slots__ = ("before", "partition", "stored")

    def __init__(self, partition: Partition, before: Position, stored: Sequence[bytes]) -> None:
        self.partition = partition
        self.before = before
        self.stored = stored
        if not _sound(stored):
            raise CorruptRecord(f"{partition}: a record after {before.epoch}-{before.offset} is damaged")

    def __len__(self) -> int:
        return len(self.stored)

    def __iter__(self) -> Iterator[Entry]:
        epoch, before = self.before
        for offset, one in enumerate(self.stored, before + 1):
            yield _open(one, self.partition, Position(epoch, offset))

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(index, slice):
            return list(self)[index]
        place = range(len(self.stored))[index]
        return _open(self.stored[place], self.partition, Position(self.before.epoch, self.before.offset + 1 + place))

    def select(self, selects: Callable[[str], bool], now: int) -> tuple[StoredEntries, Sequence[Entry]]:
        """Without taking apart more than what is asked for."""
        chosen: list[int] = []
        bodies: list[bytes] = []
        expired: list[Entry] = []
        known: dict[bytes, bool] = {}
        for place, one in enumerate(self.stored):
            expires_at, id_length, topic_length = _TAIL.unpack_from(one, _TAIL_AT)
            start = _START + id_length
            end = start + topic_length
            topic = one[start:end]
            wanted = known.get(topic)
            if wanted is None:
                wanted = known[topic] = selects(topic.decode())
            if not wanted:
                continue
            if 0 < expires_at <= now:
                expired.append(self[place])
                continue
            chosen.append(place)
            bodies.append(one[end:])
        return Chosen(self, chosen, bodies), expired

    def bodies(self) -> Sequence[bytes]:
        """The body of each."""
        return self.select(lambda _: True, 0)[0].bodies()

    def positions(self) -> Sequence[Position]:
        """The position of each."""
        return _places(self.before, range(len(self.stored)))

    @property
    def size(self) -> int:
        """The bytes of all."""
        return sum(map(len, self.stored))


def _sound(stored: Sequence[bytes]) -> bool:
    """Tell whether all of these can be unpacked; all at once, as a check for each by itself costs twice as much."""
    shortest = min(map(len, stored), default=_START)
    if shortest < _START:
        return False
    heads = b"".join([one[:_START] for one in stored])
    if [each for (each,) in _SUM.iter_unpack(heads)] != [crc32(one[4:]) for one in stored]:
        return False
    if heads[_CRC.size :: _START].count(_FORMAT) != len(stored):
        return False
    # As much as the names of any of them take: nearly always each has that, and it is plain text.
    low_id, high_id, low_topic, high_topic = (max(heads[byte::_START], default=0) for byte in range(_START - 4, _START))
    reach = _START + low_id + low_topic + 256 * (high_id + high_topic)
    if reach <= shortest and b"".join([one[_START:reach] for one in stored]).isascii():
        return True
    return all(map(_is_readable, stored))


def _is_readable(stored: bytes) -> bool:
    """Tell whether a record with the right checksum can be unpacked."""
    try:
        unpack(stored, _ANY, Position(0, 0))
    except CorruptRecord:
        return False
    return True


class Chosen(StoredEntries):
    """Some of the records of a ``Packed``, by their ``places`` there."""

    __slots__ = ("_bodies", "_packed", "_places")

    def __init__(self, packed: Packed, places: Sequence[int], bodies: Sequence[bytes]) -> None:
        self._packed = packed
        self._places = places
        self._bodies = bodies

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Entry]:
        return map(self._packed.__getitem__, self._places)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(index, slice):
            return [self._packed[place] for place in self._places[index]]
        return self._packed[self._places[index]]

    def select(self, selects: Callable[[str], bool], now: int) -> tuple[StoredEntries, Sequence[Entry]]:
        """Those of them that are selected and have not expired, and those that have."""
        places: list[int] = []
        bodies: list[bytes] = []
        expired: list[Entry] = []
        for place, entry in zip(self._places, self, strict=True):
            if not selects(entry.record.topic):
                continue
            if 0 < entry.record.expires_at <= now:
                expired.append(entry)
            else:
                places.append(place)
                bodies.append(entry.record.body)
        return Chosen(self._packed, places, bodies), expired

    def bodies(self) -> Sequence[bytes]:
        """The body of each."""
        return self._bodies

    def positions(self) -> Sequence[Position]:
        """The position of each."""
        return _places(self._packed.before, self._places)
