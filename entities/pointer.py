"""JSON Pointers (RFC 6901): the names of places inside a JSON object, such as ``/settings/interval``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_BAD_ESCAPE: Final = re.compile(r"~(?![01])")


def below(pointer: str, key: str) -> str:
    """The pointer to a key of the object that ``pointer`` names."""
    if "~" in key or "/" in key:
        key = key.replace("~", "~0").replace("/", "~1")
    return f"{pointer}/{key}"


def keys_of(pointer: str) -> list[str]:
    """The keys on the way to a place. Raises ValueError for a text that is no pointer below the whole object."""
    if not pointer.startswith("/"):
        raise ValueError(f"{pointer[:80]!a} is no JSON Pointer")
    keys = pointer[1:].split("/")
    if "~" in pointer:
        if _BAD_ESCAPE.search(pointer):
            raise ValueError(f"{pointer[:80]!a} is no JSON Pointer")
        keys = [key.replace("~1", "/").replace("~0", "~") for key in keys]
    return keys


def is_pointer(text: str) -> bool:
    """Tell whether a text is a pointer below the whole object."""
    return text[:1] == "/" and ("~" not in text or not _BAD_ESCAPE.search(text))


def ancestors(pointer: str) -> Iterator[str]:
    """The pointers to the objects around a place, the nearest first."""
    end = pointer.rfind("/")
    while end > 0:
        yield pointer[:end]
        end = pointer.rfind("/", 0, end)


def holds(pointer: str, place: str) -> bool:
    """Tell whether ``place`` is the place that ``pointer`` names, or lies inside it."""
    return place == pointer or place.startswith(pointer + "/")


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The object with these values at these pointers. No pointer may lie inside another one's value."""
    tree: dict[str, Any] = {}
    for pointer, value in leaves.items():
        *way, last = keys_of(pointer)
        place = tree
        for key in way:
            place = place.setdefault(key, {})
        place[last] = value
    return tree


def find(tree: Any, pointer: str) -> Any:
    """The value at a place inside objects; None where there is none. Raises ValueError for a text that is no pointer."""
    for key in keys_of(pointer):
        if type(tree) is not dict:
            return None
        tree = tree.get(key)
    return tree
