"""What a session is when nobody is connected: filters, a place in the log, and what was under way; as values and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..entities.position import Partition, Position
from ..entities.topic import TopicFilter, parse_filter


class Wanted(NamedTuple):
    """One filter of a session. ``since``: it selects only what lies after these positions, where any is given."""

    filter: TopicFilter
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    since: Mapping[Partition, Position] = {}


class UnderWay(NamedTuple):
    """A message that was sent and not acknowledged, with the packet id under which it has to be sent again."""

    packet_id: int
    partition: Partition
    position: Position


@dataclass(frozen=True, slots=True)
class Kept:
    """What a session holds. ``positions``: committed; ``sent``: how far messages were sent before the goodbye.

    What lies between the two and is not ``under_way`` is with the client already.
    """

    wanted: tuple[Wanted, ...] = ()
    positions: Mapping[Partition, Position] = field(default_factory=dict)
    sent: Mapping[Partition, Position] = field(default_factory=dict)
    under_way: tuple[UnderWay, ...] = ()


@dataclass(slots=True)
class Hold:
    """A connection's hold on its session. ``expiry``: seconds that the session outlives it; 0 = not at all."""

    key: str
    reader: str
    expiry: int
    version: int = 0
    committed: dict[Partition, Position] = field(default_factory=dict)


def write(kept: Kept) -> dict[str, object]:
    """The stored form of what is kept, all but its positions, which the log has."""
    return {
        "filters": [
            [w.filter.text, w.qos, w.no_local, w.retain_as_published, w.identifier, _places(w.since)]
            for w in kept.wanted
        ],
        "sent": _places(kept.sent),
        "underWay": [[u.packet_id, u.partition.channel, u.partition.number, *u.position] for u in kept.under_way],
    }


def _places(positions: Mapping[Partition, Position]) -> list[list[object]]:
    return [[p.channel, p.number, *position] for p, position in positions.items()]


def read(domain: str, stored: bytes) -> Kept:
    """What ``write`` wrote."""
    value = json.loads(stored)
    return Kept(
        tuple(
            Wanted(parse_filter(text), qos, no_local, as_published, identifier, _positions(domain, since))
            for text, qos, no_local, as_published, identifier, since in value["filters"]
        ),
        {},
        _positions(domain, value["sent"]),
        tuple(
            UnderWay(packet_id, Partition(domain, channel, number), Position(epoch, offset))
            for packet_id, channel, number, epoch, offset in value["underWay"]
        ),
    )


def _positions(domain: str, places: Iterable[tuple[str, int, int, int]]) -> dict[Partition, Position]:
    return {Partition(domain, channel, number): Position(epoch, offset) for channel, number, epoch, offset in places}
