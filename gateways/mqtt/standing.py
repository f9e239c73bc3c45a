"""Where a client stands in the log: what it has, what is under way to it, and what it will never get.

It follows from three things: what the reader has handed over, what waits in the queue, and what is under way and not
acknowledged. A session is kept as exactly that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from ...adapters.mqtt.life import Tag
from ...adapters.mqtt.plan import Plans
from ...adapters.mqtt.session import Session
from ...entities.message import Entry, Record
from ...entities.position import Partition, Position
from ...use_cases.ports.message_log import Tally
from ...use_cases.reader import Reader
from ...use_cases.session_state import Kept, UnderWay

Place: TypeAlias = tuple[Partition, Position]
NOWHERE: Final = Position(0, 0)
BESIDE: Final = "beside"  # the tag of what has no place in the queue


class Watched(NamedTuple):
    """The tag of a message whose fate matters. ``place``: None when it has none in the queue."""

    place: Place | None
    record: Record


class Standing:
    """``reader``: what feeds the queue. ``held``: where the client stands while its reader is being replaced.

    ``earlier``: whether anything may come that was sent in an earlier connection.
    """

    def __init__(self, session: Session, plans: Plans) -> None:
        self.reader: Reader | None = None
        self.held: Mapping[Partition, Position] | None = None
        self.earlier = False
        self._session = session
        self._plans = plans
        self._sent: dict[Partition, Position] = {}
        self._again: dict[Place, int] = {}
        self._not_applied: dict[Partition, list[tuple[int, Tally]]] = {}

    def resume(self, kept: Kept) -> None:
        """Begin where an earlier connection left."""
        self._sent = dict(kept.sent)
        self._again = {(each.partition, each.position): each.packet_id for each in kept.under_way}
        self.earlier = bool(self._sent)

    def sent_earlier(self, entry: Entry) -> int:
        """Whether an earlier connection sent an entry: 0 no, -1 yes, and the client has it; else its packet id."""
        partition = entry.record.partition
        sent = self._sent.get(partition)
        if sent is None or entry.position > sent:
            return 0
        return self._again.get((partition, entry.position), -1)

    def settled(self, entry: Entry) -> None:
        """What was sent in an earlier connection is under way again, or is not sent any more."""
        self._again.pop((entry.record.partition, entry.position), None)

    def not_applied(self, partition: Partition, offset: int, tally: Tally) -> None:
        """Book what was passed over, up to an offset."""
        self._not_applied.setdefault(partition, []).append((offset, tally))

    def reached(self, queue: Iterable[Entry]) -> dict[Partition, Position]:
        """How far everything was sent or passed over, acknowledged or not; tidies up what lies behind that.

        ``queue``: what waits, newest first.
        """
        positions = self.held
        if positions is None and self.reader is not None:
            positions = self.reader.positions()
        reached = dict(positions or {})
        for entry in queue:
            reached[entry.record.partition] = before(entry.position)
        if self._sent:
            self._again = {place: i for place, i in self._again.items() if place[1] > reached.get(place[0], NOWHERE)}
            self._sent = {p: at for p, at in self._sent.items() if reached.get(p, at) < at}
            if not self._sent:
                self.earlier = False
                self._session.window.drop_reserved()
        self._plans.reached(reached)
        return reached

    def kept(self, reached: Mapping[Partition, Position]) -> Kept:
        """What has to be known to go on later: nothing that is not acknowledged is left behind."""
        sent = dict(reached)
        for partition, position in self._sent.items():
            sent[partition] = max(sent[partition], position)
        under_way = [
            UnderWay(packet_id, *place)
            for packet_id, tag in self._session.window.under_way()
            if (place := _place_of(tag)) is not None and place[0] in sent
        ]
        under_way += [UnderWay(packet_id, *place) for place, packet_id in self._again.items() if place[0] in sent]
        low = dict(reached)
        for each in under_way:
            low[each.partition] = min(low[each.partition], before(each.position))
        return Kept(tuple(self._plans.wanted.values()), low, sent, tuple(under_way))

    def tallies(self, upto: Mapping[Partition, Position]) -> dict[Partition, Tally]:
        """What was not applied of the messages up to these positions; each is told once."""
        found: dict[Partition, Tally] = {}
        for partition, items in self._not_applied.items():
            limit = upto.get(partition)
            if limit is None:
                continue
            passed = [tally for offset, tally in items if offset <= limit.offset]
            self._not_applied[partition] = [item for item in items if item[0] > limit.offset]
            total = Tally()
            for tally in passed:
                total = total.plus(tally)
            if passed:
                found[partition] = total
        return found


def before(position: Position) -> Position:
    """The place to read after in order to get this position's entry."""
    return Position(position.epoch, position.offset - 1)


def _place_of(tag: Tag) -> Place | None:
    """Where the message of a tag lies in the log; None when it has no place in the queue."""
    if type(tag) is tuple:
        return tag
    return tag.place if isinstance(tag, Watched) else None
