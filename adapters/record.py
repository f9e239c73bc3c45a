"""How a record is stored: one binary value with a checksum, the same in every durable driver.

Layout (little endian): crc32 of all that follows, format, flags, appended_at, timestamp, expires_at, then the lengths
of message id and topic, the message id, the topic and the body.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from ..entities.message import Entry, Record
from ..entities.position import Partition, Position

_HEAD: Final = struct.Struct("<BBqqqHH")
_CRC: Final = struct.Struct("<I")
_FORMAT: Final = 1
_RETAIN: Final = 1
_MINTED: Final = 2


class CorruptRecord(ValueError):
    """The stored bytes are not what was written."""


def pack(record: Record, appended_at: int) -> bytes:
    """Turn a record into its stored form."""
    message_id = record.message_id.encode()
    topic = record.topic.encode()
    flags = (_RETAIN if record.retain else 0) | (_MINTED if record.minted else 0)
    rest = b"".join(
        (
            _HEAD.pack(_FORMAT, flags, appended_at, record.timestamp, record.expires_at, len(message_id), len(topic)),
            message_id,
            topic,
            record.body,
        )
    )
    return _CRC.pack(zlib.crc32(rest)) + rest


def unpack(stored: bytes, partition: Partition, position: Position) -> Entry:
    """Turn a stored form back into an entry. Raises CorruptRecord when the checksum or the layout is wrong."""
    if len(stored) < 4 + _HEAD.size or _CRC.unpack_from(stored)[0] != zlib.crc32(memoryview(stored)[4:]):
        raise CorruptRecord(f"{partition} {position.epoch}-{position.offset}: checksum mismatch")
    form, flags, appended_at, timestamp, expires_at, id_length, topic_length = _HEAD.unpack_from(stored, 4)
    if form != _FORMAT:
        raise CorruptRecord(f"{partition} {position.epoch}-{position.offset}: unknown record format {form}")
    start = 4 + _HEAD.size
    middle = start + id_length
    end = middle + topic_length
    record = Record(
        partition,
        stored[middle:end].decode(),
        stored[start:middle].decode(),
        stored[end:],
        timestamp,
        expires_at,
        bool(flags & _RETAIN),
        bool(flags & _MINTED),
    )
    return Entry(position, appended_at, record)
