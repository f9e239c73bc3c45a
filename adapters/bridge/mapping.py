"""Topic mapping of a bridge: between a foreign broker's topics and the product's own, both ways, by declared rules.

A pattern is an MQTT filter whose levels may carry names: ``tele/{device_id}/SENSOR`` takes what ``tele/+/SENSOR``
selects, and keeps the middle level as ``device_id``. A template puts names back together:
``iotsphere/devices/{device_id}/telemetry``. A rule without a template leaves the topic as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...entities.errors import FilterInvalid, RequestInvalid
from ...entities.principal import Grant
from ...entities.topic import TopicFilter, parse_filter

FORMS: Final = ("envelope", "payload", "value")
MAX_FILTER_BYTES: Final = 65_535

_NAMED: Final = re.compile(r"\{([a-z][a-z0-9_]{0,31})\}\Z")
_NAMES: Final = re.compile(r"\{([a-z][a-z0-9_]{0,31})\}")
_SYSTEM: Final = frozenset(("system",))


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a rule takes. ``filter``: the same as an MQTT filter; ``names``: what it keeps, in the order of levels."""

    text: str
    filter: str
    names: tuple[str, ...]
    expression: re.Pattern[str]

    def match(self, topic: str) -> dict[str, str] | None:
        """The named levels of a topic that it takes, else None."""
        found = self.expression.match(topic)
        return None if found is None else found.groupdict()


def parse_pattern(text: str) -> Pattern:
    """Read a pattern. Raises RequestInvalid, saying what is wrong with which level."""
    if not text or len(text.encode("utf-8", "surrogatepass")) > MAX_FILTER_BYTES or "\0" in text:
        raise RequestInvalid(f"{text[:80]!a} is no pattern: it must hold 1 to {MAX_FILTER_BYTES} bytes and no NUL")
    levels = text.split("/")
    if levels[0] == "$share":
        raise RequestInvalid(f"{text[:80]!a} is shared by hand: write the plain filter, and `group` under [sharing]")
    names: list[str] = []
    filters: list[str] = []
    expression = ""
    for index, level in enumerate(levels):
        named = _NAMED.match(level)
        separator = "/" if index else ""
        if named is not None:
            if named[1] in names:
                raise RequestInvalid(f"{text[:80]!a} uses the name {named[1]} twice: give each level its own")
            names.append(named[1])
            expression += f"{separator}(?P<{named[1]}>[^/]*)"
            filters.append("+")
        elif level == "+":
            expression += f"{separator}[^/]*"
            filters.append(level)
        elif level == "#" and index == len(levels) - 1:
            expression += "(?:/.*)?" if index else ".*"
            filters.append(level)
        elif any(mark in level for mark in "+#{}"):
            raise RequestInvalid(
                f"{level[:40]!a} in {text[:80]!a} is no level: +, # (at the end only) and {{name}} each take a whole one; "
                "names are lower-case letters, digits and _"
            )
        else:
            expression += separator + re.escape(level)
            filters.append(level)
    return Pattern(text, "/".join(filters), tuple(names), re.compile(expression + r"\Z", re.DOTALL))


@dataclass(frozen=True, slots=True)
class Template:
    """How a rule writes a topic: texts and names by turns, beginning and ending with a text."""

    text: str
    parts: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names that it needs."""
        return frozenset(self.parts[1::2])

    @property
    def filter(self) -> str:
        """The MQTT filter of all topics that it can write."""
        return "/".join("+" if _NAMES.search(level) else level for level in self.text.split("/"))

    def fill(self, values: dict[str, str]) -> str:
        """The topic for the given names."""
        parts = self.parts
        return "".join(part if index % 2 == 0 else values[part] for index, part in enumerate(parts))


def parse_template(text: str, pattern: Pattern) -> Template:
    """Read a template. Raises RequestInvalid for wildcards, and for names that the pattern does not keep."""
    parts = tuple(_NAMES.split(text))
    if not text or len(text.encode("utf-8", "surrogatepass")) > MAX_FILTER_BYTES or "\0" in text:
        raise RequestInvalid(f"{text[:80]!a} is no topic: it must hold 1 to {MAX_FILTER_BYTES} bytes and no NUL")
    if any(mark in part for part in parts[0::2] for mark in "+#{}"):
        raise RequestInvalid(f"{text[:80]!a} is no topic to write: use {{name}} for what varies, and no + or #")
    if text.startswith("$"):
        raise RequestInvalid(f"{text[:80]!a} is no topic to write: brokers keep those with $ to themselves")
    unknown = sorted(set(parts[1::2]) - set(pattern.names))
    if unknown:
        known = ", ".join(pattern.names) or "no names"
        raise RequestInvalid(f"{text[:80]!a} needs {unknown[0]}, but {pattern.text[:80]!a} has {known}")
    return Template(text, parts)


@dataclass(frozen=True, slots=True)
class Rule:
    """One direction of one mapping. ``template`` None: the topic stays. ``form``: what of a message goes out."""

    pattern: Pattern
    template: Template | None
    form: str = "envelope"

    @property
    def target(self) -> str:
        """The MQTT filter of all topics that it can lead to."""
        return self.pattern.filter if self.template is None else self.template.filter

    def apply(self, topic: str) -> str | None:
        """Where a topic leads, None when the rule does not take it."""
        values = self.pattern.match(topic)
        if values is None:
            return None
        return topic if self.template is None else self.template.fill(values)


class Mapped(NamedTuple):
    """Where a topic leads, and by which rule."""

    topic: str
    rule: Rule


@dataclass(frozen=True, slots=True)
class TopicMap:
    """The rules of one direction; the first one that takes a topic counts."""

    rules: tuple[Rule, ...] = ()

    def __call__(self, topic: str) -> Mapped | None:
        """Where a topic leads, None when no rule takes it."""
        for rule in self.rules:
            found = rule.apply(topic)
            if found is not None:
                return Mapped(found, rule)
        return None

    def __bool__(self) -> bool:
        return bool(self.rules)

    @property
    def filters(self) -> tuple[str, ...]:
        """The fewest MQTT filters that select all that the rules take, in their order."""
        wanted = list(dict.fromkeys(rule.pattern.filter for rule in self.rules))
        return tuple(one for one in wanted if not any(other != one and covers(other, one) for other in wanted))


NO_RULES: Final = TopicMap()


def inward_rule(domain: str, pattern: str, template: str | None) -> Rule:
    """A rule from the broker to the log. Raises RequestInvalid when it could never lead to a topic of the domain."""
    taken = parse_pattern(pattern)
    if template is None:
        _own(taken.filter, domain)
        return Rule(taken, None)
    written = parse_template(template, taken)
    if written.text.partition("/")[0] != domain:
        raise RequestInvalid(f"{template!a} leaves the domain: begin it with {domain}/")
    try:
        channels = parse_filter(written.filter).channels
    except FilterInvalid as error:
        raise RequestInvalid(f"{template!a} leads nowhere: {error.message}") from error
    if not channels:
        raise RequestInvalid(f"{template!a} leads nowhere: it is no topic of the topic space, whatever the names hold")
    if channels == _SYSTEM:
        raise RequestInvalid(f"{template!a} is the gateway's own to write: choose telemetry, shadow, commands or users")
    return Rule(taken, written)


def outward_rule(domain: str, pattern: str, template: str | None, form: str = "envelope") -> Rule:
    """A rule from the log to the broker. Raises RequestInvalid when it could never take a topic of the domain."""
    taken = parse_pattern(pattern)
    _own(taken.filter, domain)
    if form not in FORMS:
        raise RequestInvalid(f"{form[:40]!a} is no form of a message: choose one of {', '.join(FORMS)}")
    return Rule(taken, None if template is None else parse_template(template, taken), form)


def check_disjoint(filters: Sequence[str]) -> None:
    """Raise RequestInvalid for two filters that partly select the same: a broker may send such a message twice."""
    for index, one in enumerate(filters):
        for other in filters[:index]:
            if overlaps(one, other):
                raise RequestInvalid(
                    f"{other!a} and {one!a} both select some topics, which would come twice: narrow one of them, "
                    "or add a rule that covers both"
                )


def grants_of(rules: Iterable[Rule], domain: str) -> tuple[Grant, ...]:
    """What a bridge may do: write where its rules lead, and nothing else."""
    targets = sorted({rule.target for rule in rules})
    return tuple(
        Grant(action, wanted)
        for wanted in (parse_filter(target) for target in targets)
        for action in ("publish", "command")
        if wanted.domain == domain
    )


def covers(one: str, other: str) -> bool:
    """Tell whether every topic that ``other`` selects is selected by ``one`` too. Both are MQTT filters."""
    return _as_filter(one).covers(_as_filter(other))


def overlaps(one: str, other: str) -> bool:
    """Tell whether some topic is selected by both filters."""
    return _as_filter(one).overlaps(_as_filter(other))


def _as_filter(text: str) -> TopicFilter:
    return TopicFilter(text, tuple(text.split("/")))


def _own(wanted: str, domain: str) -> TopicFilter:
    try:
        found = parse_filter(wanted)
    except FilterInvalid as error:
        raise RequestInvalid(f"{error.message}; a rule without `to` needs the product's own topics") from error
    if found.domain != domain:
        raise RequestInvalid(
            f"{wanted!a} lies outside the domain: begin it with {domain}/, or say with `to` where it leads"
        )
    if not found.channels or found.channels == _SYSTEM:
        raise RequestInvalid(f"{wanted!a} selects nothing that a bridge may carry; see the topic space")
    return found
