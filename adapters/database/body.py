"""Bodies of a database's documents: what they may hold, and their JSON text and back, alike for every store.

What one store would keep otherwise than another (integers beyond 64 bits, NaN, keys that MongoDB interprets) is refused
here, so that a document comes back equal wherever it is kept.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection as Sized
from collections.abc import Mapping
from typing import Any, Final

import orjson

from ...entities.errors import RequestInvalid
from ...use_cases.ports.database import MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_KEY_BYTES, Body

MIN_INT64: Final = -(2**63)
MAX_INT64: Final = 2**63 - 1
_CONTAINERS: Final = frozenset((dict, list))
NO_OBJECT: Final = "all of it: it is no JSON object"
_DEEP: Final = 254  # levels that can be written as JSON
_DIGITS: Final = 19
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_PLAIN: Final = frozenset((str, bool, type(None)))


def check_key(key: str) -> None:
    """Raise RequestInvalid for a text that no document may be stored under."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise RequestInvalid(f"the key {key!a} holds half a surrogate pair: send whole characters") from error
    if not key or size > MAX_KEY_BYTES or "\0" in key:
        raise RequestInvalid(f"the key {key[:80]!a} must have 1 to {MAX_KEY_BYTES} bytes and no NUL: choose another")


def check_scalar(value: object) -> None:
    """Raise RequestInvalid for what no index can be asked for: only texts, booleans and numbers are."""
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise RequestInvalid(f"the value {value!a} holds half a surrogate pair: send whole characters") from error
    elif type(value) is not bool:
        if type(value) is not int and type(value) is not float:
            raise RequestInvalid(f"an index is asked for a text, a boolean or a number, not for {value!a:.80}")
        _check_number(value)


def encode(body: Body) -> bytes:
    """The JSON text of a body. Raises RequestInvalid for one that may not be stored."""
    for name in body:
        if type(name) is str and (name.startswith("_") or name == "revision"):
            raise RequestInvalid(f"the field {name[:80]!a} belongs to the store: rename it")
    _check(body)
    try:
        text = orjson.dumps(body if type(body) is dict else dict(body))
    except TypeError as error:  # what is left are texts with halves of surrogate pairs
        raise RequestInvalid(f"the document cannot be written as JSON ({error}): send whole characters") from error
    if len(text) > MAX_DOCUMENT_BYTES:
        raise RequestInvalid(
            f"the document has {len(text)} bytes as JSON, and {MAX_DOCUMENT_BYTES} are allowed: divide it",
            size=len(text),
            limit=MAX_DOCUMENT_BYTES,
        )
    return text


def decode(text: bytes | str) -> dict[str, Any]:
    """The body of a JSON text, whoever wrote it; what no body may hold is replaced, see ``read``."""
    return read(text)[0]


def read(text: bytes | str) -> tuple[dict[str, Any], str]:
    """The body of a JSON text, and what had to be replaced in it ("": nothing), for people write texts too.

    Numbers that are not finite and what lies too deep become null, halves of surrogate pairs and damaged UTF-8 become
    U+FFFD, and what is no JSON object at all an empty one.
    """
    try:
        body = orjson.loads(text)
        if _may_be_deep(text):
            orjson.dumps(body)
    except (orjson.JSONDecodeError, TypeError):  # the latter for what nests too deep to be written again
        return _mended(text)
    return (body, "") if type(body) is dict else ({}, NO_OBJECT)


def _may_be_deep(text: bytes | str) -> bool:
    """A cheap look first: few documents have so many braces."""
    if len(text) < 2 * _DEEP:
        return False
    if isinstance(text, str):
        return text.count("{") + text.count("[") > _DEEP
    return text.count(b"{") + text.count(b"[") > _DEEP


def _mended(text: bytes | str) -> tuple[dict[str, Any], str]:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    clean = raw.decode("utf-8", "replace")
    lost = {"damaged text"} if clean.encode() != raw else set()
    try:
        body = json.loads(clean, parse_int=_integer)
    except (ValueError, RecursionError):
        return {}, NO_OBJECT
    if type(body) is not dict:
        return {}, NO_OBJECT
    return _plain(body, lost, MAX_DEPTH), ", ".join(sorted(lost)) or "a number of too many digits"


def _integer(digits: str) -> int | float:
    """What is beyond 64 bits is rounded, as whoever reads JSON in a browser would have it."""
    return int(digits) if len(digits) < _DIGITS else float(digits)


def _plain(value: Any, lost: set[str], levels: int) -> Any:
    kind = type(value)
    if kind in _CONTAINERS:
        if not levels:
            lost.add(f"what nests deeper than {MAX_DEPTH} levels")
            return None
        if kind is list:
            return [_plain(item, lost, levels - 1) for item in value]
        return {_plain(name, lost, 0): _plain(item, lost, levels - 1) for name, item in value.items()}
    if kind is float and not math.isfinite(value):
        lost.add("a number that is not finite")
        return None
    if kind is str:
        whole = _SURROGATE.sub("\ufffd", value)
        if whole != value:
            lost.add("half a surrogate pair")
        return whole
    return value


def next_revision(revision: int) -> int:
    """The revision of the next write; a person may have set the present one to what nothing can follow."""
    return revision + 1 if revision < MAX_INT64 else 1


def same(one: Body, other: Body) -> bool:
    """Tell whether two bodies are the same JSON: the order of fields does not count, true is not 1, 1 is not 1.0."""
    options = orjson.OPT_SORT_KEYS
    return one == other and orjson.dumps(one, option=options) == orjson.dumps(other, option=options)


def is_text_of(text: bytes, body: Body) -> bool:
    """Tell whether a JSON text says the same as a body; fast where ``encode`` made the text."""
    try:
        return orjson.dumps(body) == text or same(body, decode(text))
    except TypeError:  # what JSON cannot hold is not what is stored
        return False


def at_path(body: Body, path: str) -> Any:
    """The scalar at a dotted path, or None where there is none (null counts as none)."""
    value: Any = body
    for name in path.split("."):
        if type(value) is not dict:
            return None
        value = value.get(name)
    return None if type(value) in _CONTAINERS else value


def equal_scalars(one: object, other: object) -> bool:
    """Equal as an index sees it: 1 and 1.0 are, 1 and true are not."""
    return one == other and (type(one) is bool) is (type(other) is bool)


def _check(body: Body) -> None:
    """Level by level, so that no depth can exhaust the stack."""
    level: list[Any] = [body if type(body) is dict else dict(body)]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            values: Sized[Any] = container
            if type(container) is dict:
                _check_names(container)
                values = container.values()
            for value in values:
                if type(value) in _PLAIN:
                    continue
                if type(value) in _CONTAINERS:
                    below.append(value)
                else:
                    _check_number(value)
        if not below:
            return
        level = below
    raise RequestInvalid(f"the document nests deeper than {MAX_DEPTH} levels: flatten it")


def _check_names(container: Mapping[Any, Any]) -> None:
    for name in container:
        if type(name) is not str:
            raise RequestInvalid(f"the field name {name!a:.80} is no text: make it one")
        if not name or name[0] == "$" or "." in name or "\0" in name:
            raise RequestInvalid(
                f"the field name {name[:80]!a} is empty, begins with $ or holds a dot or NUL: rename it"
            )


def _check_number(value: object) -> None:
    if type(value) is int:
        if MIN_INT64 <= value <= MAX_INT64:
            return
        raise RequestInvalid(f"the integer {value!a:.80} needs more than 64 bits: store it as a text")
    if type(value) is not float:
        raise RequestInvalid(f"a document holds what JSON holds, not {type(value).__name__}: convert it first")
    if not math.isfinite(value):
        raise RequestInvalid("a number is not finite, which JSON cannot hold: store null or a text")
