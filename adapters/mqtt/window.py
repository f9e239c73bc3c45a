"""The delivery window: which packet ids are under way to the client, and what each of them carries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

LAST_ID: Final = 0xFFFF
T = TypeVar("T")


class Window(Generic[T]):
    """At most ``size`` messages under way (the client's Receive Maximum, MQTT 5 section 4.9), each with its tag.

    ``reserved``: ids that are under way since an earlier connection and are sent again under the same id. ``twos``: ids
    under way at QoS 2. ``released``: ids of messages at QoS 2 that the client has and has to let go.
    """

    __slots__ = ("_last", "_reserved", "_tags", "released", "size", "twos")

    def __init__(self, size: int, reserved: Iterable[int] = (), released: Iterable[int] = ()) -> None:
        self.size = size
        self.twos: dict[int, None] = {}
        self.released = dict.fromkeys(released)
        self._tags: dict[int, T] = {}
        self._reserved = dict.fromkeys(reserved)
        self._last = 0

    @property
    def free(self) -> int:
        """How many more messages may be sent now."""
        return self.size - len(self._tags) - len(self.released)

    def take(self, tag: T, packet_id: int = 0) -> int:
        """Put a message under way; returns its packet id, which is a new one unless it is given.

        Raises ValueError when the window is full.
        """
        if len(self._tags) + len(self.released) >= self.size:
            raise ValueError("the delivery window is full")
        if not packet_id:
            packet_id = self._last
            while True:
                packet_id = packet_id + 1 if packet_id < LAST_ID else 1
                if packet_id in self._tags or (self._reserved and packet_id in self._reserved):
                    continue
                if not self.released or packet_id not in self.released:
                    break
            self._last = packet_id
        self._reserved.pop(packet_id, None)
        self._tags[packet_id] = tag
        return packet_id

    def release(self, packet_id: int) -> T | None:
        """The client has it: returns its tag, or None for an id that is not under way."""
        return self._tags.pop(packet_id, None)

    def receive(self, packet_id: int) -> T | None:
        """The client has it at QoS 2, and has to let its id go; returns as ``release`` does."""
        tag = self._tags.pop(packet_id, None)
        if tag is not None:
            self.released[packet_id] = None
        return tag

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self._tags

    def __len__(self) -> int:
        return len(self._tags)

    def under_way(self) -> Iterator[tuple[int, T]]:
        """(packet id, tag) of each message under way, in the order of sending."""
        return iter(self._tags.items())

    def drop_reserved(self) -> None:
        """Forget the ids of an earlier connection that were not sent again."""
        self._reserved.clear()
