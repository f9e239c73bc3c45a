"""Cutting a JSON text into the raw texts of its members, so that each payload reaches the edge byte for byte.

Only the structure is looked at. Whether a piece is JSON is for the reader of the piece to say.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from ...entities.errors import RequestInvalid

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_MARK: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},]', re.DOTALL)
_SPACE: Final = b" \t\r\n"
MAX_MARKS: Final = 100_000  # so that cutting a hostile megabyte costs some 20 ms


def members(raw: bytes, what: str) -> dict[str, bytes]:
    """The members of an object: key -> raw text. Raises RequestInvalid; ``what`` names the object in the message."""
    found: dict[str, bytes] = {}
    for piece in _cut(raw, b"{", b"}", what):
        key = _STRING.match(piece)
        rest = piece[key.end() :].lstrip(_SPACE) if key is not None else b""
        if key is None or not rest.startswith(b":"):
            raise RequestInvalid(f"{what} is no JSON object: each member needs a key in double quotes and a colon")
        name = text(key[0], f"a key of {what}")
        if name in found:
            raise RequestInvalid(
                f"{what} has the key {name[:40]!a} twice: send each key once", code="json_duplicate_key"
            )
        found[name] = rest[1:].strip(_SPACE)
    return found


def items(raw: bytes, what: str) -> list[bytes]:
    """The items of an array as raw texts. Raises RequestInvalid."""
    return _cut(raw, b"[", b"]", what)


def text(raw: bytes, what: str) -> str:
    """The value of a JSON string. Raises RequestInvalid for anything else."""
    value = _value(raw, what)
    if not isinstance(value, str):
        raise RequestInvalid(f"{what} must be a text")
    return value


def flag(raw: bytes, what: str) -> bool:
    """The value of ``true`` or ``false``. Raises RequestInvalid for anything else."""
    value = _value(raw, what)
    if not isinstance(value, bool):
        raise RequestInvalid(f"{what} must be true or false")
    return value


def _value(raw: bytes, what: str) -> object:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RequestInvalid(f"{what} is no JSON") from error


def _cut(raw: bytes, opening: bytes, closing: bytes, what: str) -> list[bytes]:
    kind = "object" if opening == b"{" else "array"
    raw = raw.strip(_SPACE)
    if not raw.startswith(opening) or not raw.endswith(closing):
        raise RequestInvalid(f"{what} must be a JSON {kind}")
    pieces: list[bytes] = []
    depth = 0
    start = 1
    for count, mark in enumerate(_MARK.finditer(raw)):
        sign = mark[0]
        if count >= MAX_MARKS:
            raise RequestInvalid(f"{what} holds more than {MAX_MARKS} texts, commas and brackets; split the request")
        if sign in (b"{", b"["):
            depth += 1
        elif sign in (b"}", b"]"):
            depth -= 1
            if depth == 0 and mark.end() != len(raw):
                raise RequestInvalid(f"{what} must be one JSON {kind}, with nothing after it")
        elif sign == b"," and depth == 1:
            pieces.append(_piece(raw[start : mark.start()], what))
            start = mark.end()
    if depth != 0:
        raise RequestInvalid(f"{what} is no JSON: a bracket or a quote is missing")
    last = raw[start:-1].strip(_SPACE)
    return [*pieces, _piece(last, what)] if last or pieces else []


def _piece(raw: bytes, what: str) -> bytes:
    piece = raw.strip(_SPACE)
    if not piece:
        raise RequestInvalid(f"{what} is no JSON: there is nothing between two commas")
    return piece
