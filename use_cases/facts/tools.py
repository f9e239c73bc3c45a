"""What the lanes of a processor work with: stores, patience, and the claim to a partition."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ...entities.errors import IotSphereError
from ...entities.message import Entry, Record
from ...entities.position import Partition, Position
from ..ports.clock import Clock
from ..ports.facts import FactHandler
from ..ports.message_log import MessageLog
from ..publish import MessagePublishUseCase

Bury = Callable[[str, Entry, IotSphereError | None, int], Record]


class Places(Protocol):
    """Knows how far the facts are in the database, whichever copy of it this is. Both raise Unavailable."""

    async def catch_up(self, claim: Claim, committed: Position, handler: FactHandler) -> None:
        """Bring the database to the committed place. Raises Fenced."""
        ...

    async def passed(self, claim: Claim, place: Position) -> None:
        """All up to a place is in the database."""
        ...


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """``attempts``: how often an entry that makes its handler fail is tried. ``first_wait``, ``last_wait``: the bounds
    of the back-off in seconds. ``ahead``, ``parked_bytes``: how many entries may be known beyond the first one that
    waits, and how many bytes may wait; then the lane reads no further."""

    attempts: int = 5
    first_wait: float = 0.1
    last_wait: float = 5.0
    ahead: int = 5_000
    parked_bytes: int = 4 << 20

    def wait(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, with jitter."""
        longest: float = min(self.last_wait, self.first_wait * 2 ** min(failures - 1, 20))
        return longest * random.uniform(0.5, 1.0)


@dataclass(frozen=True, slots=True)
class LaneTools:
    """What lanes work with. ``bury`` makes the dead letter of (reader, entry, refusal or None for poison, attempts): the
    same one for the same entry, so that a repetition is known; it takes any refusal, and never raises. ``places``: what
    the store of the handlers' effects knows of the log; None where it is part of the log."""

    log: MessageLog
    clock: Clock
    publish: MessagePublishUseCase
    bury: Bury
    settings: LaneSettings = field(default_factory=LaneSettings)
    places: Places | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to a partition: for a reader, from a lease. ``check`` raises Fenced once it may have lapsed."""

    reader: str
    partition: Partition
    fence: int
    check: Callable[[], None]
