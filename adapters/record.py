"""How a record is stored: one binary value with a checksum, the same in every durable driver.

Layout (little endian): crc32 of all that follows, format, flags, appended_at, timestamp, expires_at, then the lengths
of message id and topic, the message id, the topic and the body.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from ..entities.message import Entry, Record
from ..entities.position import Partition, Position

_HEAD: Final = struct.Struct("<BBqqqHH")
_CRC: Final = struct.Struct("<I")
_FORMAT: Final = 1
_RETAIN: Final = 1
_MINTED: Final = 2
_QOS: Final = 2  # of the bits that say how much less than 2 the QoS is, so that older records have 2
_START: Final = _CRC.size + _HEAD.size
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
    form, flags, appended_at, timestamp, expires_at, id_length, topic_length = _HEAD.unpack_from(stored, 4)
    if form != _FORMAT:
        raise CorruptRecord(f"{partition} {position.epoch}-{position.offset}: unknown record format {form}")
    middle = _START + id_length
    end = middle + topic_length
    topic = stored[middle:end].decode()
    message_id = stored[_START:middle].decode()
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
