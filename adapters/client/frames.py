"""Text frames for clients, and how large they get."""

from __future__ import annotations

from typing import Final

FRAME_BYTES: Final = 512 * 1024


class SharedFrame:
    """A text frame for many clients. ``wire``: what a door makes of it, once for all; empty until then."""

    __slots__ = ("text", "wire")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.wire = b""
