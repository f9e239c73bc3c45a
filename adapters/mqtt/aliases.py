"""Topic aliases, which stand for a topic within one connection and one direction (MQTT 5 section 3.3.2.3.4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from .packets import Oversized, Publish
from .primitives import Malformed
from .properties import NONE
from .reasons import Reason

MOST: Final = 64
_REMEMBERED: Final = 1_024


class AliasesIn:
    """The client's aliases, at most ``maximum``."""

    __slots__ = ("_topics", "maximum")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._topics: dict[int, bytes] = {}

    def resolve(self, packet: Publish | Oversized) -> Publish | Oversized:
        """The packet with its topic in full and without its alias. Raises Malformed: 0x94."""
        alias = packet.properties.topic_alias
        if alias is None:
            return packet
        if alias > self.maximum:
            raise Malformed(f"topic alias {alias}; at most {self.maximum} are offered", Reason.TOPIC_ALIAS_INVALID)
        topic = packet.topic or self._topics.get(alias, b"")
        if not topic:
            raise Malformed(f"topic alias {alias} stands for nothing yet", Reason.TOPIC_ALIAS_INVALID)
        self._topics[alias] = topic
        properties = replace(packet.properties, topic_alias=None)
        return packet._replace(topic=topic, properties=NONE if properties == NONE else properties)


class AliasesOut:
    """The server's aliases: the first ``maximum`` topics that come a second time get one each."""

    def __init__(self, maximum: int) -> None:
        self._free = list(range(min(maximum, MOST), 0, -1))
        self._aliases: dict[str, int] = {}
        self._seen: set[str] = set()

    def of(self, topic: str, at_once: bool = False) -> tuple[int, bool]:
        """(alias, whether the client knows it already) for a message that is about to be sent; 0: none.

        ``at_once``: give a topic an alias the first time that it comes.
        """
        alias = self._aliases.get(topic)
        if alias is not None:
            return alias, True
        if not self._free:
            return 0, False
        if topic not in self._seen and not at_once:
            if len(self._seen) >= _REMEMBERED:
                self._seen.clear()
            self._seen.add(topic)
            return 0, False
        self._seen.discard(topic)
        alias = self._aliases[topic] = self._free.pop()
        return alias, False

    def forget(self, topic: str) -> None:
        """The packet that would have told the client of a new alias does not leave."""
        self._free.append(self._aliases.pop(topic))
