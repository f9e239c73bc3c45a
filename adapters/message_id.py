"""Message ids: minting ids that sort by time, and checking those that senders give (RFC 9562).

A minted id has the shape of a UUID version 7: 48 bits of milliseconds, then 26 random bits that are drawn once, then
a 48-bit counter with a random start. So ids of one millisecond keep their order, and two processes do not meet.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")


_TAILS: Final = tuple(f"{number:03x}" for number in range(4096))


class MessageIds:
    """A source of message ids. Make it after the process has forked: two copies would mint the same ids."""

    __slots__ = ("_head", "_high", "_low", "_node", "_time")

    def __init__(self) -> None:
        self._node = f"-7{secrets.randbits(12):03x}-{0x8000 | secrets.randbits(14):04x}-"
        self._high = secrets.randbits(35)  # of 36 bits, so that it never runs over
        self._low = 0
        self._time = -1
        self._head = ""

    def mint(self, time: int) -> str:
        """A new id for ``time``, ms since 1970."""
        low = self._low
        if low == 4096:
            self._high += 1
            self._time = -1
            low = 0
        if time != self._time:
            text = f"{time & 0xFFFF_FFFF_FFFF:012x}"
            self._head = f"{text[:8]}-{text[8:]}{self._node}{self._high:09x}"
            self._time = time
        self._low = low + 1
        return self._head + _TAILS[low]


def is_message_id(text: str) -> bool:
    """Tell whether the text is a UUID in its canonical form: lower case, with hyphens."""
    return _UUID.match(text) is not None


def minted_at(text: str) -> int | None:
    """The time (ms) that a version 7 id carries, None for others. A hint: a sender can write any time into its id."""
    if _UUID.match(text) is None or text[14] != "7" or text[19] not in "89ab":
        return None
    return int(text[:8] + text[9:13], 16)


def derived(digest: bytes) -> str:
    """An id that follows from 16 bytes of a hash: the same fact always gets the same id (UUID version 8)."""
    if len(digest) != 16:
        raise ValueError("a derived id needs 16 bytes")
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-8{text[13:16]}-{8 | int(text[16], 16) & 3:x}{text[17:20]}-{text[20:]}"


def is_derived(text: str) -> bool:
    """Tell whether ``derived`` may have made this id."""
    return _UUID.match(text) is not None and text[14] == "8"


def dated(time: int, tail: bytes) -> str:
    """An id of version 7 for ``time`` (ms) whose other bits follow from 10 bytes; four bits are the version's."""
    if len(tail) != 10:
        raise ValueError("a dated id needs 10 bytes")
    head, text = f"{time & 0xFFFF_FFFF_FFFF:012x}", tail.hex()
    return f"{head[:8]}-{head[8:]}-7{text[1:4]}-{8 | int(text[4], 16) & 3:x}{text[5:8]}-{text[8:]}"
