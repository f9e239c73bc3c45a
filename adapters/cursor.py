"""Cursors on the wire: an opaque text with a signature, bound to its filters and principal.

The text is base64url of a 16-byte signature and a vector. The signature is keyed BLAKE2b (RFC 7693) over the vector
and the scope. The vector: its format, then per domain the name and the entries sorted by partition, each as channel,
number, step of the epoch against the entry before, and offset; numbers are LEB128. A vector can be kept and signed
again for another scope, so many subscribers at the same place cost one vector.
"""

from __future__ import annotations

import binascii
import hmac
import re
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from ..entities.cursor import Cursor
from ..entities.errors import CursorInvalid
from ..entities.position import Partition, Position
from ..entities.topic import CHANNELS

MAX_CURSOR_CHARACTERS: Final = 4_096
_FORMAT: Final = 1
_SIGNATURE_BYTES: Final = 16
_OTHER_CHANNEL: Final = 0x7F
_CODES: Final = {name: code for code, name in enumerate(CHANNELS)}
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_TEXT: Final = re.compile(r"[A-Za-z0-9_-]+\Z")


def encode(cursor: Cursor, key: bytes) -> str:
    """Write a cursor as text. ``key``: 16 to 64 secret bytes."""
    return sign(vector(cursor.positions), cursor.scope, key)


def decode(text: str, scope: str, key: bytes) -> Cursor:
    """Read a cursor back.

    Raises CursorInvalid when the text was altered, was signed with another key, or was made for another scope.
    """
    if not 0 < len(text) <= MAX_CURSOR_CHARACTERS or _TEXT.match(text) is None:
        raise _refuse("the text is no cursor")
    try:
        signed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise _refuse("the text is no cursor") from error
    written = signed[_SIGNATURE_BYTES:]
    # Compared as text: the last character holds unused bits, and a cursor has exactly one spelling.
    if not hmac.compare_digest(sign(written, scope, key), text):
        raise _refuse("it was altered, or made for other filters or another principal")
    return Cursor(scope, _read(written))


def positions_of(text: str) -> Mapping[Partition, Position]:
    """The positions of a cursor whose key is not known: only for those who may read the whole log anyway.

    Raises CursorInvalid when the text is no cursor.
    """
    try:
        written = urlsafe_b64decode(text + "=" * (-len(text) % 4)) if _TEXT.match(text) else b""
    except binascii.Error as error:
        raise _refuse("the text is no cursor") from error
    reader = _Reader(written[_SIGNATURE_BYTES:])
    if reader.number() != _FORMAT:
        raise _refuse("the text is no cursor")
    return _read(reader.raw)


def vector(positions: Mapping[Partition, Position]) -> bytes:
    """The unsigned form of the positions; the same positions always give the same bytes."""
    out = bytearray((_FORMAT,))
    ordered = sorted(positions.items())
    domains = Counter(partition.domain for partition, _ in ordered)
    domain = None
    epoch = 0
    for partition, (now, offset) in ordered:
        if partition.domain != domain:
            domain = partition.domain
            _put_text(out, domain)
            _put(out, domains[domain])
            epoch = 0
        out += _place(partition.channel, partition.number)
        step = now - epoch
        _put(out, step * 2 if step >= 0 else -step * 2 - 1)
        _put(out, offset)
        epoch = now
    return bytes(out)


@lru_cache(maxsize=1_024)
def _place(channel: str, number: int) -> bytes:
    out = bytearray()
    code = _CODES.get(channel)
    if code is None:
        out.append(_OTHER_CHANNEL)
        _put_text(out, channel)
    else:
        out.append(code)
    _put(out, number)
    return bytes(out)


def sign(written: bytes, scope: str, key: bytes) -> str:
    """The cursor text of a vector for one scope. Raises ValueError for a key below 16 or above 64 bytes."""
    if len(key) < 16:
        raise ValueError("a cursor key needs 16 to 64 bytes")
    signature = blake2b(b"%d:%b%b" % (len(written), written, scope.encode()), key=key, digest_size=_SIGNATURE_BYTES)
    encoded = binascii.b2a_base64(signature.digest() + written, newline=False)
    return encoded.translate(_URL_SAFE).rstrip(b"=").decode()


def _put(out: bytearray, number: int) -> None:
    if number < 0:
        raise ValueError("positions are not negative")
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _put_text(out: bytearray, text: str) -> None:
    raw = text.encode()
    _put(out, len(raw))
    out += raw


def _read(written: bytes) -> dict[Partition, Position]:
    reader = _Reader(written)
    if reader.number() != _FORMAT:
        raise _refuse("its format is unknown")
    positions: dict[Partition, Position] = {}
    while reader.at < len(written):
        domain = reader.text()
        epoch = 0
        for _ in range(reader.number()):
            code = reader.number()
            if code == _OTHER_CHANNEL:
                channel = reader.text()
            elif code < len(CHANNELS):
                channel = CHANNELS[code]
            else:
                raise _refuse("it names an unknown channel")
            number = reader.number()
            step = reader.number()
            epoch += -(step + 1 >> 1) if step & 1 else step >> 1
            positions[Partition(domain, channel, number)] = Position(epoch, reader.number())
    return positions


class _Reader:
    __slots__ = ("at", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0

    def number(self) -> int:
        number = shift = 0
        while self.at < len(self.raw) and shift < 70:
            byte = self.raw[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
        raise _refuse("it ends in the middle")

    def text(self) -> str:
        end = self.number() + self.at
        if end > len(self.raw):
            raise _refuse("it ends in the middle")
        raw = self.raw[self.at : end]
        self.at = end
        return raw.decode("utf-8", "replace")


def _refuse(why: str) -> CursorInvalid:
    return CursorInvalid(f"the cursor cannot be used: {why}; subscribe again from live, latest, earliest or a time")
