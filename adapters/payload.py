"""Payloads: from a sender's bytes to canonical JSON, refused with a reason where that is not exactly possible.

The order is declared codec, UTF-8, plain number, strict JSON, key rules, schema. The result is always one JSON object,
written anew, so that what was validated is what travels on: an object stays, an array becomes ``samples``, any other
value becomes ``value``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import orjson

from ..entities.errors import MessageRefused
from ..entities.message import MAX_PAYLOAD_BYTES, MAX_SAMPLES
from .strict_json import (
    are_known_keys,
    decode,
    first_bad_key,
    integer,
    is_not_finite,
    key_not_allowed,
    not_finite,
    parse,
    real,
    survey,
    too_deep,
)

_PLAIN_NUMBER: Final = re.compile(rb"[ \t\r\n]*+([+-]?[0-9]++)((?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)[ \t\r\n]*+\Z")
_NUMBER_STARTS: Final = frozenset(bytes((byte,)) for byte in b"+-0123456789 \t\r\n")
_CONTENT_TYPE: Final = re.compile(r"([!#$&^_.+0-9A-Za-z-]+/[!#$&^_.+0-9A-Za-z-]+) *(;[\x20-\x7e]*)?\Z")
_CHARSET: Final = re.compile(r"; *charset *= *\"?([^\"; ]*)", re.IGNORECASE)
_CHARSETS: Final = frozenset(("utf-8", "utf8", "us-ascii"))
MAX_CONTENT_TYPE_CHARACTERS: Final = 128

# One pass makes every digit 0 and every [ a {, so that long digit runs and the number of containers are seen cheaply.
_SHAPE: Final = bytes.maketrans(b"123456789[", b"000000000{")
_LONG_RUN: Final = b"0" * 19
_NEGATIVE_ZERO: Final = re.compile(rb"-0\.0(?![0-9])")
_QUOTE, _BRACE, _BACKSLASH, _MINUS = b'"{\\-'

# A text up to this length cannot hold too many samples.
_SHORT: Final = 2 * MAX_SAMPLES


class Payload(NamedTuple):
    """A payload as one JSON object: its value, and its canonical bytes."""

    value: dict[str, object]
    canonical: bytes


Decoder = Callable[[bytes], Payload]


def read(raw: bytes, content_type: str | None = None) -> Payload:
    """Read a payload. Raises MessageRefused with a dead-letter reason as ``code``, whatever the bytes are."""
    return read_json(raw) if content_type is None else decoder_of(content_type)(raw)


def canonical(raw: bytes, content_type: str | None = None) -> bytes:
    """The canonical JSON bytes of a payload. Raises MessageRefused as ``read`` does."""
    return read(raw, content_type).canonical


def read_json(raw: bytes) -> Payload:
    """Read a plain number or any JSON value."""
    return Payload(*read_quickly(raw))


def read_quickly(raw: bytes) -> tuple[dict[str, object], bytes]:
    """As ``read_json``, but a bare tuple where that saves time; this one is in the message path.

    The usual payload is proven good by a fast parser and a few counts: each text of the input is still there (so no
    key was given twice), no digit run is long enough for an integer beyond 64 bits. All else is parsed exactly.
    Double quotes count the texts, as long as none is written as an escape that holds no double quote.
    """
    if raw[:1] in _NUMBER_STARTS and (number := _number(raw)) is not None:
        return number
    try:
        parsed = orjson.loads(raw)
        value, quotes = (parsed, 0) if type(parsed) is dict else (wrap(parsed), 2)
        text = orjson.dumps(value)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return read_exactly(raw)
    shape = raw.translate(_SHAPE)
    if (
        (raw == text or raw.count(_QUOTE) + quotes == text.count(_QUOTE))
        and shape.find(_LONG_RUN) < 0
        and (_BACKSLASH not in raw or raw.find(b"u0022") < 0)
        and (_MINUS not in text or text.find(b"-0.0") < 0 or _NEGATIVE_ZERO.search(text) is None)
        and ((are_known_keys(value) or first_bad_key(value) is None) if shape.count(_BRACE) < 2 else _is_good(parsed))
    ):
        return (value, text) if len(text) <= _SHORT else _limited(value, text)
    return read_exactly(raw)


def read_exactly(raw: bytes) -> Payload:
    """As ``read_json``, without its shortcuts: exact about what is refused and why."""
    text = decode(raw)
    number = _number(raw)
    if number is not None:
        return Payload(*number)
    parsed = parse(text)
    deep, bad_key = survey(parsed)
    if deep:
        raise too_deep()
    try:
        content = of_value(parsed)
    except orjson.JSONEncodeError as error:
        raise MessageRefused(
            "a text in the payload holds half of a surrogate pair: escape the whole character, or send it as UTF-8",
            code="invalid_string",
        ) from error
    if bad_key is not None:
        raise key_not_allowed(bad_key)
    return content


def read_number(raw: bytes) -> Payload:
    """Read a plain number, and nothing else."""
    text = decode(raw)
    number = _number(raw)
    if number is not None:
        return Payload(*number)
    if is_not_finite(text.strip()):
        raise not_finite(text.strip())
    raise MessageRefused(
        "a text/plain payload must be one number such as 21.5: leave the unit out, or send JSON",
        code="payload_not_json",
    )


def of_value(parsed: object) -> Payload:
    """The payload of a value that is known to be good, such as the inner one of an envelope."""
    value = wrap(parsed)
    return _limited(value, orjson.dumps(value))


def wrap(parsed: object) -> dict[str, object]:
    """Make any JSON value an object: an array is its ``samples``, any other its ``value``."""
    if type(parsed) is dict:
        return parsed
    return {"samples" if type(parsed) is list else "value": parsed}


CODECS: Final[Mapping[str, Decoder]] = {
    "application/json": read_json,
    "text/json": read_json,
    "text/plain": read_number,
}


@lru_cache(maxsize=256)
def decoder_of(content_type: str) -> Decoder:
    """The decoder of a declared content type (RFC 9110 section 8.3.1). Raises MessageRefused: unknown_codec."""
    found = _CONTENT_TYPE.match(content_type) if len(content_type) <= MAX_CONTENT_TYPE_CHARACTERS else None
    if found is not None:
        media, parameters = found[1].lower(), found[2] or ""
        decoder = read_json if media.endswith("+json") else CODECS.get(media)
        charset = _CHARSET.search(parameters)
        if decoder is not None and (charset is None or charset[1].lower() in _CHARSETS):
            return decoder
    shown = content_type if len(content_type) <= 60 else content_type[:57] + "..."
    raise MessageRefused(
        f"the content type {shown!a} has no decoder here: declare one of {', '.join(CODECS)}, or none for JSON",
        code="unknown_codec",
    )


def _number(raw: bytes) -> tuple[dict[str, object], bytes] | None:
    found = _PLAIN_NUMBER.match(raw)
    if found is None:
        return None
    whole, rest = found.groups()
    value: dict[str, object] = {"value": real((whole + rest).decode()) if rest else integer(whole.decode())}
    return value, orjson.dumps(value)


def _is_good(parsed: object) -> bool:
    return survey(parsed) == (False, None)


def _limited(value: dict[str, object], text: bytes) -> Payload:
    if len(text) > _SHORT:
        samples = value.get("samples")
        if isinstance(samples, list) and len(samples) > MAX_SAMPLES:
            raise MessageRefused(
                f"{len(samples)} samples in one message, {MAX_SAMPLES} are allowed: split it", code="schema_violation"
            )
    return Payload(value, text)


def too_large(size: int) -> MessageRefused:
    """The error for a payload over the limit."""
    return MessageRefused(
        f"the payload holds {size} bytes, {MAX_PAYLOAD_BYTES} are allowed: split it, or send a link",
        code="payload_too_large",
        size=size,
    )
