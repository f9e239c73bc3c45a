"""Which messages reach an MQTT client, and how: what all its filters that select a topic ask for together.

A message that several filters select is sent once, at the highest of their QoS (MQTT 5 section 3.3.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ...entities.message import Entry
from ...entities.position import Partition, Position
from ...use_cases.session.state import Wanted

KNOWN_TOPICS: Final = 1_024
NO_PLANS: Final[dict[str, Plan | None]] = {}  # of all to whom nothing came yet, and never written to
NOWHERE: Final = Position(0, 0)


class Plan(NamedTuple):
    """How a message is sent. ``qos``: at most (MQTT 5 section 3.8.4). ``no_local``: not to the client that published it. ``watched``: somebody follows its fate."""

    qos: int
    as_published: bool
    no_local: bool
    identifiers: tuple[int, ...]
    watched: bool = False


class Plans:
    """The filters of one client, with a bounded memory of what they make of each topic.

    ``no_local``: at least one of them does not want what the client publishes itself. ``watched`` tells of a topic
    whether somebody follows what becomes of its messages; it is asked once per topic.
    """

    __slots__ = ("_plans", "_since", "_watched", "no_local", "wanted")

    def __init__(self, watched: Callable[[str], bool] | None = None) -> None:
        self._watched = watched
        self.wanted: dict[str, Wanted] = {}
        self.no_local = False
        self._plans = NO_PLANS
        self._since = False

    def want(self, wanted: Mapping[str, Wanted]) -> None:
        """Take other filters."""
        self.wanted = dict(wanted)
        self._plans = NO_PLANS
        self.no_local = any(each.no_local for each in wanted.values())
        self._since = any(each.since for each in wanted.values())

    def of(self, entry: Entry) -> Plan | None:
        """How the entry is sent; None: not at all."""
        topic = entry.record.topic
        if self._since:
            return self._together(
                topic,
                (
                    each
                    for each in self.wanted.values()
                    if each.filter.matches(topic) and entry.position > each.since.get(entry.record.partition, NOWHERE)
                ),
            )
        return self.of_topic(topic)

    def of_topic(self, topic: str) -> Plan | None:
        """How messages of a topic are sent, wherever they lie."""
        try:
            return self._plans[topic]
        except KeyError:
            if self._plans is NO_PLANS or len(self._plans) >= KNOWN_TOPICS:
                self._plans = {}
            chosen = (each for each in self.wanted.values() if each.filter.matches(topic))
            plan = self._plans[topic] = self._together(topic, chosen)
            return plan

    def reached(self, positions: Mapping[Partition, Position]) -> None:
        """Forget since when a filter counts, in partitions where everything before that was passed."""
        if not self._since:
            return
        for text, each in self.wanted.items():
            since = {p: at for p, at in each.since.items() if positions.get(p, NOWHERE) < at}
            self.wanted[text] = each._replace(since=since)
        self._since = any(each.since for each in self.wanted.values())

    def _together(self, topic: str, wanted: Iterable[Wanted]) -> Plan | None:
        chosen = list(wanted)
        if not chosen:
            return None
        return Plan(
            max(each.qos for each in chosen),
            any(each.retain_as_published for each in chosen),
            all(each.no_local for each in chosen),
            tuple(each.identifier for each in chosen if each.identifier),
            self._watched is not None and self._watched(topic),
        )
