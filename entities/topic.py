"""Topics, filters and the topic space: what may be published and who may listen where.

Grammar and wildcards follow MQTT 5 section 4.7, narrowed to the product's own space:

    {domain}/devices/{device_id}/shadow[/{name}]/{reported,desired,delta,document}
    {domain}/devices/{device_id}/telemetry[/{metric}]
    {domain}/devices/{device_id}/commands/{request,response,status}
    {domain}/devices/{device_id}/{presence,errors}
    {domain}/devices/batch/{status,alerts}
    {domain}/users/{user_id}/{notifications,preferences}
    {domain}/system/{status,metrics,alerts,dead-letters}
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from .errors import FilterInvalid, TopicInvalid

MAX_TOPIC_BYTES: Final = 512
MAX_TOPIC_LEVELS: Final = 10
DEFAULT_DOMAIN: Final = "iotsphere"
PLAYGROUND: Final = "playground"  # below {domain}/playground lie the free topics of guests, no part of the space

CHANNELS: Final = ("telemetry", "shadow", "commands", "users", "system", "batch")

_DOMAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_DEVICE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}\Z")
_USER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,63}\Z")
_METRIC = re.compile(r"[A-Za-z0-9_.:-]{1,64}\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

_SHADOW = frozenset(("reported", "desired", "delta", "document"))
_COMMANDS = frozenset(("request", "response", "status"))
_DEVICE_SYSTEM = frozenset(("presence", "errors"))
_BATCH = frozenset(("status", "alerts"))
_USERS = frozenset(("notifications", "preferences"))
_SYSTEM = frozenset(("status", "metrics", "alerts", "dead-letters"))
_TOLD = frozenset(("dead-letters",))


class Topic(NamedTuple):
    """A topic of the space, taken apart once.

    ``key`` is what FIFO is promised for: the device id, the user id, else the topic itself.
    """

    text: str
    domain: str
    channel: str
    key: str
    device_id: str | None
    user_id: str | None


def is_device_id(text: str) -> bool:
    """Tell whether the text is a device id: case-sensitive, never normalised, and not ``batch``."""
    return _DEVICE_ID.match(text) is not None and text != "batch"


def is_user_id(text: str) -> bool:
    """Tell whether the text is a user id."""
    return _USER_ID.match(text) is not None


def is_shadow_name(text: str) -> bool:
    """Tell whether the text names a shadow beside a device's main one."""
    return _METRIC.match(text) is not None and text not in _SHADOW


def is_domain(text: str) -> bool:
    """Tell whether the text is a domain name."""
    return _DOMAIN.match(text) is not None


def is_plain(text: str) -> bool:
    """Tell whether the text is free of control characters and of what is no character."""
    return _CONTROL.search(text) is None


def _refuse(text: str, why: str, code: str = "topic_invalid") -> TopicInvalid:
    shown = text if len(text) <= 80 else text[:77] + "..."
    return TopicInvalid(f"{shown!a} is no topic: {why}", code=code, topic=shown)


@lru_cache(maxsize=65_536)
def parse_topic(text: str) -> Topic:
    """Take a topic apart.

    Raises TopicInvalid (``topic_invalid`` or ``topic_too_long``) for a text outside the space; nothing is repaired.
    """
    if len(text) > MAX_TOPIC_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_TOPIC_BYTES:
        raise _refuse(text, f"longer than {MAX_TOPIC_BYTES} bytes", "topic_too_long")
    if _CONTROL.search(text):
        raise _refuse(text, "it holds a control character")
    if "+" in text or "#" in text:
        raise _refuse(text, "wildcards belong in filters only")
    levels = text.split("/")
    if len(levels) > MAX_TOPIC_LEVELS:
        raise _refuse(text, f"more than {MAX_TOPIC_LEVELS} levels", "topic_too_long")
    if "" in levels:
        raise _refuse(text, "it has an empty level")
    domain = levels[0]
    if not is_domain(domain):
        raise _refuse(text, "its first level is no domain name")
    if len(levels) < 3:
        raise _refuse(text, "it needs a domain, a kind and a name, such as iotsphere/devices/d1/telemetry")
    kind, name, rest = levels[1], levels[2], levels[3:]
    if kind == "devices":
        if name == "batch":
            if len(rest) == 1 and rest[0] in _BATCH:
                return Topic(text, domain, "batch", text, None, None)
            raise _refuse(text, "below devices/batch there are status and alerts")
        if not is_device_id(name):
            raise _refuse(text, "the device id must match [A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
        channel = _device_channel(rest)
        if channel is None:
            raise _refuse(
                text,
                "below a device there are telemetry[/metric], shadow[/name]/{reported,desired,delta,document}, "
                "commands/{request,response,status}, presence and errors",
            )
        return Topic(text, domain, channel, name, name, None)
    if kind == "users":
        if not is_user_id(name):
            raise _refuse(text, "the user id must match [A-Za-z0-9][A-Za-z0-9_.:@-]{0,63}")
        if len(rest) == 1 and rest[0] in _USERS:
            return Topic(text, domain, "users", name, None, name)
        raise _refuse(text, "below a user there are notifications and preferences")
    if kind == "system" and not rest and name in _SYSTEM:
        return Topic(text, domain, "system", text, None, None)
    raise _refuse(text, "below a domain there are devices, users and system/{status,metrics,alerts,dead-letters}")


def key_of(topic: str) -> str:
    """What FIFO is promised for, of any topic that lies in the log, a guest's among them. Raises TopicInvalid."""
    return topic if topic.split("/", 2)[1:2] == [PLAYGROUND] else parse_topic(topic).key


def _device_channel(rest: list[str]) -> str | None:
    if not rest:
        return None
    first = rest[0]
    if first == "telemetry":
        if len(rest) == 1 or (len(rest) == 2 and _METRIC.match(rest[1])):
            return "telemetry"
    elif first == "shadow":
        if rest[-1] in _SHADOW and (len(rest) == 2 or (len(rest) == 3 and is_shadow_name(rest[1]))):
            return "shadow"
    elif first == "commands":
        if len(rest) == 2 and rest[1] in _COMMANDS:
            return "commands"
    elif first in _DEVICE_SYSTEM and len(rest) == 1:
        return "system"
    return None


def action_on(topic: str) -> str:
    """The right that sending to a topic takes: ``command`` for command requests, else ``publish``.

    Raises TopicInvalid.
    """
    place = parse_topic(topic)
    return "command" if place.channel == "commands" and topic.endswith("/request") else "publish"


def is_told_by_gateway(topic: Topic) -> bool:
    """Tell whether the gateway alone sends on a topic, whatever somebody's grants are: others would believe a forgery."""
    told = _DEVICE_SYSTEM if topic.device_id is not None else _TOLD
    return topic.channel == "system" and topic.text.rpartition("/")[2] in told


class TopicFilter(NamedTuple):
    """A filter inside one domain: literal levels, ``+`` for one level, a last ``#`` for this level and all below."""

    text: str
    levels: tuple[str, ...]

    @property
    def domain(self) -> str:
        """The domain that the filter stays in."""
        return self.levels[0]

    @property
    def is_exact(self) -> bool:
        """True when it has no wildcard, and so matches one topic."""
        return "+" not in self.levels and self.levels[-1] != "#"

    def matches(self, topic: str) -> bool:
        """Tell whether the topic's text is selected."""
        levels = topic.split("/")
        mine = self.levels
        for index, want in enumerate(mine):
            if want == "#":
                return True
            if index >= len(levels):
                return False
            if want != "+" and want != levels[index]:
                return False
        return len(levels) == len(mine)

    def covers(self, other: TopicFilter) -> bool:
        """Tell whether every topic that ``other`` selects is selected by this filter too."""
        mine, theirs = self.levels, other.levels
        for index, want in enumerate(mine):
            if want == "#":
                return True
            if index >= len(theirs):
                return False
            if theirs[index] == "#" or want not in ("+", theirs[index]):
                return False
        return len(theirs) == len(mine)

    def overlaps(self, other: TopicFilter) -> bool:
        """Tell whether some topic is selected by both."""
        one, two, index = self.levels, other.levels, 0
        while True:
            a = one[index] if index < len(one) else None
            b = two[index] if index < len(two) else None
            if a == "#" or b == "#":
                return True
            if a is None or b is None:
                return a is b
            if a != "+" and b not in ("+", a):
                return False
            index += 1

    @property
    def channels(self) -> frozenset[str]:
        """The channels whose topics it can select; empty when it selects nothing of the space."""
        return _channels(self)


@lru_cache(maxsize=1_024)
def parse_filter(text: str) -> TopicFilter:
    """Take a filter apart.

    Raises FilterInvalid when wildcards stand where MQTT forbids them, or when the filter is not bound to one domain.
    """
    shown = text if len(text) <= 80 else text[:77] + "..."
    if not text or len(text.encode("utf-8", "surrogatepass")) > MAX_TOPIC_BYTES:
        raise FilterInvalid(f"{shown!a} is no filter: it must hold 1 to {MAX_TOPIC_BYTES} bytes", filter=shown)
    if _CONTROL.search(text):
        raise FilterInvalid(f"{shown!a} is no filter: it holds a control character", filter=shown)
    levels = tuple(map(sys.intern, text.split("/")))  # ten thousand devices listen to the same few words
    if len(levels) > MAX_TOPIC_LEVELS:
        raise FilterInvalid(f"{shown!a} is no filter: more than {MAX_TOPIC_LEVELS} levels", filter=shown)
    for index, level in enumerate(levels):
        if level == "":
            raise FilterInvalid(f"{shown!a} is no filter: it has an empty level", filter=shown)
        if "#" in level and (level != "#" or index != len(levels) - 1):
            raise FilterInvalid(f"{shown!a} is no filter: # must be the whole last level", filter=shown)
        if "+" in level and level != "+":
            raise FilterInvalid(f"{shown!a} is no filter: + must be a whole level", filter=shown)
    if not is_domain(levels[0]):
        raise FilterInvalid(
            f"{shown!a} is refused: a filter begins with its domain, such as iotsphere/devices/#", filter=shown
        )
    return TopicFilter(text, levels)


# The space level by level: a text stands for itself, a function for all texts that it accepts.
_Level = str | Callable[[str], object]
_SPACE: Final[tuple[tuple[str, tuple[_Level, ...]], ...]] = (
    ("telemetry", ("devices", is_device_id, "telemetry")),
    ("telemetry", ("devices", is_device_id, "telemetry", _METRIC.match)),
    ("shadow", ("devices", is_device_id, "shadow", _SHADOW.__contains__)),
    ("shadow", ("devices", is_device_id, "shadow", is_shadow_name, _SHADOW.__contains__)),
    ("commands", ("devices", is_device_id, "commands", _COMMANDS.__contains__)),
    ("system", ("devices", is_device_id, _DEVICE_SYSTEM.__contains__)),
    ("batch", ("devices", "batch", _BATCH.__contains__)),
    ("users", ("users", is_user_id, _USERS.__contains__)),
    ("system", ("system", _SYSTEM.__contains__)),
)


_SETS: Final[dict[frozenset[str], frozenset[str]]] = {}  # of channels: equal ones are one object


def _selects_any(levels: tuple[str, ...], place: tuple[_Level, ...]) -> bool:
    for index, allowed in enumerate(place):
        if index >= len(levels):
            return False
        want = levels[index]
        if want == "#":
            return True
        if want != "+" and not (want == allowed if isinstance(allowed, str) else allowed(want)):
            return False
    return len(levels) == len(place) or levels[len(place) :] == ("#",)


@lru_cache(maxsize=16_384)
def _channels(wanted: TopicFilter) -> frozenset[str]:
    found = frozenset(channel for channel, place in _SPACE if _selects_any(wanted.levels[1:], place))
    found = found | {"system"} if wanted.levels[1:2] == (PLAYGROUND,) else found
    return _SETS.setdefault(found, found)
