"""The delivery window: which packet ids are under way to the client, and what each of them carries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

LAST_ID: Final = 0xFFFF
NONE: Final[dict[int, Any]] = {}  # shared by all windows that were never used, and never written to
T = TypeVar("T")


class Window(Generic[T]):
    """At most ``size`` messages under way (the client's Receive Maximum, MQTT 5 section 4.9), each with its tag.

    ``reserved``: ids that are under way since an earlier connection and are sent again under the same id. ``twos``: ids
    under way at QoS 2. ``released``: ids of messages at QoS 2 that the client has and has to let go.
    """

    __slots__ = ("_last", "_released", "_reserved", "_tags", "_twos", "size")

    def __init__(self, size: int, reserved: Iterable[int] = (), released: Iterable[int] = ()) -> None:
        self.size = size
        self._twos: dict[int, None] = NONE
        self._released: dict[int, None] = dict.fromkeys(released) or NONE
        self._tags: dict[int, T] = NONE
        self._reserved: dict[int, None] = dict.fromkeys(reserved) or NONE
        self._last = 0

    @property
    def twos(self) -> Mapping[int, None]:
        """See above; to be read."""
        return self._twos

    @property
    def released(self) -> Mapping[int, None]:
        """See above; to be read."""
        return self._released

    @property
    def free(self) -> int:
        """How many more messages may be sent now."""
        return self.size - len(self._tags) - len(self._released)

    def take(self, tag: T, packet_id: int = 0, *, two: bool = False) -> int:
        """Put a message under way (``two``: at QoS 2); returns its packet id, which is a new one unless it is given.

        Raises ValueError when the window is full.
        """
        if len(self._tags) + len(self._released) >= self.size:
            raise ValueError("the delivery window is full")
        if not packet_id:
            packet_id = self._last
            while True:
                packet_id = packet_id + 1 if packet_id < LAST_ID else 1
                if packet_id in self._tags or (self._reserved and packet_id in self._reserved):
                    continue
                if not self._released or packet_id not in self._released:
                    break
            self._last = packet_id
        if self._reserved:
            self._reserved.pop(packet_id, None)
        if self._tags is NONE:
            self._tags = {}
        self._tags[packet_id] = tag
        if two:
            if self._twos is NONE:
                self._twos = {}
            self._twos[packet_id] = None
        return packet_id

    def release(self, packet_id: int) -> T | None:
        """The client has it: returns its tag, or None for an id that is not under way."""
        return self._tags.pop(packet_id, None)

    def receive(self, packet_id: int) -> T | None:
        """The client has it at QoS 2, and has to let its id go; returns as ``release`` does."""
        tag = self._tags.pop(packet_id, None)
        if tag is not None:
            self.ask_back((packet_id,))
        return tag

    def answered_once(self, packet_id: int) -> bool:
        """The client has given the first of the two answers of QoS 2; False: it was not due."""
        if packet_id not in self._twos:
            return False
        del self._twos[packet_id]
        return True

    def ask_back(self, packet_ids: Iterable[int]) -> None:
        """The client has to let these ids go."""
        if self._released is NONE:
            self._released = {}
        self._released.update(dict.fromkeys(packet_ids))

    def given_back(self, packet_id: int) -> bool:
        """The client has let an id go; False: it did not have to."""
        if packet_id not in self._released:
            return False
        del self._released[packet_id]
        return True

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self._tags

    def __len__(self) -> int:
        return len(self._tags)

    def under_way(self) -> Iterator[tuple[int, T]]:
        """(packet id, tag) of each message under way, in the order of sending."""
        return iter(self._tags.items())

    def drop_reserved(self) -> None:
        """Forget the ids of an earlier connection that were not sent again."""
        self._reserved = NONE
