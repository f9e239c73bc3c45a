"""Shared subscriptions: a group of clients that share one filter, each message going to one of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from .errors import FilterInvalid
from .topic import TopicFilter, is_plain, parse_filter

PREFIX: Final = "$share/"
READERS: Final = "share"
MAX_GROUP_CHARACTERS: Final = 128


class Share(NamedTuple):
    """One group and its filter (MQTT 5 section 4.8.2). Groups with equal names and different filters never meet."""

    group: str
    filter: TopicFilter

    @property
    def text(self) -> str:
        """As a client writes it."""
        return f"{PREFIX}{self.group}/{self.filter.text}"

    @property
    def reader(self) -> str:
        """The name under which the log knows how far the group is."""
        return f"{self.filter.domain}/{READERS}/{self.group}/{self.filter.text}"


def split_share(text: str) -> tuple[str, str]:
    """The group's name and the filter of ``$share/GROUP/FILTER``.

    Raises FilterInvalid for a group that MQTT 5 section 4.8.2 does not allow, or an empty filter.
    """
    shown = text if len(text) <= 80 else text[:77] + "..."
    group, _, inner = text.removeprefix(PREFIX).partition("/")
    if not group or "+" in group or "#" in group or len(group) > MAX_GROUP_CHARACTERS or not is_plain(group):
        raise FilterInvalid(
            f"{shown!a} names no group: write $share/GROUP/FILTER, the group in 1 to {MAX_GROUP_CHARACTERS} characters "
            "without +, # and control characters",
            filter=shown,
        )
    if not inner:
        raise FilterInvalid(f"{shown!a} has no filter: write $share/GROUP/FILTER", filter=shown)
    return group, inner


def parse_share(text: str) -> Share:
    """Read ``$share/GROUP/FILTER``. Raises FilterInvalid, also where the filter is not bound to one domain."""
    group, inner = split_share(text)
    return Share(group, parse_filter(inner))
