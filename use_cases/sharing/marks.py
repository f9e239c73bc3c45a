"""What became of each message between a group's committed position and the place that it has read up to.

One byte a message, so that a group may go a million messages past one that nobody acknowledges, for a megabyte.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Final, Self

from ...entities.position import Position
from ..ports.message_log import Tally

OPEN: Final = 0  # to be handed out, from the log
HELD: Final = 1  # with a member
APPLIED: Final = 2
EXPIRED: Final = 3
LOST: Final = 4

_UNSETTLED: Final = re.compile(rb"[\x00\x01]")
_SETTLED: Final = re.compile(rb"[^\x00\x01]")


class Marks:
    """Begins behind ``start``. ``end``: the last offset that has a mark."""

    __slots__ = ("_base", "_counted", "_epochs", "_marks", "_restarted")

    def __init__(self, start: Position) -> None:
        self._marks = bytearray()
        self._base = start.offset
        self._counted = start.offset
        self._epochs = [(start.offset, start.epoch)]
        self._restarted = False

    def __len__(self) -> int:
        return len(self._marks)

    @property
    def base(self) -> int:
        """The last offset that is committed; those behind it have marks."""
        return self._base

    @property
    def end(self) -> int:
        """The last offset with a mark; the committed one when there is none."""
        return self._base + len(self._marks)

    def add(self, position: Position, mark: int) -> None:
        """Mark the next offset."""
        if position.epoch != self._epochs[-1][1]:
            self._epochs.append((position.offset, position.epoch))
        self._marks.append(mark)

    def lose(self, first: int, last: int) -> None:
        """Mark these offsets as lost, where they are still open; beyond ``end``, all up to ``last``."""
        start, stop = first - self._base - 1, last - self._base
        self._marks[start:stop] = self._marks[start:stop].replace(b"\x00", bytes((LOST,)))
        self._marks += bytes((LOST,)) * (stop - len(self._marks))

    def put(self, offset: int, mark: int) -> None:
        """Change an offset's mark."""
        self._marks[offset - self._base - 1] = mark

    def of(self, offset: int) -> int:
        """An offset's mark."""
        return self._marks[offset - self._base - 1]

    def position(self, offset: int) -> Position:
        """An offset as a position."""
        epochs = (epoch for first, epoch in reversed(self._epochs) if first <= offset)
        return Position(next(epochs, self._epochs[0][1]), offset)

    def known(self, position: Position) -> int:
        """The mark of a message that is settled here; OPEN for all others."""
        index = position.offset - self._base - 1
        if not 0 <= index < len(self._marks) or self.position(position.offset) != position:
            return OPEN
        return self._marks[index] if self._marks[index] > HELD else OPEN

    def scattered(self) -> bool:
        """Whether something is settled behind what is not, so that the committed position does not tell it."""
        first = _UNSETTLED.search(self._marks)
        return first is not None and _SETTLED.search(self._marks, first.end()) is not None

    def stored(self) -> bytes:
        """All of it as bytes."""
        head = json.dumps({"base": self._base, "epochs": self._epochs}).encode()
        return head + b"\n" + zlib.compress(self._marks, 1)

    @classmethod
    def read(cls, stored: bytes) -> Self:
        """What ``stored`` wrote."""
        head, _, body = stored.partition(b"\n")
        facts = json.loads(head)
        marks = cls(Position(0, facts["base"]))
        marks._epochs = [(first, epoch) for first, epoch in facts["epochs"]]
        marks._marks = bytearray(zlib.decompress(body))
        return marks

    def restart(self, start: Position) -> None:
        """Go on behind ``start``, since the log was made anew. What was counted once is not counted again."""
        self._marks.clear()
        self._base = start.offset
        self._epochs = [(start.offset, start.epoch)]
        self._restarted = True

    def settled(self) -> tuple[Position, Tally] | None:
        """How far everything is settled, and as what since the last ``forget``; None when nothing is."""
        first = _UNSETTLED.search(self._marks)
        count = first.start() if first is not None else len(self._marks)
        if not count and not self._restarted:
            return None
        new = self._marks[max(0, self._counted - self._base) : count]
        tally = Tally(applied=new.count(APPLIED), expired=new.count(EXPIRED), lost=new.count(LOST))
        return self.position(self._base + count), tally

    def forget(self, upto: int) -> None:
        """These offsets are committed."""
        del self._marks[: upto - self._base]
        self._base = upto
        self._restarted = False
        self._counted = max(self._counted, upto)
        while len(self._epochs) > 1 and self._epochs[1][0] <= upto:
            del self._epochs[0]
