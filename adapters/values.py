"""How the last and the retained entry of a topic are stored as one document."""

from __future__ import annotations

import struct
from typing import Final

from ..entities.message import Entry
from ..entities.position import Partition, Position
from ..use_cases.last_values import Values
from .record import pack, unpack

_HEAD: Final = struct.Struct("<BHQQI")


def pack_values(values: Values) -> bytes:
    """Turn the values of a topic into bytes."""
    same = values.retained is values.last
    parts = [_pack_entry(values.last, 1 if same else 0)]
    if values.retained is not None and not same:
        parts.append(_pack_entry(values.retained, 1))
    return b"".join(parts)


def unpack_values(domain: str, stored: bytes) -> Values:
    """Turn the bytes back. Raises CorruptRecord when they are not what was written."""
    last, retained, rest = _unpack_entry(domain, stored)
    if rest:
        return Values(last, _unpack_entry(domain, rest)[0])
    return Values(last, last if retained else None)


def _pack_entry(entry: Entry, retained: int) -> bytes:
    partition, position = entry.record.partition, entry.position
    channel = partition.channel.encode()
    body = pack(entry.record, entry.appended_at)
    head = _HEAD.pack(retained, partition.number, position.epoch, position.offset, len(body))
    return b"".join((bytes((len(channel),)), channel, head, body))


def _unpack_entry(domain: str, stored: bytes) -> tuple[Entry, bool, bytes]:
    start = 1 + stored[0]
    channel = stored[1:start].decode()
    retained, number, epoch, offset, length = _HEAD.unpack_from(stored, start)
    start += _HEAD.size
    entry = unpack(stored[start : start + length], Partition(domain, channel, number), Position(epoch, offset))
    return entry, bool(retained), stored[start + length :]
