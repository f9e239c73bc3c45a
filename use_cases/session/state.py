"""What a session is when nobody is connected: filters, a place in the log, and what was under way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ...entities.position import Partition, Position
from ...entities.topic import TopicFilter, parse_filter

READERS: Final = "mqtt"  # as which sessions are known to the log


class Wanted(NamedTuple):
    """One filter of a session. ``since``: it selects only what lies after these positions, where any is given.

    ``share``: the group that shares it; empty = it is the client's alone.
    """

    filter: TopicFilter
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    since: Mapping[Partition, Position] = {}
    share: str = ""


class UnderWay(NamedTuple):
    """A message that was sent and not acknowledged, with the packet id under which it has to be sent again.

    ``beside``: it is a retained value, so no reader comes by its place. ``packet_id`` 0: it was not sent yet.
    """

    packet_id: int
    partition: Partition
    position: Position
    qos: int = 1
    beside: bool = False


class Pushed(NamedTuple):
    """A message from the gateway's own hand, which has no place in the log: whoever pushed it knows it by its ``mark``.

    ``packet_id``: under which it is on its way at ``qos``. ``fate``: "acknowledged" or "refused", once the client has
    answered and as long as only this session knows that.
    """

    mark: str
    packet_id: int = 0
    qos: int = 1
    fate: str = ""


class Carried(NamedTuple):
    """What a connection brings along of what was pushed to earlier ones of its session.

    ``session``: names it, "" for one that ends with its connection. Pushing what is ``pushed`` once more sends it again
    under its packet id; of what is not pushed any more, ``let_go`` (mark) frees it.
    """

    session: str = ""
    pushed: tuple[Pushed, ...] = ()
    let_go: Callable[[str], None] = lambda _: None


class Received(NamedTuple):
    """A message at QoS 2 from the client, which it has not released. ``done``: it is in the log for sure.

    ``generation`` gave it its message id; ``mark`` is a hash of its topic and payload.
    """

    packet_id: int
    generation: int
    done: bool
    mark: int


@dataclass(frozen=True, slots=True)
class Inbound:
    """What is known of a client's messages at QoS 2.

    ``generation``: what goes into the ids of new ones. ``before``: generations of earlier connections that ended without
    saying what they had received, oldest first; ``settled``: (packet id, the last generation that no longer counts for it).
    """

    generation: int = 0
    before: tuple[int, ...] = ()
    settled: tuple[tuple[int, int], ...] = ()
    received: tuple[Received, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """What a session holds. ``positions``: committed; ``sent``: how far messages were sent before the goodbye.

    What lies between the two and is not ``under_way`` is with the client already. ``released``: packet ids of messages
    at QoS 2 that the client has, and has not yet been heard to let go.
    """

    wanted: tuple[Wanted, ...] = ()
    positions: Mapping[Partition, Position] = field(default_factory=dict)
    sent: Mapping[Partition, Position] = field(default_factory=dict)
    under_way: tuple[UnderWay, ...] = ()
    released: tuple[int, ...] = ()
    pushed: tuple[Pushed, ...] = ()


NO_INBOUND: Final = Inbound()
NOWHERE: Final[Mapping[Partition, Position]] = MappingProxyType({})


@dataclass(slots=True)
class Hold:
    """A connection's hold on its session, which ``key`` (``domain/kind/name/client id``) names. ``expiry``: seconds that the session outlives it; 0 = not at all.

    ``salt``: random, of this session. ``since``: grows with each connection. ``record``: the version of its record for
    exactly-once delivery; 0 = there is none.
    """

    key: str
    expiry: int
    version: int = 0
    committed: Mapping[Partition, Position] = field(default_factory=lambda: NOWHERE)
    salt: str = ""
    since: int = 0
    record: int = 0
    inbound: Inbound = NO_INBOUND

    @property
    def reader(self) -> str:
        """By what the log knows its place."""
        domain, _, client = self.key.partition("/")
        return f"{domain}/{READERS}/{client}"


def write(kept: Kept) -> dict[str, object]:
    """The stored form of a session's filters."""
    return {
        "filters": [
            [w.filter.text, w.qos, w.no_local, w.retain_as_published, w.identifier, _places(w.since), w.share]
            for w in kept.wanted
        ],
        **write_sent(kept),
    }


def write_sent(kept: Kept) -> dict[str, object]:
    """The stored form of what was sent."""
    return {
        "sent": _places(kept.sent),
        "underWay": [
            [u.packet_id, u.partition.channel, u.partition.number, *u.position, u.qos, u.beside] for u in kept.under_way
        ],
        "released": kept.released,
        "pushed": kept.pushed,
    }


def _places(positions: Mapping[Partition, Position]) -> list[list[object]]:
    return [[p.channel, p.number, *position] for p, position in positions.items()]


def read(domain: str, value: Mapping[str, Any]) -> Kept:
    """What ``write`` wrote."""
    wanted = tuple(
        Wanted(parse_filter(text), qos, no_local, as_published, identifier, _positions(domain, since), *share)
        for text, qos, no_local, as_published, identifier, since, *share in value["filters"]
    )
    return replace(read_sent(domain, value), wanted=wanted)


def read_sent(domain: str, value: Mapping[str, Any]) -> Kept:
    """What ``write_sent`` wrote."""
    return Kept(
        sent=_positions(domain, value["sent"]),
        under_way=tuple(
            UnderWay(packet_id, Partition(domain, channel, number), Position(epoch, offset), *more)
            for packet_id, channel, number, epoch, offset, *more in value["underWay"]
        ),
        released=tuple(value.get("released", ())),
        pushed=tuple(Pushed(*each) for each in value.get("pushed", ())),
    )


def _positions(domain: str, places: Iterable[tuple[str, int, int, int]]) -> dict[Partition, Position]:
    return {Partition(domain, channel, number): Position(epoch, offset) for channel, number, epoch, offset in places}
