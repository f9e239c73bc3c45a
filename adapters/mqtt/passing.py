"""A payload that is too large to keep, on its way past: its head and its hash are all that stays."""

from __future__ import annotations

import hashlib
from typing import Final

from .packets import Oversized, Publish

HEAD_BYTES: Final = 4 * 1024


class Passing:
    """``start``: the packet without its payload. ``size``: the payload's bytes. ``left``: what has not passed yet."""

    def __init__(self, start: Publish, size: int) -> None:
        self.start = start
        self.size = size
        self.left = size
        self.head = b""
        self.hash = hashlib.sha256()

    def take(self, data: bytes, at: int) -> int:
        """Let bytes pass; returns the index behind them."""
        stop = min(len(data), at + self.left)
        piece = data[at:stop]
        if len(self.head) < HEAD_BYTES:
            self.head += piece[: HEAD_BYTES - len(self.head)]
        self.hash.update(piece)
        self.left -= stop - at
        return stop

    def packet(self) -> Oversized:
        """What is known of it in the end."""
        topic, _, packet_id, flags, properties = self.start
        return Oversized(topic, self.head, packet_id, flags, properties, self.size, self.hash.hexdigest())
