"""Our session at the broker: whether it is still there, and whether somebody else takes it for his own."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

import structlog

from ...adapters.timestamps import iso
from ...entities.errors import Unavailable
from ...use_cases.bridges import BridgeRegister, BrokerSession
from ...use_cases.ports.clock import Clock
from .alarms import Alarms
from .link import SESSION_TAKEN_OVER, Lost
from .options import BridgeOptions

UNSTABLE_LOSSES: Final = 5

log = structlog.get_logger("iotsphere.bridge")


class SessionClaim:
    """Ours, by a client id. What is known of it outlives the process."""

    def __init__(
        self, register: BridgeRegister, clock: Clock, options: BridgeOptions, alarms: Alarms, counts: Counter[str]
    ) -> None:
        self._register = register
        self._clock = clock
        self._options = options
        self._alarms = alarms
        self._counts = counts
        self._owner = secrets.token_hex(8)
        self._known: BrokerSession | None = None
        self._takeovers: deque[float] = deque(maxlen=options.takeovers)
        self._losses: deque[float] = deque(maxlen=UNSTABLE_LOSSES)
        self.client_id = ""

    async def load(self, client_id: str) -> None:
        """Learn what a former process knew. Raises LogUnavailable."""
        self.client_id = client_id
        self._known = await self._register.session(client_id)

    def stale(self, filters: Sequence[str]) -> list[str]:
        """What the session is subscribed to, and should be no more."""
        return [] if self._known is None else [text for text in self._known.filters if text not in filters]

    async def met(self, filters: Sequence[str], present: bool) -> None:
        """A connection stands. Say so when the broker has lost our session: only it knew what waited there."""
        if self._known is not None and self._known.filters and not present:
            self._counts["sessions_lost"] += 1
            self._alarms.raise_alert(
                "bridge_session_lost",
                clientId=self.client_id,
                after=iso(self._known.seen),
                seenAgain=iso(self._clock.now()),
            )
        await self.note(filters)

    async def note(self, filters: Sequence[str]) -> None:
        """Write down that it is ours now."""
        self._known = BrokerSession(tuple(filters), self._clock.now(), self._owner)
        try:
            await self._register.keep_session(self.client_id, self._known)
        except Unavailable as error:
            log.warning("bridge_session_not_noted", code=error.code, message=error.message)

    async def is_contested(self, lost: Lost) -> bool:
        """Whether it was taken from us too often in too short a time."""
        now = asyncio.get_running_loop().time()
        if lost.code != SESSION_TAKEN_OVER and not await self._is_somebody_elses():
            return False
        self._counts["takeovers"] += 1
        self._takeovers.append(now)
        return _frequent(self._takeovers, now, self._options.takeovers_within)

    def lost(self) -> None:
        """A connection that stood has ended. Say so when that happens again and again, whatever the reason is."""
        now = asyncio.get_running_loop().time()
        self._losses.append(now)
        if _frequent(self._losses, now, self._options.takeovers_within):
            self._alarms.raise_alert("bridge_unstable", clientId=self.client_id, losses=UNSTABLE_LOSSES)

    async def _is_somebody_elses(self) -> bool:
        """Whether another process over our log has noted it after us. Not every broker tells a takeover (0x8E)."""
        if self._known is None or self._known.owner != self._owner:
            return False
        try:
            noted = await self._register.session(self.client_id)
        except Unavailable as error:
            log.warning("bridge_session_not_read", code=error.code, message=error.message)
            return False
        return noted is not None and noted.owner != self._owner


def _frequent(times: deque[float], now: float, within: float) -> bool:
    return len(times) == times.maxlen and now - times[0] <= within
