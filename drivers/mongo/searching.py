"""Questions to a collection: by key, by prefix of the key, and along a declared index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pymongo import ASCENDING

from ...adapters.database.body import at_path
from ...use_cases.ports.database import Index, Stored
from .link import Document

_SCALARS: Final = ["string", "bool", "number"]
_LAST: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)


def by_prefix(prefix: str, after: str) -> Document:
    """Keys that begin with ``prefix`` and come after ``after``, by code point; ids that are no text are left out."""
    wanted: Document = {"$gte": prefix, "$gt": after} if prefix > after else {"$gt": after}
    if (end := _beyond(prefix)) is not None:
        wanted["$lt"] = end
    return {"_id": wanted}


def by_index(index: Index, equal: Sequence[Any], after: Any) -> tuple[Document, list[tuple[str, int]]]:
    """The filter and the order for a search along an index. Values are compared, never interpreted."""
    conditions: list[Document] = [{"_id": {"$gte": ""}}]
    conditions += [{path: {"$not": {"$type": "array"}}} for path in _paths(index)]
    conditions += [{field: {"$eq": value}} for field, value in zip(index.fields, equal, strict=False)]
    conditions += [{field: {"$type": _SCALARS, "$exists": True}} for field in index.fields[len(equal) :]]
    following = index.fields[len(equal)] if len(equal) < len(index.fields) else None
    if type(after) is Stored:
        if following is None:
            conditions.append({"_id": {"$gt": after.key}})
        else:
            value = at_path(after.body, following)
            behind = [{following: {"$gt": value}}, {"_id": {"$gt": after.key}}]
            conditions += [{following: {"$gte": value}}, {"$or": behind}]
    elif after is not None and following is not None:
        conditions.append({following: {"$gt": after}})
    order = [(field, ASCENDING) for field in (*index.fields, "_id")]
    if following is None or len(equal) == len(index.fields) - 1:
        return {"$and": conditions}, order
    # With several fields left, the order is that of the next one, then of the key.
    return {"$and": conditions}, [(following, ASCENDING), ("_id", ASCENDING)]


def _paths(index: Index) -> list[str]:
    """The fields and what they lie in: MongoDB would look into arrays there, and the port does not."""
    paths: dict[str, None] = {}
    for field in index.fields:
        parts = field.split(".")
        paths.update((".".join(parts[: count + 1]), None) for count in range(len(parts)))
    return list(paths)


def _beyond(prefix: str) -> str | None:
    """The least text that comes after all those with this prefix; None where there is none."""
    stem = prefix.rstrip(chr(_LAST))
    if not stem:
        return None
    point = ord(stem[-1]) + 1
    if _SURROGATES[0] <= point <= _SURROGATES[1]:
        point = _SURROGATES[1] + 1
    return stem[:-1] + chr(point)
