"""Rules that tell the changes of further collections: which documents, on which topic, with which of their fields.

A rule's topic is a text with ``{names}`` in it: ``{domain}``, ``{_key}`` (the document's key without its domain), and
fields of the document by their dotted paths. Where a value makes no topic, ``rows`` raises, and the change becomes an
alert.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ...entities.errors import IotSphereError, MessageRefused, RequestInvalid
from ...entities.topic import Topic, is_domain, parse_topic
from ...use_cases.ports.database import Body, Change, Collection
from .body import at_path, equal_scalars

KINDS: Final = ("insert", "update", "delete")
KEY: Final = "_key"
CHANGE: Final = "_change"
DOMAIN: Final = "domain"
Scalar = str | int | float | bool

_PATH: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}(\.[A-Za-z0-9_-]{1,64}){0,15}\Z")
_NAMES: Final = re.compile(r"\{([^{}]*)\}")
_SAMPLE: Final = "x1"
_FACTS: Final = ("telemetry", "batch", "users", "shadow")
_REMEDY: Final = "choose telemetry, shadow/reported, notifications or devices/batch"


def source_of(collection: str) -> str:
    """Who messages on a collection's changes come from, in their metadata. No token can carry this name."""
    return f"database/{collection}"


class Row(NamedTuple):
    """One message of a change. ``source``: who its metadata names; empty for the gateway."""

    topic: str
    payload: Mapping[str, Any]
    correlation: str | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """``parts``: texts and names by turns, beginning and ending with a text. ``fields``: dotted paths, None = all.

    ``on``: kinds of changes. ``where``: dotted paths with what must be there.
    """

    collection: str
    parts: tuple[str, ...]
    fields: tuple[str, ...] | None
    on: frozenset[str]
    where: tuple[tuple[str, Scalar], ...]

    @property
    def channel(self) -> str:
        """The channel of all topics that it can write: what varies in them does not lead out of it."""
        sample = "".join(_SAMPLE if index % 2 else part for index, part in enumerate(self.parts))
        return parse_topic(sample).channel

    def row(self, change: Change, domain: str) -> Row | None:
        """The message of a change, None where the rule does not ask for one. Raises MessageRefused."""
        body = change.before if change.kind == "delete" else change.after
        if change.kind not in self.on or not self._is_of(domain):
            return None
        if body is None:
            if change.kind != "delete":
                return None  # it has gone meanwhile: its removal follows
            if self.where or any(name not in (DOMAIN, KEY) for name in self.parts[1::2]):
                raise _refused("it was removed, and the database does not know any more what it was")
            body = {}
        if not self._wants(body):
            return None
        row = self._made(change, domain, body)
        if change.kind == "update" and change.before is not None and self._wants(change.before):
            before = self._told_before(change, domain)
            if before == row:
                return None  # nothing that this rule tells has changed
        return row

    def _is_of(self, domain: str) -> bool:
        written = self.parts[0].partition("/")[0]
        return written in ("", domain)

    def _wants(self, body: Body) -> bool:
        return all(equal_scalars(at_path(body, path), value) for path, value in self.where)

    def _told_before(self, change: Change, domain: str) -> Row | None:
        try:
            return self._made(change, domain, change.before or {})
        except IotSphereError:
            return None  # what it was made no topic, what it is does: that is news

    def _made(self, change: Change, domain: str, body: Body) -> Row:
        key = change.key.removeprefix(f"{domain}/")
        topic = "".join(
            part if index % 2 == 0 else _level(part, domain, key, body) for index, part in enumerate(self.parts)
        )
        check_target(topic)
        facts = {KEY: key, CHANGE: change.kind}
        payload: dict[str, Any] = {}
        if self.fields is None:
            payload = {**body, **facts}
        else:
            for path in self.fields:
                _copy(payload, path, {**body, **facts})
            if change.kind == "delete":
                payload[CHANGE] = change.kind
        return Row(topic, payload, None, source_of(self.collection))


class ChangeMap:
    """All rules. ``domains``: of this gateway; a document whose key begins with none of them belongs to the first."""

    def __init__(self, rules: Sequence[ChangeRule], domains: Sequence[str]) -> None:
        self._rules: dict[str, list[ChangeRule]] = {}
        self._domains = domains
        for rule in rules:
            self._rules.setdefault(rule.collection, []).append(rule)

    @property
    def collections(self) -> tuple[Collection, ...]:
        """The collections that are to be watched."""
        return tuple(Collection(name, watched=True) for name in self._rules)

    @property
    def channels(self) -> frozenset[str]:
        """The channels of all topics that the rules can write."""
        return frozenset(rule.channel for rules in self._rules.values() for rule in rules)

    def rows(self, change: Change) -> list[Row]:
        """The messages of a change, in the order of the rules. Raises MessageRefused for a value that makes no topic."""
        first = change.key.partition("/")[0]
        domain = first if "/" in change.key and first in self._domains else self._domains[0]
        found = (rule.row(change, domain) for rule in self._rules[change.collection])
        return [row for row in found if row is not None]


def parse_parts(template: str, domains: Sequence[str]) -> tuple[str, ...]:
    """Take a topic with names apart. Raises RequestInvalid for one that can never be a topic that others may write."""
    parts = tuple(_NAMES.split(template))
    if any(mark in part for part in parts[0::2] for mark in "+#{}"):
        raise RequestInvalid(f"{template[:80]!a} is no topic: use {{name}} for what varies, and no + or #")
    for name in parts[1::2]:
        if not _PATH.match(name):
            raise RequestInvalid(f"{{{name[:40]}}} is no field: write a name, or names with dots, such as {{owner.id}}")
        if name.startswith("_") and name != KEY:
            raise RequestInvalid(f"{{{name[:40]}}} is the store's own: {{{KEY}}} is the document's key")
    written = template.partition("/")[0]
    if written != f"{{{DOMAIN}}}" and not (is_domain(written) and written in domains):
        raise RequestInvalid(f"{template[:80]!a} lies in no domain of this gateway: begin it with {{{DOMAIN}}}/")
    sample = "".join(
        part if index % 2 == 0 else domains[0] if part == DOMAIN else _SAMPLE for index, part in enumerate(parts)
    )
    try:
        check_target(sample)
    except IotSphereError as error:
        raise RequestInvalid(f"{template[:80]!a} leads nowhere: {error.message}") from error
    return parts


def check_path(path: str) -> str:
    """The path, if it is one. Raises RequestInvalid."""
    if not _PATH.match(path):
        raise RequestInvalid(f"{path[:60]!a} is no field: write a name, or names with dots, such as owner.id")
    return path


def check_target(topic: str) -> Topic:
    """The topic, if what has happened may be told there. Raises TopicInvalid and MessageRefused."""
    place = parse_topic(topic)
    kind = topic.rpartition("/")[2]
    asks = (place.channel == "shadow" and kind != "reported") or (place.channel == "users" and kind != "notifications")
    if place.channel not in _FACTS or asks:
        raise _refused(f"{topic[:80]!a} is not to be written by changes: {_REMEDY}")
    return place


def _level(name: str, domain: str, key: str, body: Body) -> str:
    """What stands for a name: one level of a topic, or a part of one."""
    value = domain if name == DOMAIN else key if name == KEY else at_path(body, name)
    if type(value) is int:
        value = str(value)
    if type(value) is not str or not value or any(mark in value for mark in "/+#"):
        shown = "missing" if value is None else f"{str(value)[:60]!a}, which is no level of a topic"
        raise _refused(f"the field {name} is {shown}")
    return value


def _copy(payload: dict[str, Any], path: str, body: Body) -> None:
    """Copy one field, with the objects around it; what is not there is left out."""
    *around, last = path.split(".")
    target, source = payload, body
    for name in around:
        inner = source.get(name)
        if not isinstance(inner, Mapping):
            return
        source = inner
        target = target.setdefault(name, {})
    if last in source:
        target[last] = source[last]


def _refused(text: str) -> MessageRefused:
    return MessageRefused(text, code="schema_violation")
