"""The data types of MQTT's wire format: integers, strings and lengths (MQTT 5 section 1.5), read strictly."""

from __future__ import annotations

from typing import Final

from .reasons import Reason

MAX_VARINT: Final = 268_435_455


class Malformed(ValueError):
    """Bytes that are no MQTT. ``reason``: what a DISCONNECT says of it (0x81, 0x82, 0x94, 0x95 or 0x9B)."""

    def __init__(self, text: str, reason: Reason = Reason.MALFORMED_PACKET) -> None:
        super().__init__(text)
        self.reason = reason


def protocol_error(text: str) -> Malformed:
    """Well-formed bytes that break a rule of the protocol (0x82)."""
    return Malformed(text, Reason.PROTOCOL_ERROR)


def read_u16(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A two-byte integer and the index behind it."""
    if at + 2 > end:
        raise Malformed("a two-byte integer is cut short")
    return data[at] << 8 | data[at + 1], at + 2


def read_u32(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A four-byte integer and the index behind it."""
    if at + 4 > end:
        raise Malformed("a four-byte integer is cut short")
    return int.from_bytes(data[at : at + 4], "big"), at + 4


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A variable byte integer of 1 to 4 bytes in its shortest form, and the index behind it."""
    value = 0
    for shift in (0, 7, 14, 21):
        if at >= end:
            raise Malformed("a variable byte integer is cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if not byte and shift:
                raise Malformed("a variable byte integer is longer than it needs to be")
            return value, at
    raise Malformed("a variable byte integer has more than 4 bytes")


def read_binary(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Up to 65,535 bytes and the index behind them."""
    size, at = read_u16(data, at, end)
    stop = at + size
    if stop > end:
        raise Malformed("a string is longer than its packet")
    return data[at:stop], stop


def read_text(data: bytes, at: int, end: int) -> tuple[str, int]:
    """A UTF-8 string without U+0000 and surrogates, and the index behind it."""
    raw, at = read_binary(data, at, end)
    return text_of(raw), at


def text_of(raw: bytes) -> str:
    """Decode a UTF-8 string by MQTT's rules. Raises Malformed."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise Malformed("a string is not UTF-8") from error
    if "\x00" in text:
        raise Malformed("a string holds U+0000")
    return text


def write_varint(value: int) -> bytes:
    """A variable byte integer."""
    if value < 0x80:
        return bytes((value,))
    if value > MAX_VARINT:
        raise ValueError(f"{value} does not fit into a variable byte integer")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_binary(value: bytes) -> bytes:
    """Bytes with their two-byte length in front. Raises ValueError above 65,535."""
    if len(value) > 0xFFFF:
        raise ValueError(f"{len(value)} bytes do not fit into an MQTT string of at most 65,535")
    return len(value).to_bytes(2, "big") + value


def write_text(value: str) -> bytes:
    """A UTF-8 string with its two-byte length in front."""
    return write_binary(value.encode())
