"""How far the facts of the log are folded into the database, as the database itself knows it.

The place that counts is the one in the log. The one in the database lags it by a few seconds, and is a part of every copy
of the database: when a copy from before is put back, the facts since then are folded in once more, and when the log is
older than the database, what the database remembers of the log's places is put right. Each is said once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from ...entities.documents import at_schema, is_newer, whole
from ...entities.errors import IotSphereError, Unavailable
from ...entities.message import Entry
from ...entities.position import Partition, Position
from ..ports.clock import Clock
from ..ports.database import Collection, Database, Write
from ..ports.facts import FactHandler
from ..ports.message_log import MessageLog
from .tools import Claim

log = structlog.get_logger("iotsphere.processor")

PLACES: Final = Collection("places")
NOTE_EVERY_S: Final = 5.0
SLICE: Final = 500
READ_BYTES: Final = 1 << 22

Behind = Callable[[Partition, Position], Awaitable[None]]


class StatePlaces:
    """``behind``: called with a partition and its end when the log is found to be older than the database."""

    def __init__(self, database: Database, message_log: MessageLog, behind: Behind, clock: Clock) -> None:
        self._database = database
        self._log = message_log
        self._behind = behind
        self._clock = clock
        self._noted_at: dict[str, float] = {}

    async def catch_up(self, claim: Claim, committed: Position, handler: FactHandler) -> None:
        """Bring the database to the committed place, whichever copy of it this is. Raises Unavailable and Fenced."""
        noted = await self._noted(claim)
        last = (await self._log.bounds(claim.partition)).last
        if noted is not None and (noted.epoch > last.epoch or (noted.epoch == last.epoch and noted > last)):
            log.error("log_older_than_database", reader=claim.reader, partition=str(claim.partition))
            await self._behind(claim.partition, last)
        elif noted is not None and noted < committed:
            count = await self._fold_again(claim, noted, committed, handler)
            log.info("facts_folded_again", reader=claim.reader, partition=str(claim.partition), count=count)
        await self._write(claim, committed)

    async def passed(self, claim: Claim, place: Position) -> None:
        """All up to a place is in the database; noted now and then. Raises Unavailable."""
        now = asyncio.get_running_loop().time()
        if now - self._noted_at.get(_key(claim), now - NOTE_EVERY_S) >= NOTE_EVERY_S:
            await self._write(claim, place)

    async def _fold_again(self, claim: Claim, noted: Position, committed: Position, handler: FactHandler) -> int:
        count = 0
        at = noted
        while at < committed:
            part = await self._log.read(claim.partition, at, limit=SLICE, max_bytes=READ_BYTES)
            if part.gap is not None:
                log.error("facts_lost", reader=claim.reader, partition=str(claim.partition), missing=part.gap.missing)
            now = self._clock.now()
            entries = [
                entry
                for entry in part.entries
                if entry.position <= committed
                and entry.record.body
                and handler.handles(entry.record.topic)
                and not 0 < entry.record.expires_at <= now
            ]
            claim.check()
            if entries:
                await self._hand_over(claim, entries, handler)
                count += len(entries)
            if part.end == at:
                break
            at = part.end
        return count

    async def _hand_over(self, claim: Claim, entries: Sequence[Entry], handler: FactHandler) -> None:
        """What is refused was refused the first time as well, and is a dead letter since."""
        try:
            await handler(entries)
        except Unavailable:
            raise
        except Exception as error:  # one of them is poison: the others count all the same
            log.info("fact_not_folded_again", reader=claim.reader, entries=len(entries), error=repr(error))
            if len(entries) > 1:
                for entry in entries:
                    await self._hand_over(claim, (entry,), handler)

    async def _noted(self, claim: Claim) -> Position | None:
        stored = await self._database.get(PLACES.name, _key(claim))
        if stored is None or is_newer(stored.body):
            return None
        epoch, offset = whole(stored.body.get("epoch")), whole(stored.body.get("offset"))
        return None if epoch is None or offset is None else Position(epoch, offset)

    async def _write(self, claim: Claim, place: Position) -> None:
        key = _key(claim)
        body = {"schema": 1, "epoch": place.epoch, "offset": place.offset, "at": self._clock.now()}
        try:
            before = await self._database.get(PLACES.name, key)
            if before is not None:
                at_schema(before.body, f"the place {key!a}")
            await self._database.put(PLACES.name, Write(key, before, body))
        except Unavailable:
            raise
        except IotSphereError as error:  # another process has just taken the partition over, and notes its own
            log.info("place_not_noted", reader=claim.reader, code=error.code)
        self._noted_at[key] = asyncio.get_running_loop().time()


def _key(claim: Claim) -> str:
    return f"{claim.reader}/{claim.partition.channel}/{claim.partition.number}"
