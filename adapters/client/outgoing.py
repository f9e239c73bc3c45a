"""What a client is sent in one turn of the event loop: the batches of a subscription leave as one frame with one cursor.

Making a frame, its cursor above all, costs about as much as thirty messages, and the partitions of a channel have
something new at the same moment.
"""

from __future__ import annotations

from typing import Final

from ...use_cases.feed import Batch
from ...use_cases.reader import Reader
from .delivery import ClientDeliveryAdapter
from .listening import Listening, Outbox

JOINED_BYTES: Final = 64 * 1024


class ClientOutgoing:
    """The messages of one client on their way into its outbox."""

    __slots__ = ("_bytes", "_delivery", "_exact", "_outbox", "_waiting")

    def __init__(self, delivery: ClientDeliveryAdapter, outbox: Outbox, exact: bool) -> None:
        self._delivery = delivery
        self._outbox = outbox
        self._exact = exact
        self._waiting: dict[Listening, list[bytes]] = {}
        self._bytes = 0

    def deliver(self, listening: Listening, reader: Reader, batch: Batch) -> bool:
        """Take the whole batch, or nothing of it (False) while the client has not taken what came before."""
        if self._outbox.full:
            return False
        pieces = self._delivery.pieces(batch, self._exact)
        if listening.each or batch.values or len(pieces) > 1:
            # These say positions between their messages, which hold as the reader stands now.
            self._write(listening, self._waiting.pop(listening, []))
            for frame in self._delivery.frames(batch, reader, listening, self._exact):
                self._outbox.write(frame)
            return True
        for piece in pieces:
            if self._bytes + len(piece.body) > JOINED_BYTES:
                self.flush()
            self._bytes += len(piece.body)
            bodies = self._waiting.get(listening)
            if bodies is not None:
                bodies.append(piece.body)
                continue
            self._waiting[listening] = [piece.body]
            if len(self._waiting) == 1:
                self._outbox.soon(self.flush)
        return True

    def flush(self) -> None:
        """Write what waits. To be done before a client is told anything that holds only after it."""
        waiting, self._waiting, self._bytes = self._waiting, {}, 0
        for listening, bodies in waiting.items():
            self._write(listening, bodies)

    def _write(self, listening: Listening, bodies: list[bytes]) -> None:
        if bodies and listening.reader is not None:
            self._outbox.write(self._delivery.frame(listening.reader, listening, bodies))

    def drop(self) -> None:
        """The client is gone."""
        self._waiting.clear()
