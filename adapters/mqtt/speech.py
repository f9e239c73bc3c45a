"""What the server has to say to one client, in order, and what of it must wait until it is remembered durably.

An answer that frees a packet id, and a message at QoS 2, may only leave once they are on record: else a crash right
behind them makes the next connection repeat, or swallow, a message (MQTT 5 section 4.3.3). Whoever keeps the record
calls ``keep`` before it writes what it knows, and ``kept`` afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from . import packets as p
from .encode import encode
from .properties import NONE, Properties

NOTHING: Final[list[bytes]] = []  # shared by all that promise nothing, and never written to


class Speech:
    """``online``: the client may be answered. ``durable``: there is a record. ``explain``: the client wants reason strings. ``maximum``: bytes of its packets.

    ``deliveries``: where the bytes of messages belong at this moment. ``keeping``: a record is being written; ``blocked``:
    it is one that messages wait for, so no more of them are to be sent meanwhile.
    """

    __slots__ = (
        "_answers",
        "_leaving",
        "_out",
        "_withheld",
        "blocked",
        "deliveries",
        "durable",
        "explain",
        "keeping",
        "maximum",
        "online",
        "version",
    )

    def __init__(self) -> None:
        self.version = 0
        self.online = False
        self.durable = False
        self.explain = True
        self.maximum = p.MAX_PACKET_BYTES
        self._out: list[bytes] = []
        self._answers = NOTHING
        self._withheld = NOTHING
        self._leaving = NOTHING
        self.keeping = False
        self.blocked = False
        self.deliveries = self._out

    def put(self, data: bytes) -> None:
        """Say something."""
        self._out.append(data)

    def promise(self, data: bytes) -> None:
        """Say something, once what it means is on record."""
        if not self.durable:
            self._out.append(data)
            return
        if self._answers is NOTHING:
            self._answers = []
        self._answers.append(data)

    def withhold(self) -> None:
        """Let messages wait from here on until the next one of them is on record, so that their order stays."""
        if self.durable:
            if self._withheld is NOTHING:
                self._withheld = []
            self.deliveries = self._withheld
            self.blocked = self.keeping

    def say(self, make: Callable[[Properties], p.Packet], text: str, *, promise: bool = False) -> None:
        """Say a packet with a reason string, unless the client's maximum packet size forbids the string."""
        block = Properties(reason_string=text) if text and self.version == p.MQTT_5 else NONE
        data = encode(make(block), self.version)
        if len(data) > self.maximum:
            data = encode(make(NONE), self.version)
        (self.promise if promise else self.put)(data)

    def take(self) -> bytes:
        """The bytes to send now; each is given once."""
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        return data

    @property
    def unkept(self) -> bool:
        """Whether anything waits to be on record."""
        return bool(self._answers or self._withheld)

    def keep(self) -> None:
        """What waits now is what will be on record next."""
        self._leaving = self._answers + self._withheld
        self._answers = NOTHING
        self.blocked = self.deliveries is not self._out
        self._withheld = [] if self.blocked else NOTHING
        if self.blocked:
            self.deliveries = self._withheld
        self.keeping = True

    def kept(self) -> None:
        """It is on record: it may leave."""
        self._out += self._leaving
        self._leaving = NOTHING
        self.keeping = self.blocked = False
        if not self._withheld:
            self.deliveries = self._out
