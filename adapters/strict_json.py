"""Strict JSON, exactly: a scanner that knows why a text is refused and where.

It accepts RFC 8259 and refuses what readers downstream understand differently or choke on: a key given twice at any
level, nesting beyond 32, integers beyond 64 bits, numbers that are not finite, halves of surrogate pairs, and keys
that MongoDB or JavaScript would interpret. Of several faults the first one by position is told, faulty keys last.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from ..entities.errors import MessageRefused
from ..entities.message import MAX_JSON_DEPTH, MAX_KEY_CHARACTERS

MAX_NUMBER_CHARACTERS: Final = 64
MIN_INT64: Final = -(2**63)
MAX_INT64: Final = 2**63 - 1

_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
# Possessive (*+), so that an unterminated string of 256 KiB costs one pass.
_STRING: Final = re.compile(rb'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"')
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*+)((?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)")
_NOT_FINITE: Final = re.compile(rb"[+-]?(?:nan|inf(?:inity)?)(?![A-Za-z0-9_])", re.IGNORECASE)
_BAD_KEY: Final = re.compile(r"\$|[\x00-\x1f\x7f-\x9f.]|.*[\x00-\x1f\x7f-\x9f.]", re.DOTALL)
_WORDS: Final = ((b"true", True), (b"false", False), (b"null", None))
_POLLUTING: Final = frozenset(("__proto__", "constructor", "prototype"))


def key_fault(key: str) -> str | None:
    """Tell what is wrong with a key, or None."""
    if not key:
        return "it is empty"
    if len(key) > MAX_KEY_CHARACTERS:
        return f"it is longer than {MAX_KEY_CHARACTERS} characters"
    if _BAD_KEY.match(key):
        return "it begins with $, or holds a dot or a control character"
    if key in _POLLUTING:
        return "JavaScript would take it for an object's prototype"
    return None


def refuse_key(key: str, why: str) -> MessageRefused:
    """The error for a key that may not travel on."""
    shown = key if len(key) <= 40 else key[:37] + "..."
    return MessageRefused(f"the key {shown!a} is not allowed: {why}; rename it", code="key_not_allowed", key=shown)


def check_utf8(raw: bytes) -> None:
    """Raise MessageRefused (payload_not_utf8) with the position of the first bad byte."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise MessageRefused(
            f"the payload is no UTF-8 at byte {error.start}: send UTF-8 text, or declare the content type",
            code="payload_not_utf8",
            position=error.start,
        ) from error


def integer(token: bytes, position: int = 0) -> int:
    """An integer's value. Raises MessageRefused (number_too_long, int_out_of_range)."""
    _check_length(token, position)
    value = int(token)
    if MIN_INT64 <= value <= MAX_INT64:
        return value
    raise MessageRefused(
        f"the integer at byte {position} needs more than 64 bits: send it as a text or as a float",
        code="int_out_of_range",
        position=position,
    )


def fraction(token: bytes, position: int = 0) -> float:
    """A float's value, with -0.0 as 0.0. Raises MessageRefused (number_too_long, number_not_finite)."""
    _check_length(token, position)
    value = float(token)
    if value in (float("inf"), float("-inf")):
        raise not_finite(position)
    return value or 0.0


def not_finite(position: int) -> MessageRefused:
    """The error for NaN, an infinity, or a number too large for a float."""
    return MessageRefused(
        f"the number at byte {position} is not finite: leave the value out, or send null",
        code="number_not_finite",
        position=position,
    )


def is_not_finite(raw: bytes) -> bool:
    """Tell whether the text begins with a spelling of NaN or infinity, as C's printf and JavaScript write it."""
    return _NOT_FINITE.match(raw) is not None


def _check_length(token: bytes, position: int) -> None:
    if len(token) > MAX_NUMBER_CHARACTERS:
        raise MessageRefused(
            f"the number at byte {position} has more than {MAX_NUMBER_CHARACTERS} characters: round it",
            code="number_too_long",
            position=position,
        )


def scan(raw: bytes) -> object:
    """The value of a JSON text. Raises MessageRefused, whatever the bytes are."""
    check_utf8(raw)
    scanner = _Scanner(raw)
    value = scanner.value(scanner.skip(0), 1)
    if scanner.skip(scanner.at) < len(raw):
        raise scanner.unexpected("the end")
    if scanner.bad_key is not None:
        raise refuse_key(*scanner.bad_key)
    return value


class _Scanner:
    """One pass over one text. ``at`` is where the last value ended, or the place of the fault."""

    __slots__ = ("at", "bad_key", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0
        self.bad_key: tuple[str, str] | None = None

    def skip(self, at: int) -> int:
        found = _SPACE.match(self.raw, at)
        self.at = at = found.end() if found else at
        return at

    def unexpected(self, wanted: str) -> MessageRefused:
        at = self.at
        seen = f"{chr(self.raw[at])!a}" if at < len(self.raw) else "the end of the payload"
        return MessageRefused(
            f"the payload is no JSON: {wanted} was expected at byte {at}, not {seen}; "
            "send a plain number such as 21.5, or a JSON value",
            code="payload_not_json",
            position=at,
        )

    def value(self, at: int, depth: int) -> object:
        """The value that begins at ``at``, at this depth if it is a container. Recurses 32 deep at most."""
        raw = self.raw
        first = raw[at : at + 1]
        if first == b'"':
            return self.string(at)
        if first in (b"{", b"["):
            if depth > MAX_JSON_DEPTH:
                raise MessageRefused(
                    f"the payload nests deeper than {MAX_JSON_DEPTH} at byte {at}: flatten it",
                    code="json_too_deep",
                    position=at,
                )
            return self.object(at, depth) if first == b"{" else self.array(at, depth)
        number = _NUMBER.match(raw, at)
        if number is not None:
            self.at = number.end()
            return fraction(number[0], at) if number[1] else integer(number[0], at)
        for word, meaning in _WORDS:
            if raw.startswith(word, at):
                self.at = at + len(word)
                return meaning
        self.at = at
        if _NOT_FINITE.match(raw, at):
            raise not_finite(at)
        raise self.unexpected("a value")

    def string(self, at: int) -> str:
        found = _STRING.match(self.raw, at)
        if found is None:
            self.at = at
            raise MessageRefused(
                f"the payload is no JSON: the text at byte {at} does not end, or holds a bad escape or a raw control "
                "character",
                code="payload_not_json",
                position=at,
            )
        self.at = found.end()
        token = found[0]
        if 92 not in token:  # a backslash
            return token[1:-1].decode()
        try:
            text: str = orjson.loads(token)
        except orjson.JSONDecodeError as error:
            raise MessageRefused(
                f"the text at byte {at} holds half of a surrogate pair: escape the whole character, or send it as UTF-8",
                code="invalid_string",
                position=at,
            ) from error
        return text

    def array(self, at: int, depth: int) -> list[object]:
        raw = self.raw
        items: list[object] = []
        at = self.skip(at + 1)
        if raw[at : at + 1] == b"]":
            self.at = at + 1
            return items
        while True:
            items.append(self.value(at, depth + 1))
            at = self.skip(self.at)
            mark = raw[at : at + 1]
            if mark == b"]":
                self.at = at + 1
                return items
            if mark != b",":
                raise self.unexpected("a comma or ]")
            at = self.skip(at + 1)

    def object(self, at: int, depth: int) -> dict[str, object]:
        raw = self.raw
        items: dict[str, object] = {}
        at = self.skip(at + 1)
        if raw[at : at + 1] == b"}":
            self.at = at + 1
            return items
        while True:
            if raw[at : at + 1] != b'"':
                raise self.unexpected("a key in double quotes")
            key = self.string(at)
            if key in items:
                raise MessageRefused(
                    f"the key {key[:40]!a} stands twice in one object, again at byte {at}: send each key once",
                    code="json_duplicate_key",
                    key=key[:40],
                    position=at,
                )
            if self.bad_key is None and (why := key_fault(key)) is not None:
                self.bad_key = (key, why)
            at = self.skip(self.at)
            if raw[at : at + 1] != b":":
                raise self.unexpected("a colon")
            at = self.skip(at + 1)
            items[key] = self.value(at, depth + 1)
            at = self.skip(self.at)
            mark = raw[at : at + 1]
            if mark == b"}":
                self.at = at + 1
                return items
            if mark != b",":
                raise self.unexpected("a comma or }")
            at = self.skip(at + 1)
