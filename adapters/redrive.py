"""From a dead letter in the log back to a message that goes through the edge once more."""

from __future__ import annotations

from dataclasses import replace

from ..entities.dead_letter import DeadLetter
from ..entities.message import Entry, Record
from ..entities.principal import Principal
from ..entities.topic import action_on
from . import dead_letter
from .edge import Edge
from .envelope import payload_of
from .message_id import derived


class DeadLetterFormat:
    """Dead letters as the edge writes them; a ``LetterFormat`` for ``use_cases.dead_letters``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def read(self, entry: Entry) -> DeadLetter:
        """The dead letter of an entry. Raises MessageRefused when it is none."""
        return dead_letter.decode(payload_of(entry.record.body))

    def readmit(self, principal: Principal, letter: DeadLetter, fallback_id: str) -> Record:
        """Send the message through the edge again, with the rights of who redrives it.

        A message that never got in keeps its source and the time at which it first arrived. One that a queue gave up
        is in the log already: it is sent as a new message.
        """
        sender = replace(principal, name=letter.source) if letter.stage == "ingress" else principal
        route = self._edge.route(sender, letter.topic, action_on(letter.topic))
        return self._edge.admit(route, letter.raw, letter.received_at, message_id=fallback_id)

    def message_id(self, digest: bytes) -> str:
        """The message id that follows from 16 bytes of a hash."""
        return derived(digest)
