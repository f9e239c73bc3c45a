"""Where a client stands in the log: what it has, what is under way to it, and what it will never get.

It follows from three things: what the reader has handed over, what waits in the queue, and what is under way and not
acknowledged. A session is kept as exactly that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from ...adapters.mqtt.plan import Plans
from ...adapters.mqtt.session import Session
from ...entities.message import Entry, Record
from ...entities.position import Partition, Position
from ...use_cases.ports.message_log import Tally
from ...use_cases.reader import Reader
from ...use_cases.session.state import Kept, Pushed, UnderWay, Wanted

Place: TypeAlias = tuple[Partition, Position]
NOWHERE: Final = Position(0, 0)
NOTHING: Final[dict[Any, Any]] = {}  # shared by all for whom there is nothing to remember, and never written to
AHEAD_AT_MOST: Final = 1_024
PAGE: Final = 32  # of retained values that are looked up together: no more lies in memory for who does not read
NONE_BESIDE: Final[deque[UnderWay]] = deque()  # shared by all who have none


class Retained(NamedTuple):
    """The tag of a retained value: no reader comes by its place."""

    place: Place


class Ahead(NamedTuple):
    """A message that goes before the queue. ``wanted``: the filter that a retained value is for; ``place``: where it lies.

    ``again``: how an earlier connection sent it. ``mark``: of one that was pushed, which is in no log.
    """

    record: Record
    wanted: Wanted | None = None
    place: Place | None = None
    again: UnderWay | Pushed | None = None
    mark: str = ""


class Watched(NamedTuple):
    """The tag of a message whose fate matters. ``place``: None when it was pushed, and then ``mark`` is what it is known by."""

    place: Place | None
    record: Record
    mark: str = ""


class Standing:
    """``reader``: what feeds the queue. ``held``: where the client stands while its reader is being replaced.

    ``earlier``: whether anything may come that was sent in an earlier connection. ``pushed``: what was pushed to one, and
    neither answered nor pushed to this one, by its mark. ``beside``: retained values of an earlier connection that are yet
    to be looked up.
    """

    __slots__ = (
        "_again", "_expired", "_not_applied", "_plans", "_sent", "_session", "beside", "earlier", "held", "pushed",
        "reader",
    )  # fmt: skip

    def __init__(self, session: Session, plans: Plans) -> None:
        self.reader: Reader | None = None
        self.held: Mapping[Partition, Position] | None = None
        self.earlier = False
        self.pushed: dict[str, Pushed] = NOTHING
        self.beside: deque[UnderWay] = NONE_BESIDE
        self._session = session
        self._plans = plans
        self._sent: dict[Partition, Position] = NOTHING
        self._again: dict[Place, UnderWay] = NOTHING
        self._expired: dict[Partition, int] = NOTHING
        self._not_applied: dict[Partition, list[tuple[int, Tally]]] = NOTHING

    def resume(self, kept: Kept) -> None:
        """Begin where an earlier connection left."""
        self._sent = dict(kept.sent)
        self._again = {(each.partition, each.position): each for each in kept.under_way if not each.beside}
        self.earlier = bool(self._sent)
        if beside := [each for each in kept.under_way if each.beside]:
            self.beside = deque(beside)
        self.pushed = {each.mark: each for each in kept.pushed if not each.fate}

    def has(self, entry: Entry) -> bool:
        """Whether an earlier connection sent the entry, and the client has it."""
        partition = entry.record.partition
        sent = self._sent.get(partition)
        return sent is not None and entry.position <= sent and (partition, entry.position) not in self._again

    def under_way_since(self, entry: Entry) -> UnderWay | None:
        """How an earlier connection sent the entry, if it was not acknowledged."""
        return self._again.get((entry.record.partition, entry.position))

    def sent_again(self, entry: Entry) -> None:
        """What was sent in an earlier connection is under way again."""
        self._again.pop((entry.record.partition, entry.position), None)

    def given_up(self, entry: Entry) -> None:
        """An entry is not sent any more, whether an earlier connection sent it or not."""
        again = self._again.pop((entry.record.partition, entry.position), None)
        if again is not None and again.qos == 2:
            self._session.outgoing.abandon(again.packet_id)

    def let_go(self, mark: str) -> None:
        """What was pushed in an earlier connection is not pushed again."""
        again = self.pushed.pop(mark, None)
        if again is not None and again.qos == 2:
            self._session.outgoing.abandon(again.packet_id)

    def expired(self, entry: Entry) -> None:
        """Book an entry that its reader did not hand over; it may say so again when it reads that part again."""
        partition, offset = entry.record.partition, entry.position.offset
        if offset > self._expired.get(partition, 0):
            if self._expired is NOTHING:
                self._expired = {}
            self._expired[partition] = offset
            self.not_applied(partition, offset, Tally(expired=1))
            self.given_up(entry)

    def not_applied(self, partition: Partition, offset: int, tally: Tally) -> None:
        """Book what was passed over, up to an offset."""
        if self._not_applied is NOTHING:
            self._not_applied = {}
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
            passed = [
                each for each in self._again.values() if each.position <= reached.get(each.partition, each.position)
            ]
            for each in passed:  # its filter is gone, or retention took it
                del self._again[each.partition, each.position]
                if each.qos == 2:
                    self._session.outgoing.abandon(each.packet_id)
            self._sent = {p: at for p, at in self._sent.items() if reached.get(p, at) < at}
            if not self._sent:
                self.earlier = False
                if not self.pushed and not self.beside:
                    self._session.outgoing.window.drop_reserved()
        self._plans.reached(reached)
        return reached

    def kept(self, reached: Mapping[Partition, Position], ahead: Iterable[Ahead], answered: Iterable[Pushed]) -> Kept:
        """What has to be known to go on later: nothing that is not acknowledged is left behind.

        ``ahead``: what waits before the queue; of that, retained values are kept, and what is under way since an earlier
        connection. ``answered``: what was pushed and has its answer.
        """
        sent = dict(reached)
        for partition, position in self._sent.items():
            sent[partition] = max(sent[partition], position)
        window = self._session.outgoing.window
        under_way: list[UnderWay] = []
        pushed: list[Pushed] = []
        released = list(window.released)
        for packet_id, tag in window.under_way():
            qos = 2 if packet_id in window.twos else 1
            if isinstance(tag, Watched) and tag.place is None:
                pushed.append(Pushed(tag.mark, packet_id, qos))
                continue
            if type(tag) is tuple:
                place: Place | None = tag
            elif isinstance(tag, Watched | Retained):
                place = tag.place
            else:
                place = None
            if place is None:
                released += [packet_id] if qos == 2 else []  # it is not sent again; the client lets the id go
            elif isinstance(tag, Retained) or place[0] in sent:
                under_way.append(UnderWay(packet_id, *place, qos, isinstance(tag, Retained)))
        under_way += self.beside
        room = max(AHEAD_AT_MOST - len(self.beside), PAGE)
        for each in islice((each for each in ahead if each.place is not None or each.again is not None), room):
            if isinstance(each.again, Pushed):
                pushed.append(each.again)
            elif each.again is not None:
                under_way.append(each.again)
            elif each.place is not None and each.wanted is not None and each.wanted.qos:
                under_way.append(UnderWay(0, *each.place, each.wanted.qos, True))
        under_way += [each for each in self._again.values() if each.partition in sent]
        low = dict(reached)
        for one in under_way:
            if not one.beside:
                low[one.partition] = min(low[one.partition], before(one.position))
        pushed += (*self.pushed.values(), *answered)
        return Kept(tuple(self._plans.wanted.values()), low, sent, tuple(under_way), tuple(released), tuple(pushed))

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
