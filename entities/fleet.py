"""Filters over a fleet: which devices are meant, by id, by label, or by what they last reported."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from .errors import MessageRefused
from .merge_patch import same
from .pointer import find, keys_of
from .shadow import ShadowKey
from .topic import is_device_id, is_shadow_name

MAX_IDS: Final = 10_000
MAX_CONDITIONS: Final = 10
MAX_TEXT: Final = 256
COMPARISONS: Final = ("=", "!=", "<", "<=", ">", ">=", "exists")
_GLOB: Final = re.compile(r"[A-Za-z0-9_.:*?-]{1,64}\Z")


class Condition(NamedTuple):
    """A comparison with one reported leaf.

    Numbers compare with numbers and texts with texts; a leaf that is missing or of another kind meets only ``!=``, and
    ``exists`` with false.
    """

    pointer: str
    comparison: str
    value: Any

    def is_met(self, reported: Mapping[str, Any]) -> bool:
        """Tell whether what is reported meets it."""
        there = find(reported, self.pointer)
        match self.comparison:
            case "exists":
                return (there is not None) is self.value
            case "=":
                return same(there, self.value)
            case "!=":
                return not same(there, self.value)
        if not _are_ordered(there, self.value):
            return False
        match self.comparison:
            case "<":
                return bool(there < self.value)
            case "<=":
                return bool(there <= self.value)
            case ">":
                return bool(there > self.value)
            case _:
                return bool(there >= self.value)


@dataclass(frozen=True, slots=True)
class FleetFilter:
    """Devices that meet everything that is given; what is left empty asks for nothing.

    ``glob``: ``*`` stands for any characters, ``?`` for one. ``shadow``: the name of the one that the conditions look
    at, empty for the main one.
    """

    ids: frozenset[str] = frozenset()
    glob: str = "*"
    labels: tuple[tuple[str, str], ...] = ()
    conditions: tuple[Condition, ...] = ()
    shadow: str = ""

    @property
    def looks_at_shadows(self) -> bool:
        """True when it cannot be decided by id and labels alone."""
        return bool(self.conditions)

    @property
    def prefix(self) -> str:
        """What every device id that it selects begins with."""
        return re.split(r"[*?]", self.glob, maxsplit=1)[0]

    def shadow_of(self, domain: str, device: str) -> ShadowKey:
        """The shadow that decides about a device."""
        return ShadowKey(domain, device, self.shadow)

    def selects(self, device: str, labels: Mapping[str, Any]) -> bool:
        """Tell whether id and labels are meant."""
        if self.ids and device not in self.ids:
            return False
        if self.glob != "*" and _pattern(self.glob).match(device) is None:
            return False
        return all(labels.get(name) == value for name, value in self.labels)

    def matches(self, device: str, labels: Mapping[str, Any], reported: Mapping[str, Any]) -> bool:
        """Tell whether a device with these labels and this reported state is meant."""
        return self.selects(device, labels) and all(condition.is_met(reported) for condition in self.conditions)

    def as_json(self) -> dict[str, Any]:
        """The filter as ``parse_fleet_filter`` reads it."""
        said: dict[str, Any] = {}
        if self.ids:
            said["ids"] = sorted(self.ids)
        if self.glob != "*" or not (self.ids or self.labels or self.conditions):
            said["glob"] = self.glob
        if self.labels:
            said["labels"] = dict(self.labels)
        if self.conditions:
            said["where"] = [
                {"reported": pointer, "is": comparison, "value": value}
                for pointer, comparison, value in self.conditions
            ]
        if self.shadow:
            said["shadow"] = self.shadow
        return said


def parse_fleet_filter(said: object) -> FleetFilter:
    """Read ``{"ids": […], "glob": "pump-*", "labels": {…}, "where": [{"reported": "/battery", "is": "<", "value": 20}],
    "shadow": name}``. ``"prefix": "pump-"`` may stand for a glob.

    Raises MessageRefused (schema_violation). A filter that asks for nothing is refused too: all devices are
    ``{"glob": "*"}``.
    """
    if type(said) is not dict or not said:
        raise _refused('it must be an object; for all devices send {"glob": "*"}')
    if unknown := said.keys() - {"ids", "glob", "prefix", "labels", "where", "shadow"}:
        raise _refused(f"it has the unknown key {min(map(str, unknown))[:40]!a}")
    if not said.keys() - {"shadow"}:
        raise _refused('it asks for nothing; for all devices send {"glob": "*"}')
    ids = said.get("ids", [])
    if type(ids) is not list or len(ids) > MAX_IDS or not all(type(one) is str and is_device_id(one) for one in ids):
        raise _refused(f'"ids" must be a list of up to {MAX_IDS} device ids')
    if "ids" in said and not ids:
        raise _refused('"ids" is empty: name a device, or leave it out')
    shadow = said.get("shadow", "")
    if type(shadow) is not str or (shadow and not is_shadow_name(shadow)):
        raise _refused('"shadow" must be the name of a shadow, or left out')
    return FleetFilter(
        frozenset(ids), _glob(said), _labels(said.get("labels", {})), _where(said.get("where", [])), shadow
    )


def _glob(said: Mapping[str, Any]) -> str:
    if "prefix" in said and "glob" in said:
        raise _refused('"prefix" and "glob" exclude each other')
    glob = said.get("glob", "*")
    if "prefix" in said:
        glob = said["prefix"]
        if type(glob) is not str or "*" in glob or "?" in glob:
            raise _refused('"prefix" must be the beginning of a device id')
        glob += "*"
    if type(glob) is not str or _GLOB.match(glob) is None:
        raise _refused('"glob" must be a device id in which * and ? stand for other characters')
    return glob


def _labels(said: object) -> tuple[tuple[str, str], ...]:
    if type(said) is not dict or not all(
        type(name) is str and type(value) is str and len(name) <= MAX_TEXT and len(value) <= MAX_TEXT
        for name, value in said.items()
    ):
        raise _refused('"labels" must be an object of texts, such as {"site": "north"}')
    return tuple(sorted(said.items()))


def _where(said: object) -> tuple[Condition, ...]:
    if type(said) is not list or len(said) > MAX_CONDITIONS:
        raise _refused(f'"where" must be a list of up to {MAX_CONDITIONS} conditions')
    return tuple(_condition(one) for one in said)


def _condition(said: object) -> Condition:
    example = 'such as {"reported": "/battery", "is": "<", "value": 20}'
    if type(said) is not dict or said.keys() != {"reported", "is", "value"}:
        raise _refused(f"a condition has the keys reported, is and value, {example}")
    pointer, comparison, value = said["reported"], said["is"], said["value"]
    try:
        keys_of(pointer if type(pointer) is str else "")
    except ValueError as error:
        raise _refused(f"a condition names a reported leaf by a JSON Pointer, {example}") from error
    if comparison not in COMPARISONS:
        raise _refused(f'"is" must be one of {", ".join(COMPARISONS)}')
    if comparison == "exists" and type(value) is not bool:
        raise _refused('"exists" takes true or false')
    if type(value) not in (bool, int, float, str) or (type(value) is str and len(value) > MAX_TEXT):
        raise _refused(f"a condition compares with a number, a boolean or a text of up to {MAX_TEXT} characters")
    if comparison in ("<", "<=", ">", ">=") and type(value) is bool:
        raise _refused(f"true and false have no order for {comparison!a}: use = or !=")
    return Condition(pointer, comparison, value)


def _are_ordered(one: object, other: object) -> bool:
    numbers = (int, float)
    return (type(one) in numbers and type(other) in numbers) or (type(one) is str and type(other) is str)


@lru_cache(maxsize=1_024)
def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(glob))


def _refused(why: str) -> MessageRefused:
    return MessageRefused(f"the filter does not fit its form: {why}", code="schema_violation")
