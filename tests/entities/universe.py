"""A small topic universe and brute-force matchers, to compare the real ones with."""

from __future__ import annotations

from itertools import product
from typing import Final

from hypothesis import strategies as st

from iotsphere.entities.topic import TopicFilter, parse_filter

# Real topics of two domains, with ids that are prefixes of each other or look like wildcards of other systems.
DOMAINS: Final = ("a", "ab")
DEVICES: Final = ("d1", "d10", "D1", "x.y", "all")
USERS: Final = ("u1", "u@x")
DEVICE_TOPICS: Final = (
    ("telemetry", "telemetry"),
    ("telemetry", "telemetry/t"),
    ("telemetry", "telemetry/t.x"),
    ("telemetry", "telemetry/telemetry"),
    ("shadow", "shadow/reported"),
    ("shadow", "shadow/desired"),
    ("shadow", "shadow/delta"),
    ("shadow", "shadow/document"),
    ("shadow", "shadow/radio/desired"),
    ("commands", "commands/status"),
    ("commands", "commands/request"),
    ("commands", "commands/response"),
    ("system", "presence"),
    ("system", "errors"),
)
SPACE: Final[dict[str, str]] = {
    **{f"{d}/devices/{i}/{tail}": channel for d, i in product(DOMAINS, DEVICES) for channel, tail in DEVICE_TOPICS},
    **{f"{d}/devices/batch/{leaf}": "batch" for d in DOMAINS for leaf in ("status", "alerts")},
    **{
        f"{d}/users/{u}/{leaf}": "users"
        for d, u in product(DOMAINS, USERS)
        for leaf in ("notifications", "preferences")
    },
    **{f"{d}/system/{leaf}": "system" for d in DOMAINS for leaf in ("status", "metrics", "alerts", "dead-letters")},
}

# Any topics over a tiny alphabet, for the algebra of filters. A filter that names up to three levels is told apart
# from any other by topics of up to four levels over the letters used and one letter that nobody uses.
LETTERS: Final = ("a", "b")
ALL_TOPICS: Final = tuple(
    "/".join(("a", *levels)) for size in range(5) for levels in product((*LETTERS, "other"), repeat=size)
)


def selects(pattern: str, topic: str) -> bool:
    """MQTT 5 section 4.7, by recursion on the texts."""
    if pattern == "#":
        return True
    level, slash, rest = pattern.partition("/")
    name, topic_slash, below = topic.partition("/")
    if level not in ("+", name):
        return False
    if not slash:
        return not topic_slash
    if not topic_slash:
        return rest == "#"
    return selects(rest, below)


@st.composite
def tiny_filters(draw: st.DrawFn) -> TopicFilter:
    """Filters of the domain ``a`` over two letters, up to four levels."""
    levels = draw(st.lists(st.sampled_from((*LETTERS, "+")), max_size=3))
    tail = draw(st.sampled_from(((), ("#",))))
    return parse_filter("/".join(("a", *levels, *tail)))


@st.composite
def space_filters(draw: st.DrawFn) -> TopicFilter:
    """Filters made from real topics by putting wildcards in, or wrong levels."""
    levels = draw(st.sampled_from(sorted(SPACE))).split("/")
    for index in range(1, len(levels)):
        levels[index] = draw(st.sampled_from((levels[index], levels[index], "+", "batch", "-no-id", "t")))
    cut = draw(st.integers(1, len(levels)))
    if draw(st.booleans()):
        levels[cut:] = ["#"]
    return parse_filter("/".join(levels))
