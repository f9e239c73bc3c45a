"""Strict JSON: a text to its value, refused with a reason where readers downstream would not agree about it.

RFC 8259, narrowed: no key twice in one object, at most 32 levels, integers of 64 bits, finite numbers, whole
characters, and no key that MongoDB or JavaScript would interpret. Linear in the size of the text, whatever it holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Final

from ..entities.errors import MessageRefused
from ..entities.message import MAX_JSON_DEPTH, MAX_KEY_CHARACTERS

MAX_NUMBER_CHARACTERS: Final = 64
MIN_INT64: Final = -(2**63)
MAX_INT64: Final = 2**63 - 1

# Not finite, as C's printf, Python and JavaScript spell it.
_NOT_FINITE: Final = re.compile(r"[+-]?(?:nan|inf(?:inity)?)(?![A-Za-z0-9_])", re.IGNORECASE)
_BAD_CHARACTER: Final = re.compile(r"\A\$|[.\x00-\x1f\x7f-\x9f]")
_POLLUTING: Final = frozenset(("__proto__", "constructor", "prototype"))

_CONTAINERS: Final = frozenset((dict, list))

# Keys that passed the key rules before. Bounded; hostile keys can only make it start anew.
_GOOD_KEYS: Final[set[str]] = set()
MAX_GOOD_KEYS: Final = 8_192
are_known_keys: Final = _GOOD_KEYS.issuperset


def decode(raw: bytes) -> str:
    """The text of UTF-8 bytes. Raises MessageRefused (payload_not_utf8) with the position of the first bad byte."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise MessageRefused(
            f"the payload is no UTF-8 at byte {error.start}: send UTF-8 text, or declare its content type",
            code="payload_not_utf8",
            position=error.start,
        ) from error


def parse(text: str) -> object:
    """The value of a JSON text, not yet surveyed.

    Raises MessageRefused: payload_not_json, json_duplicate_key, json_too_deep, number_not_finite, number_too_long or
    int_out_of_range. The value may still hold halves of surrogate pairs, which no encoder takes.
    """
    try:
        value: object = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        if (found := _NOT_FINITE.match(text, error.pos)) is not None:
            raise not_finite(found[0]) from error
        raise _not_json(text, error.pos) from error
    except RecursionError as error:
        raise too_deep() from error
    return value


def survey(value: object) -> tuple[bool, str | None]:
    """Whether a value nests too deep, and a key in it that is not allowed, or None."""
    level = [value]
    bad_key = None
    for _ in range(MAX_JSON_DEPTH):
        below: list[object] = []
        for container in level:
            if type(container) is dict:
                if bad_key is None:
                    bad_key = first_bad_key(container)
                items: Collection[object] = container.values()
            elif type(container) is list:
                items = container
            else:
                continue
            # Asked of all items at once, since most containers hold nothing but scalars.
            if not _CONTAINERS.isdisjoint(map(type, items)):
                below += [item for item in items if type(item) is dict or type(item) is list]
        if not below:
            return False, bad_key
        level = below
    return True, bad_key


def first_bad_key(keys: Iterable[str]) -> str | None:
    """The first key that is not allowed; None in nearly every case, and then fast."""
    if are_known_keys(keys):
        return None
    for key in keys:
        if key not in _GOOD_KEYS:
            if key_fault(key) is not None:
                return key
            if len(_GOOD_KEYS) >= MAX_GOOD_KEYS:
                _GOOD_KEYS.clear()
            _GOOD_KEYS.add(key)
    return None


def key_fault(key: str) -> str | None:
    """Tell what is wrong with a key, or None."""
    if not key:
        return "it is empty"
    if len(key) > MAX_KEY_CHARACTERS:
        return f"it is longer than {MAX_KEY_CHARACTERS} characters"
    if _BAD_CHARACTER.search(key):
        return "it begins with $, or holds a dot or a control character"
    if key in _POLLUTING:
        return "JavaScript would take it for an object's prototype"
    return None


def integer(token: str) -> int:
    """The value of a decimal integer. Raises MessageRefused: number_too_long, int_out_of_range."""
    _check_length(token)
    value = int(token)
    if MIN_INT64 <= value <= MAX_INT64:
        return value
    raise MessageRefused(
        f"the integer {token} needs more than 64 bits: send it as a text or as a float", code="int_out_of_range"
    )


def real(token: str) -> float:
    """The value of a decimal float, -0.0 as 0.0. Raises MessageRefused: number_too_long, number_not_finite."""
    _check_length(token)
    value = float(token)
    if value in (float("inf"), float("-inf")):
        raise not_finite(token)
    return value or 0.0


def key_not_allowed(key: str) -> MessageRefused:
    """The error for a key that may not travel on."""
    return MessageRefused(f"the key {_shown(key)} is not allowed: {key_fault(key)}; rename it", code="key_not_allowed")


def too_deep() -> MessageRefused:
    """The error for a value that nests too deep."""
    return MessageRefused(f"the payload nests deeper than {MAX_JSON_DEPTH} levels: flatten it", code="json_too_deep")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    items = dict(pairs)
    if len(items) == len(pairs):
        return items
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            break
        seen.add(key)
    raise MessageRefused(
        f"the key {_shown(key)} stands twice in one object: send each key once", code="json_duplicate_key"
    )


def _check_length(token: str) -> None:
    if len(token) > MAX_NUMBER_CHARACTERS:
        raise MessageRefused(
            f"the number {token[:20]}... has more than {MAX_NUMBER_CHARACTERS} characters: round it",
            code="number_too_long",
        )


def is_not_finite(text: str) -> bool:
    """Tell whether the text begins with a spelling of NaN or infinity."""
    return _NOT_FINITE.match(text) is not None


def not_finite(token: str) -> MessageRefused:
    """The error for NaN, an infinity, or a number too large for a float."""
    return MessageRefused(
        f"the number {token[:20]} is not finite: leave the value out, or send null", code="number_not_finite"
    )


def _constant(token: str) -> float:
    raise not_finite(token)


def _not_json(text: str, at: int) -> MessageRefused:
    position = len(text[:at].encode())
    seen = f"{text[at]!a} does not fit there" if at < len(text) else "it ends too early"
    return MessageRefused(
        f"the payload is no JSON at byte {position}, {seen}: send a plain number such as 21.5, or JSON",
        code="payload_not_json",
        position=position,
    )


def _shown(key: str) -> str:
    return f"{key if len(key) <= 40 else key[:37] + '...'!a}"


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_once, parse_int=integer, parse_float=real, parse_constant=_constant
)
