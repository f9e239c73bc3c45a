"""One partition of a shared subscription: which message goes to which member, and what is settled, without any I/O.

Messages are handed out in log order, key by key. A key whose member cannot take more is *parked*: its messages stay in
the log, and are read again from that place once it can go on. So a slow member holds back its own keys alone, and what
a member had when it died is parked like everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...entities.message import Entry
from ...entities.position import Partition, Position
from ..ports.message_log import Slice, Tally
from .crew import Crew, Handout, Seat, slot_of
from .marks import APPLIED, EXPIRED, HELD, OPEN, Marks

AHEAD: Final = 1_000_000


class Line:
    """The messages of one key that are not settled. ``parked``: the first offset to be read again; 0 = none."""

    __slots__ = ("flying", "key", "parked", "seat", "slot", "waiting")

    def __init__(self, key: str) -> None:
        self.key = key
        self.slot = slot_of(key)
        self.seat: Seat | None = None
        self.waiting = 0
        self.flying = 0
        self.parked = 0


class Lane:
    """A partition that this process reads for the group. ``read``: the place up to which it was read.

    ``key_of`` gives a topic's key, or None when the filter does not select it. ``wake`` is called when the lane may have
    something to do. ``until``: ms; when the right to read ends. ``broken``: it has to be opened anew.
    ``past``: what an earlier reader of the partition knew to be settled behind its start.
    """

    def __init__(
        self,
        partition: Partition,
        start: Position,
        crew: Crew,
        key_of: Callable[[str], str | None],
        wake: Callable[[Lane], None],
    ) -> None:
        self.past: Marks | None = None
        self.partition = partition
        self.read = start
        self.until = 0
        self.fence = 0
        self.held = True
        self.closing = False
        self.broken = False
        self._marks = Marks(start)
        self._crew = crew
        self._key_of = key_of
        self._wake = wake
        self._lines: dict[str, Line] = {}
        self._parked: dict[str, Line] = {}

    # -- reading on ---------------------------------------------------------------------------------------------------

    @property
    def wants_more(self) -> bool:
        """Whether it may read beyond ``read``."""
        return self.held and not self.closing and self._crew.has_room and len(self._marks) < AHEAD

    def take(self, piece: Slice, now: int) -> None:
        """Hand out the entries behind ``read``. ``now``: ms."""
        first = piece.entries[0].position if piece.entries else piece.end._replace(offset=piece.end.offset + 1)
        if piece.gap is not None:
            if piece.gap.reason == "rebuilt":
                if self._lines:
                    self.broken = True
                    return
                self._marks.restart(first._replace(offset=first.offset - 1))
            else:
                self._marks.lose(self._marks.end + 1, first.offset - 1)
        marks, lines = self._marks, self._lines
        told: dict[Seat, None] = {}
        past = self.past
        for entry in piece.entries:
            key = self._key_of(entry.record.topic)
            if past is not None and (mark := past.known(entry.position)) != OPEN:
                marks.add(entry.position, mark)
            elif key is None:
                marks.add(entry.position, APPLIED)
            elif 0 < entry.record.expires_at <= now:
                marks.add(entry.position, EXPIRED)
            else:
                line = lines.get(key)
                if line is None:
                    line = lines[key] = Line(key)
                marks.add(entry.position, OPEN)
                if not line.parked:
                    self._hand_out(line, entry, told)
        self.read = piece.end
        if past is not None and piece.end.offset >= past.end:
            self.past = None
        self._crew.tell(told)

    # -- reading again ------------------------------------------------------------------------------------------------

    def again(self) -> Position | None:
        """The place to read after for the parked lines that can go on; None when there are none."""
        if not self._parked or not self.held or self.closing:
            return None
        choose = self._crew.choose
        offset = min((line.parked for line in self._parked.values() if choose(line) is not None), default=0)
        return self._marks.position(offset - 1) if offset else None

    def retake(self, after: Position, piece: Slice, now: int) -> None:
        """Hand out what parked lines lack; ``piece`` was read after ``after``, a result of ``again``."""
        last = self._marks.end
        upto = min(piece.end.offset, last)
        if upto <= after.offset or (piece.gap is not None and piece.gap.reason == "rebuilt"):
            self.broken = True
            return
        marks, crew = self._marks, self._crew
        if piece.gap is not None:
            marks.lose(max(piece.gap.first, after.offset + 1), min(piece.gap.last, upto))
        going = {
            line.key: line
            for line in self._parked.values()
            if after.offset < line.parked <= upto and crew.choose(line) is not None
        }
        told: dict[Seat, None] = {}
        for entry in piece.entries:
            offset = entry.position.offset
            if offset > last:
                break
            line = going.get(self._key_of(entry.record.topic) or "")
            if line is None or offset < line.parked or marks.of(offset) != OPEN:
                continue
            if 0 < entry.record.expires_at <= now:
                marks.put(offset, EXPIRED)
            else:
                self._hand_out(line, entry, told)
        for line in going.values():
            line.parked = upto + 1
            if upto == last:
                self._unpark(line)
        crew.tell(told)

    def _hand_out(self, line: Line, entry: Entry, told: dict[Seat, None]) -> None:
        """Give an open message to the member that its line belongs to, or park the line there."""
        offset = entry.position.offset
        seat = self._crew.choose(line)
        if seat is None:
            self._park(line, offset)
            return
        line.seat = seat
        self._marks.put(offset, HELD)
        seat.put(Handout(self, line, offset, seat), entry)
        told[seat] = None

    def _park(self, line: Line, offset: int) -> None:
        if not line.parked or offset < line.parked:
            line.parked = offset
        self._parked[line.key] = line

    def _unpark(self, line: Line) -> None:
        line.parked = 0
        del self._parked[line.key]
        if not line.waiting and not line.flying:
            del self._lines[line.key]

    # -- settling -----------------------------------------------------------------------------------------------------

    def settle(self, handout: Handout, mark: int = APPLIED) -> None:
        """The member is done with a message. What was taken back from it meanwhile stays as it is."""
        seat, line = handout.seat, handout.line
        if handout not in seat.flying:
            return
        del seat.flying[handout]
        line.flying -= 1
        self._marks.put(handout.offset, mark)
        if not line.waiting and not line.flying:
            if line.parked:
                self._wake(self)
            else:
                del self._lines[line.key]

    def expire(self, handout: Handout) -> None:
        """A message has expired while it waited."""
        self.settle(handout, EXPIRED)

    def take_back(self, handout: Handout) -> None:
        """A member no longer has this message; it comes again from the log."""
        self._marks.put(handout.offset, OPEN)
        self._park(handout.line, handout.offset)

    @property
    def under_way(self) -> bool:
        """Whether members still have to settle something."""
        return any(line.flying for line in self._lines.values())

    def close(self) -> None:
        """Hand out nothing more, so that the partition can be given away once nothing is under way."""
        self.closing = True
        for seat in self._crew.everybody:
            for handout in seat.withdraw(self):
                self.take_back(handout)

    def end(self) -> None:
        """This process does not read the partition any more: forget who has what."""
        self.held = False
        self.until = 0
        for seat in self._crew.everybody:
            seat.withdraw(self)
            seat.ground(self)

    # -- progress -----------------------------------------------------------------------------------------------------

    def settled(self) -> tuple[Position, Tally] | None:
        """How far everything is settled, to be committed; None when that has not moved."""
        return self._marks.settled()

    def scattered(self) -> bytes | None:
        """What is settled beyond that, to be remembered; None when nothing is."""
        return self._marks.stored() if self._marks.scattered() else None

    def committed(self, position: Position) -> None:
        """What ``settled`` said is durable."""
        self._marks.forget(position.offset)
        for line in [line for line in self._parked.values() if line.parked <= position.offset]:
            line.parked = position.offset + 1
            if line.parked > self._marks.end:
                self._unpark(line)
