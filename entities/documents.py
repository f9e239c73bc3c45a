"""Documents that people may have edited: their members as what they should be, or the one that does not fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

# Beyond this, JavaScript and the shells of databases round: nobody has counted that far, and no time is that late.
MAX_WHOLE: Final = 2**53

_WORDS: Final = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "object", list: "list"}


def whole(value: object) -> int | None:
    """A whole number of 0 or more, up to 2^53, else None; the shells of some databases write them as floats."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_WHOLE else None


def fitted(body: Mapping[str, Any], form: Mapping[str, type], needed: frozenset[str]) -> dict[str, Any]:
    """The members of a form that a document has, each of its type. Raises ValueError for one that is not, or is missing."""
    found: dict[str, Any] = {}
    for name, kind in form.items():
        value: object = body.get(name)
        if value is None and name not in needed:
            continue
        if kind is int:
            value = whole(value)
        elif kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind or (type(value) is float and not math.isfinite(value)):
            raise ValueError(f"{name} is no {_WORDS[kind]}")
        found[name] = value
    return found
