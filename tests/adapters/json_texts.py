"""JSON texts for property tests: good ones in every spelling, and ones with a fault or a mutation."""

from __future__ import annotations

import json
from typing import Any, Final

from hypothesis import strategies as st

WHITESPACE: Final = st.sampled_from(("", "", "", " ", "\n", "\t\r "))
KEYS: Final = st.one_of(
    st.sampled_from(
        ("a", "b", "temperature", "ts", "time", "metadata", "payload", "samples", "value", "\u00e4", "x" * 128)
    ),
    st.sampled_from(("", "$set", "a.b", "a\x00", "\x7f", "__proto__", "constructor", "prototype", "x" * 129)),
    st.text(max_size=5),
)
NUMBERS: Final = st.one_of(
    st.integers(-1000, 1000).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(2**65), 2**65).map(str),
    st.sampled_from(
        (
            "0", "-0", "-0.0", "0.0", "-0.05", "1e400", "-1e400", "1e-400", "-1e-400", "7e-06", "1E5", "1e+5", "0.1e1",
            "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
            "18446744073709551615", "18446744073709551616", "1700000000000000000", "9" * 64, "9" * 65, "9" * 400,
            "0." + "1" * 62, "0." + "1" * 63, "1e22", "123456789012345678901234567890.5", "01", "-", "+1", "1.", ".5",
            "1e", "NaN", "Infinity", "-Infinity", "nan", "-inf", "nano", "0x10", "1_000",
        )
    ),
)  # fmt: skip


@st.composite
def strings(draw: st.DrawFn, content: st.SearchStrategy[str] | None = None) -> str:
    """A JSON string, with some of its characters escaped in one of the ways there are."""
    text = draw(content if content is not None else st.text(max_size=8))
    out = []
    for character in text:
        how = draw(st.integers(0, 3))
        if how == 0:
            out.append("".join(f"\\u{unit:04x}" for unit in _utf16(character)))
        elif how == 1:
            out.append(json.dumps(character)[1:-1])
        else:
            out.append(json.dumps(character, ensure_ascii=False)[1:-1])
    return '"' + "".join(out) + '"'


def _utf16(character: str) -> list[int]:
    raw = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]


ODD_STRINGS: Final = st.sampled_from(
    ('"\\ud800"', '"\\ud83d\\ude00"', '"\\ude00"', '"\\u0022"', '"\\""', '"\\\\"', '"-0.0"', '"{[{"', '"\\x"', '"\\u12"', '"a', '"\t"',
     '"1234567890123456789"', '"\\/"')
)  # fmt: skip
SCALARS: Final = st.one_of(NUMBERS, strings(), ODD_STRINGS, st.sampled_from(("true", "false", "null", "True", "nul")))


@st.composite
def _objects(draw: st.DrawFn, children: st.SearchStrategy[str]) -> str:
    names = draw(st.lists(strings(KEYS), max_size=4))
    return "{" + ",".join(_pair(draw, name, draw(children)) for name in names) + "}"


def _pair(draw: st.DrawFn, name: str, value: str) -> str:
    return f"{draw(WHITESPACE)}{name}{draw(WHITESPACE)}:{draw(WHITESPACE)}{value}{draw(WHITESPACE)}"


def _arrays(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.lists(children, max_size=4), WHITESPACE).map(
        lambda parts: "[" + parts[1] + f"{parts[1]},{parts[1]}".join(parts[0]) + "]"
    )


# Each scalar is good or odd on its own, so that most texts of some size hold none or one fault.
TEXTS: Final = st.recursive(SCALARS, lambda inner: st.one_of(_objects(inner), _arrays(inner)), max_leaves=12)

GOOD_SCALARS: Final = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    strings(),
    st.sampled_from(("true", "false", "null")),
)
GOOD_KEYS: Final = st.sampled_from(("a", "b", "c", "ts", "\u00e4", "a\u0022b", "\u20ac", "x-y_z:1"))


@st.composite
def _good_objects(draw: st.DrawFn, children: st.SearchStrategy[str]) -> str:
    names = draw(st.lists(GOOD_KEYS, max_size=4))  # may hold a name twice
    return "{" + ",".join(_pair(draw, draw(strings(st.just(name))), draw(children)) for name in names) + "}"


# Texts whose only possible fault is a key given twice.
CLEAN_TEXTS: Final = st.recursive(
    GOOD_SCALARS, lambda inner: st.one_of(_good_objects(inner), _arrays(inner)), max_leaves=12
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """The bytes of a text with a few of them changed, taken out, put in or doubled."""
    raw = bytearray(draw(TEXTS).encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(raw)))
        cut = draw(st.integers(0, 2))
        raw[at : at + cut] = draw(st.one_of(st.binary(max_size=2), st.sampled_from(JSON_BYTES)))
    return bytes(raw)


JSON_BYTES: Final = tuple(bytes((byte,)) for byte in b'{}[]",:\\u02-+.eE19naNtfl \n')
DENSE: Final = st.lists(st.sampled_from(JSON_BYTES), max_size=14).map(b"".join)


class Twice(Exception):
    """A key stands twice in one object."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for index, (key, _) in enumerate(pairs):
        if any(key == other for other, _ in pairs[:index]):
            raise Twice(key)
    return dict(pairs)


def has_twin(text: str) -> bool:
    """Brute force: does any object of a valid JSON text give a key twice?"""
    try:
        json.loads(text, object_pairs_hook=_once)
    except Twice:
        return True
    return False


def faults(raw: bytes) -> set[str]:
    """All reasons for which a payload that is no plain number may be refused, found with the standard library."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return {"payload_not_utf8"}
    found: set[str] = set()

    def constant(_: str) -> float:
        found.add("number_not_finite")
        return 0.0

    def whole(token: str) -> int:
        if len(token) > 64:
            found.add("number_too_long")
        elif not -(2**63) <= int(token) < 2**63:
            found.add("int_out_of_range")
        return 0

    def real(token: str) -> float:
        if len(token) > 64:
            found.add("number_too_long")
        elif abs(float(token)) == float("inf"):
            found.add("number_not_finite")
        return 0.0

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        if len(set(keys)) < len(keys):
            found.add("json_duplicate_key")
        for key in keys:
            if (
                not key
                or len(key) > 128
                or key.startswith("$")
                or "." in key
                or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in key)
                or key in ("__proto__", "constructor", "prototype")
            ):
                found.add("key_not_allowed")
        if _holds_surrogate(keys) or _holds_surrogate([value for _, value in items]):
            found.add("invalid_string")
        return dict(items)

    try:
        value = json.loads(text, parse_int=whole, parse_float=real, parse_constant=constant, object_pairs_hook=pairs)
    except ValueError:
        # Whatever stands before the place where the text ceases to be JSON may be told first.
        return {
            "payload_not_json", "number_not_finite", "invalid_string", "json_duplicate_key", "number_too_long",
            "int_out_of_range", "json_too_deep",
        }  # fmt: skip
    except RecursionError:
        return {"json_too_deep"}
    if _holds_surrogate(value):
        found.add("invalid_string")
    if _depth(value) > 32:
        found.add("json_too_deep")
    return found


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _holds_surrogate(value: object) -> bool:
    if isinstance(value, str):
        return any(0xD800 <= ord(character) < 0xE000 for character in value)
    if isinstance(value, dict):
        return any(map(_holds_surrogate, value)) or any(map(_holds_surrogate, value.values()))
    return isinstance(value, list) and any(map(_holds_surrogate, value))
