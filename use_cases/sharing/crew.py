"""The members of a shared subscription in this process, and which of them each key belongs to.

A key (a device) has one home among the members by rendezvous hashing of its slot, so that members who come and go move
only their own share of the keys. A member pulls what waits for it; its queue is bounded in bytes.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Final
from zlib import crc32

from ...entities.message import Entry

if TYPE_CHECKING:
    from .lane import Lane, Line

ENTRY_OVERHEAD_BYTES: Final = 200
SLOTS: Final = 4_096
RANKED: Final = 8


class Handout:
    """A message that was given to a member: its place, and the line of its key."""

    __slots__ = ("lane", "line", "offset", "seat")

    def __init__(self, lane: Lane, line: Line, offset: int, seat: Seat) -> None:
        self.lane = lane
        self.line = line
        self.offset = offset
        self.seat = seat


class Seat:
    """One member. ``ready`` is called when there is something to pull; ``room`` when more may be put.

    ``waiting``: what it has not pulled. ``flying``: what it has pulled and not settled. ``full``: nothing more is put.
    ``stuck``: it has pulled nothing for a while although something waits; what it has not pulled goes to others.
    """

    def __init__(self, name: str, ready: Callable[[], None], room: Callable[[], None], limit: int) -> None:
        self.name = name
        self.ready = ready
        self.waiting: deque[tuple[Handout, Entry]] = deque()
        self.flying: dict[Handout, None] = {}
        self.full = False
        self.stuck = False
        self._room = room
        self._limit = limit
        self._bytes = 0
        self._pulls = 0
        self._pulls_seen = 0
        self._stalled_since: float | None = None

    def put(self, handout: Handout, entry: Entry) -> None:
        """Let a message wait for it."""
        self.waiting.append((handout, entry))
        self._bytes += _size(entry)
        handout.line.waiting += 1

    def pull(self, now: int) -> tuple[Handout, Entry] | None:
        """The next message for this member, under way from now on; None: nothing may be sent now. ``now``: ms.

        What has expired meanwhile is settled as such and never handed out.
        """
        self._pulls += 1
        self.stuck = False
        while self.waiting:
            handout, entry = self.waiting[0]
            if handout.lane.until <= now:
                return None  # another process may read this partition by now
            self.waiting.popleft()
            self._gone(entry)
            handout.line.waiting -= 1
            handout.line.flying += 1
            self.flying[handout] = None
            if not 0 < entry.record.expires_at <= now:
                return handout, entry
            handout.lane.expire(handout)
        return None

    def withdraw(self, lane: Lane | None = None) -> list[Handout]:
        """Take back what it has not pulled, of one lane or of all."""
        taken = [pair for pair in self.waiting if lane is None or pair[0].lane is lane]
        if taken:
            self.waiting = deque(pair for pair in self.waiting if lane is not None and pair[0].lane is not lane)
            for handout, entry in taken:
                handout.line.waiting -= 1
                self._gone(entry)
        return [handout for handout, _ in taken]

    def ground(self, lane: Lane | None = None) -> list[Handout]:
        """Take back what it has pulled and not settled, of one lane or of all; its word no longer counts."""
        taken = [handout for handout in self.flying if lane is None or handout.lane is lane]
        for handout in taken:
            del self.flying[handout]
            handout.line.flying -= 1
        return taken

    def measure(self) -> None:
        """Look whether it is full; called when a batch was put, so that one batch is never torn apart."""
        if self._bytes >= self._limit:
            self.full = True

    def look(self, now: float, patience: float) -> bool:
        """Look whether it moves; tells whether it has just got stuck. Times in seconds of any clock."""
        if not self.waiting or self._pulls != self._pulls_seen:
            self._stalled_since = None
        elif self._stalled_since is None:
            self._stalled_since = now
        elif not self.stuck and now - self._stalled_since >= patience:
            self.stuck = True
            return True
        self._pulls_seen = self._pulls
        return False

    def _gone(self, entry: Entry) -> None:
        self._bytes -= _size(entry)
        if self.full and self._bytes < self._limit // 2:
            self.full = False
            self._room()


class Crew:
    """The seats of one group, and the home of each key."""

    def __init__(self) -> None:
        self._seats: dict[str, Seat] = {}
        self._leaving: dict[Seat, None] = {}
        self._rankings: dict[int, list[tuple[bytes, str]]] = {}

    def __len__(self) -> int:
        return len(self._seats)

    def __iter__(self) -> Iterator[Seat]:
        return iter(tuple(self._seats.values()))

    @property
    def everybody(self) -> list[Seat]:
        """All seats, those included that only settle what they have."""
        return [*self._seats.values(), *self._leaving]

    @property
    def has_room(self) -> bool:
        """True when somebody may be given more."""
        return any(not seat.full and not seat.stuck for seat in self._seats.values())

    def join(self, seat: Seat) -> None:
        """Let a member take part. The seat that its name had before must have left."""
        self._seats[seat.name] = seat
        for slot, ranking in self._rankings.items():
            insort(ranking, _rank(slot, seat.name))
            del ranking[RANKED:]

    def leave(self, seat: Seat) -> None:
        """Give it nothing more; what it has pulled stays with it until ``forget``."""
        if self._seats.get(seat.name) is seat:
            del self._seats[seat.name]
            for slot, ranking in list(self._rankings.items()):
                if _rank(slot, seat.name) in ranking:
                    del self._rankings[slot]
            self._leaving[seat] = None

    def forget(self, seat: Seat) -> None:
        """It is gone."""
        self._leaving.pop(seat, None)

    def choose(self, line: Line) -> Seat | None:
        """Who gets the next message of a line; None: it has to wait.

        A key never has messages with two members at once, so nobody overtakes: it changes its member only when
        everything that its former one had is settled or taken back.
        """
        home = self.home(line.slot)
        if home is None or home.full:
            return None
        if (line.waiting or line.flying) and line.seat is not home:
            return None
        return home

    def home(self, slot: int) -> Seat | None:
        """The member that the keys of a slot belong to, the stuck ones left out as long as there are others."""
        ranking = self._rankings.get(slot)
        if ranking is None:
            ranking = self._rankings[slot] = sorted(_rank(slot, name) for name in self._seats)[:RANKED]
        for _, name in ranking:
            seat = self._seats[name]
            if not seat.stuck:
                return seat
        return self._seats[ranking[0][1]] if ranking else None

    @staticmethod
    def tell(seats: Collection[Seat]) -> None:
        """Let those who were given something know."""
        for seat in seats:
            seat.measure()
        for seat in seats:
            if seat.waiting:
                seat.ready()


def slot_of(key: str) -> int:
    """The slot of a key: keys of one slot share their home."""
    return crc32(key.encode()) % SLOTS


def _rank(slot: int, name: str) -> tuple[bytes, str]:
    return blake2b(name.encode(), digest_size=8, salt=slot.to_bytes(2, "big")).digest(), name


def _size(entry: Entry) -> int:
    return len(entry.record.body) + ENTRY_OVERHEAD_BYTES
