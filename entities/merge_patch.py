"""Merge patches (RFC 7396) and what they do: values and patches in, new values and differences out.

Nothing here alters what it is given: a changed object is a new one that shares all unchanged parts with the old one, so
an unchanged part is known by being the same object. Leaves are what is not an object, and objects without keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from .pointer import below, nested

_ABSENT: Final = object()


class Effect(NamedTuple):
    """What became of the leaves between two objects: new or changed ones by pointer, and those that are gone."""

    put: dict[str, Any]
    gone: list[str]


def same(one: Any, other: Any) -> bool:
    """Tell whether two JSON values are equal. Numbers are by value (1 is 1.0), and true is not 1."""
    if one is other:
        return True
    if type(one) is dict:
        return (
            type(other) is dict
            and one.keys() == other.keys()
            and all(same(item, other[key]) for key, item in one.items())
        )
    if type(one) is list:
        return type(other) is list and len(one) == len(other) and all(map(same, one, other))
    return (type(one) is bool) is (type(other) is bool) and bool(one == other)


def merge(target: Any, patch: Any) -> Any:
    """The target with the patch applied, by RFC 7396; the very same object when that changes nothing."""
    if type(patch) is not dict:
        return target if same(target, patch) else patch
    base = target if type(target) is dict else {}
    result = None
    for key, wanted in patch.items():
        old = base.get(key, _ABSENT)
        new = _ABSENT if wanted is None else merge(old, wanted)
        if new is not old:
            if result is None:
                result = dict(base)
            if new is _ABSENT:
                del result[key]
            else:
                result[key] = new
    return base if result is None else result


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest patch that makes ``new`` of ``old``: ``merge(old, diff(old, new))`` equals ``new``.

    Nulls inside the objects of ``new`` cannot be had by any patch; they come out as if they were not there.
    """
    patch: dict[str, Any] = {}
    if new is old:
        return patch
    for key, value in new.items():
        had = old.get(key, _ABSENT)
        if value is had:
            continue
        if type(value) is dict and type(had) is dict:
            if inner := diff(had, value):
                patch[key] = inner
        elif not same(had, value):
            patch[key] = value
    patch.update((key, None) for key in old if key not in new)
    return patch


def leaves(tree: Mapping[str, Any], pointer: str = "") -> dict[str, Any]:
    """The leaves of an object by pointer."""
    found: dict[str, Any] = {}
    _collect(tree, pointer, found)
    return found


def _collect(tree: Mapping[str, Any], pointer: str, found: dict[str, Any]) -> None:
    for key, value in tree.items():
        place = below(pointer, key)
        if type(value) is dict and value:
            _collect(value, place, found)
        else:
            found[place] = value


def effect(old: Mapping[str, Any], new: Mapping[str, Any]) -> Effect:
    """What became of the leaves. Costs as much as the objects that are not shared by both."""
    found = Effect({}, [])
    _compare(old, new, "", found)
    return found


def _compare(old: Mapping[str, Any], new: Mapping[str, Any], pointer: str, found: Effect) -> None:
    for key in old.keys() | new.keys():
        was, now = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if was is now:
            continue
        place = below(pointer, key)
        if type(was) is dict and was and type(now) is dict and now:
            _compare(was, now, place, found)
            continue
        before = {} if was is _ABSENT else _leaves_at(was, place)
        after = {} if now is _ABSENT else _leaves_at(now, place)
        found.gone.extend(leaf for leaf in before if leaf not in after)
        found.put.update((leaf, value) for leaf, value in after.items() if not same(before.get(leaf, _ABSENT), value))


def _leaves_at(value: Any, place: str) -> dict[str, Any]:
    return leaves(value, place) if type(value) is dict and value else {place: value}


def unmet(wanted: Mapping[str, Any], actual: Any, pointer: str = "") -> dict[str, Any]:
    """The leaves of ``wanted`` that ``actual`` does not hold, by pointer.

    An object without keys is met by any object. Merging the nested result into ``actual`` meets them all.
    """
    found: dict[str, Any] = {}
    _unmet(wanted, actual, pointer, found)
    return found


def _unmet(wanted: Mapping[str, Any], actual: Any, pointer: str, found: dict[str, Any]) -> None:
    there = actual if type(actual) is dict else {}
    for key, value in wanted.items():
        had = there.get(key, _ABSENT)
        if value is had:
            continue
        place = below(pointer, key)
        if type(value) is dict and value:
            _unmet(value, had, place, found)
        elif value == {} and type(value) is dict:
            if type(had) is not dict:
                found[place] = value
        elif not same(value, had):
            found[place] = value


def without_newer(
    patch: Mapping[str, Any], newer: frozenset[str], around: frozenset[str], older: frozenset[str]
) -> Any:
    """The patch less what would touch a leaf that is newer than it.

    ``newer``: the leaves that have to stay; ``around``: the objects that hold them; ``older``: all other leaves. Where
    an object that holds newer leaves is to be removed, only its older leaves go.
    """
    return _spared(patch, "", (newer, around, older))


def _spared(
    patch: Mapping[str, Any], pointer: str, known: tuple[frozenset[str], frozenset[str], frozenset[str]]
) -> dict[str, Any]:
    newer, around, older = known
    kept: dict[str, Any] = {}
    for key, value in patch.items():
        place = below(pointer, key)
        if place in newer:
            continue
        if place not in around:
            kept[key] = value
        elif type(value) is dict:
            if inner := _spared(value, place, known):
                kept[key] = inner
        elif value is None:
            start = len(place)
            inside = {leaf[start:]: None for leaf in older if leaf.startswith(place + "/")}
            if inside:
                kept[key] = nested(inside)
    return kept
