"""Documents that people may have edited: their members as what they should be, or the one that does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from .errors import DocumentNewer

# Beyond this, JavaScript and the shells of databases round: nobody has counted that far, and no time is that late.
MAX_WHOLE: Final = 2**53

_WORDS: Final = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "object", list: "list"}


def whole(value: object) -> int | None:
    """A whole number of 0 or more, up to 2^53, else None; the shells of some databases write them as floats."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_WHOLE else None


Migration = Callable[[Mapping[str, Any]], Mapping[str, Any]]
NO_MIGRATIONS: Final[Mapping[int, Migration]] = {}


def at_schema(
    body: Mapping[str, Any], what: str, schema: int = 1, migrations: Mapping[int, Migration] = NO_MIGRATIONS
) -> Mapping[str, Any]:
    """A document in the schema that this gateway writes. ``migrations``: by the schema that each leads to the next one.

    What names no schema was written by hand, in the present one. Raises DocumentNewer: whoever does not know a schema
    would misread it, and overwrite what it cannot see. ``what``: the document, for the message.
    """
    found = whole(body.get("schema"))
    if found is None or found == schema:
        return body
    if found > schema:
        raise DocumentNewer(
            f"{what} has schema {found}, and this gateway knows {schema}: it was left as it is; run the newer version here",
            schema=found,
        )
    for number in range(found, schema):
        migrate = migrations.get(number)
        body = body if migrate is None else migrate(body)
    return body


def is_newer(body: Mapping[str, Any] | None, schema: int = 1) -> bool:
    """Whether a document is in a schema that this gateway does not know."""
    return body is not None and (whole(body.get("schema")) or 0) > schema


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
