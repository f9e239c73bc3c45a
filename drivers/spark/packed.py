"""Stored records of telemetry as columns, thousands at a time: where their parts lie, without an object for each.

Bodies that a gateway wrote have one form: a message id, a time, then what the messages of a topic have in common, then
the payload. What they have in common is parsed once for each topic and not once for each message. A body of any other
form is none of these, and is left to whoever reads records one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from secrets import randbits
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from ...adapters.record import LAYOUT, Packed, unpack
from ...adapters.telemetry_rows import LATEST_MS
from ...adapters.timestamps import CLOCK_UNTRUSTED
from ...entities.message import Entry
from ...entities.position import Position

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_RECORD: Final = np.dtype(list(LAYOUT))
_ID: Final = 36
_HEAD: Final = b'{"metadata":{"messageId":"'
_TIMESTAMP: Final = b'","timestamp":"'
_TIME: Final = 24
_FIXED: Final = len(_HEAD) + _ID + len(_TIMESTAMP) + _TIME
_STAMP: Final = b'"receivedAt":"'
_SEAM: Final = b'},"payload":'
_TEXTS: Final = (slice(len(_HEAD), len(_HEAD) + _ID), slice(_FIXED - _TIME, _FIXED))


class Shared(NamedTuple):
    """What the metadata of a topic's messages say. ``quality``: None where it is good."""

    stamped: bool
    quality: str | None


class Heads:
    """Records of one partition, and what they say of themselves, a value for each. Times are ms since 1970."""

    def __init__(self, pieces: Sequence[Packed]) -> None:
        self.partition = pieces[0].partition
        self.stored = [one for piece in pieces for one in piece.stored]
        self._joined = pa.py_buffer(b"".join(self.stored))
        self.bytes: Bytes = np.frombuffer(self._joined, np.uint8)
        sizes = np.fromiter(map(len, self.stored), np.int64, len(self.stored))
        self.end: Ints = np.cumsum(sizes)
        self.start: Ints = self.end - sizes
        found = _windows(self.bytes, self.start, _RECORD.itemsize).view(_RECORD)[:, 0]
        self.received: Ints = np.clip(found["appended_at"].astype(np.int64), 0, LATEST_MS)
        self.event: Ints = found["timestamp"].astype(np.int64)
        first = self.start + _RECORD.itemsize
        middle = first + found["id_length"]
        self.body: Ints = middle + found["topic_length"]
        self.message_id = self.cut(first, middle).cast(pa.string())
        self.topic = self.cut(middle, self.body).dictionary_encode()
        self.epoch: Ints = np.repeat([piece.before.epoch for piece in pieces], [len(piece) for piece in pieces])
        self.offset: Ints = np.concatenate([piece.before.offset + 1 + np.arange(len(piece)) for piece in pieces])

    def entry(self, index: int) -> Entry:
        """One of them as an entry."""
        position = Position(int(self.epoch[index]), int(self.offset[index]))
        return unpack(self.stored[index], self.partition, position)

    def cut(self, start: Ints, end: Ints) -> Any:
        """The bytes between two places in each record; the places ascend."""
        if not len(start):
            return pa.array([], pa.binary())
        # What lies between two of them is a value too, so that nothing is copied for the values that are dropped.
        edges = np.empty(2 * len(start), np.int32)
        edges[::2], edges[1::2] = start, end
        every = pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), self._joined])
        return every.take(pa.array(np.arange(0, len(edges), 2)))


class Plain(NamedTuple):
    """Records of the usual form, by index; their payloads, parsed; and what their topics share, by number."""

    which: Ints
    payload: list[Any]
    number: Ints
    shared: list[Shared]


def plain_of(heads: Heads) -> Plain:
    """The records of the usual form whose clock is believed."""
    index = np.flatnonzero(heads.end - heads.body > _FIXED + len(_STAMP) + _TIME + len(_SEAM))
    index = index[_fixed(heads, heads.body[index])]
    start, end = heads.start[index], heads.end[index]
    tail = heads.body[index] + _FIXED
    places = zip(index.tolist(), (tail - start).tolist(), strict=True)
    seam = start + np.fromiter(
        (heads.stored[which].find(_SEAM, place) for which, place in places), np.int64, len(index)
    )
    closed = heads.bytes[end - 1] == ord("}")
    kept = (seam > tail) & closed
    index, tail, seam, end = index[kept], tail[kept], seam[kept], end[kept]
    templates = heads.cut(tail, np.where(_stamped(heads.bytes, tail, seam), seam - _TIME - 1, seam)).dictionary_encode()
    meanings = [_shared(template) for template in templates.dictionary.to_pylist()]
    number = templates.indices.to_numpy()
    known = np.array([meaning is not None for meaning in meanings], np.bool_)[number]
    index, number = index[known], number[known].astype(np.int64)
    payload = _parsed(heads.cut(seam[known] + len(_SEAM), end[known] - 1).to_pylist())
    if payload is None:
        return Plain(index[:0], [], index[:0], [])
    return Plain(index, payload, number, [meaning or Shared(stamped=False, quality=None) for meaning in meanings])


def _parsed(payloads: Sequence[bytes]) -> list[Any] | None:
    """The values of JSON texts; None when one of them is none.

    Between two of them stands a number that nobody can know. So two forged halves, such as ``[1`` and ``2],3``, are not
    taken for a value that swallows what lies between them.
    """
    fence = randbits(62)
    try:
        values = orjson.loads(b"[%b]" % (b",%d," % fence).join(payloads))
    except orjson.JSONDecodeError:
        return None
    count = len(payloads)
    return values[::2] if len(values) == max(2 * count - 1, 0) and values[1::2] == [fence] * (count - 1) else None


def _fixed(heads: Heads, body: Ints) -> Bools:
    """Which bodies begin with an id of 36 characters and a time of 24."""
    found = _windows(heads.bytes, body, _FIXED)
    sound: Bools = _clean(found[:, _TEXTS[0]]) & _clean(found[:, _TEXTS[1]])
    sound &= (found[:, : len(_HEAD)] == np.frombuffer(_HEAD, np.uint8)).all(axis=1)
    glue = found[:, _TEXTS[0].stop : _TEXTS[1].start]
    sound &= (glue == np.frombuffer(_TIMESTAMP, np.uint8)).all(axis=1)
    return sound


def _stamped(text: Bytes, tail: Ints, seam: Ints) -> Bools:
    """Which metadata end with the time of reception."""
    width = len(_STAMP) + _TIME + 1
    long = seam - tail > width
    found = _windows(text, np.where(long, seam - width, 0), width)
    named = (found[:, : len(_STAMP)] == np.frombuffer(_STAMP, np.uint8)).all(axis=1)
    return np.asarray(long & named & _clean(found[:, len(_STAMP) : -1]) & (found[:, -1] == ord('"')))


def _clean(text: Bytes) -> Bools:
    """Which texts have neither quotes nor escapes, nor anything that is not ASCII."""
    return np.asarray(((text >= 0x20) & (text < 0x7F) & (text != ord('"')) & (text != ord("\\"))).all(axis=1))


def _windows(text: Bytes, start: Ints, width: int) -> Bytes:
    """So many bytes from each place on."""
    if not len(start):
        return np.empty((0, width), np.uint8)
    return np.lib.stride_tricks.sliding_window_view(text, width)[start]


@lru_cache(maxsize=65_536)
def _shared(template: bytes) -> Shared | None:
    """The meaning of what lies between a message's time and its payload; None where it needs a closer look."""
    last = b'_"' if template.endswith(_STAMP) else b""
    try:
        envelope = orjson.loads(b"".join((_HEAD, b"_", _TIMESTAMP, b"_", template, last, _SEAM, b"0}")))
        metadata, payload = envelope["metadata"], envelope["payload"]
        quality = metadata.get("quality")
    except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
        return None
    if payload != 0 or quality == CLOCK_UNTRUSTED:
        return None
    return Shared("receivedAt" in metadata, None if quality is None or quality == "good" else str(quality))
