"""Writes down what exactly-once delivery depends on, before anything leaves that depends on it.

One write is under way at a time, and what comes together meanwhile is the next one's, as with the log's batches. While
packet ids become free the socket is not read: so every message that was taken before is on record, and every one that
comes later has the new generation (see ``Inflow``).
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from ...adapters.mqtt.life import CLOSED
from ...adapters.mqtt.reasons import Reason
from ...adapters.mqtt.session import Session
from ...entities.errors import Conflict, Unavailable
from ...entities.principal import Principal
from ...use_cases.session.state import Hold, Inbound, Kept
from .door import MqttDoor
from .outbox import MqttOutbox
from .ties import Ties

log = structlog.get_logger("iotsphere.mqtt")

RETRY_S: Final = 0.5
CAUSE: Final = "record"


class MqttRecord:
    """The record of one connection's session. ``hold``: None as long as there is no session to record."""

    __slots__ = ("_door", "_freeing", "_outbox", "_principal", "_session", "_ties", "_writing", "hold")

    def __init__(self, door: MqttDoor, session: Session, principal: Principal, outbox: MqttOutbox, ties: Ties) -> None:
        self.hold: Hold | None = None
        self._principal = principal
        self._door = door
        self._session = session
        self._outbox = outbox
        self._ties = ties
        self._freeing = False
        self._writing: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Begin to write, if anything waits for that."""
        session = self._session
        hold = self.hold
        if hold is None or self._writing is not None or not session.speech.unkept or session.state == CLOSED:
            return
        inflow = session.incoming.inflow
        self._freeing = inflow.changed
        if self._freeing:
            self._ties.pause(CAUSE)
        inbound = inflow.snapshot(self._door.use.clock.now())
        kept = self._outbox.kept()
        session.speech.keep()
        self._writing = asyncio.get_running_loop().create_task(self._write(hold, kept, inbound))

    async def settle(self) -> None:
        """Wait until nothing is being written."""
        if self._writing is not None:
            await asyncio.wait((self._writing,))

    async def _write(self, hold: Hold, kept: Kept, inbound: Inbound) -> None:
        session = self._session
        while True:
            try:
                await self._door.use.sessions.exactly_once.keep(hold, kept, inbound)
                break
            except Conflict:
                self._door.takeovers.note(self._principal, session.client_id)
                self._ties.close(Reason.SESSION_TAKEN_OVER, "another connection of this client has taken over")
                return
            except Unavailable as error:
                log.warning("record_not_written_yet", code=error.code)
                if session.state == CLOSED:
                    return
                await asyncio.sleep(RETRY_S)
        self._door.counts["records_written"] += 1
        self._writing = None
        session.speech.kept()
        self._ties.flush()
        self._outbox.pump()
        if self._writing is None or not self._freeing:
            self._ties.resume(CAUSE)
