"""Who tells the changes: one process at a time, by a lease that it keeps and a sign of life that it sends.

The lease spares work, and is not what keeps messages right: whoever was frozen and goes on after another has taken over
gives the same ids, which the log has, and the place that it may save lies before the other's. So it may be short.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from ...entities.errors import IotSphereError, Unavailable
from ..ports.clock import Clock
from ..ports.database import Collection, Database, Write
from ..ports.message_log import Lease, MessageLog

log = structlog.get_logger("iotsphere.changes")

READER: Final = "changes"
HEARTBEATS: Final = Collection("heartbeats", watched=True)
# How long nothing is told after a crash, where another process stands by or the log is shared.
LEASE_MS: Final = 4_000
RENEW_EVERY_S: Final = LEASE_MS / 4_000
BEAT_EVERY_S: Final = 3.0


class Hold:
    """The lease of one process."""

    def __init__(self, message_log: MessageLog, database: Database, clock: Clock) -> None:
        self._log = message_log
        self._database = database
        self._clock = clock
        self._owner = secrets.token_hex(8)

    async def take(self) -> Lease:
        """Take the lease, or renew it. Raises LeaseHeld while another process has it, and Unavailable."""
        domain = self._log.domains()[0]
        partition = self._log.partitions(domain, "system")[0]
        return await self._log.lease(f"{domain}/{READER}", partition, self._owner, LEASE_MS)

    @asynccontextmanager
    async def kept(self, lease: Lease) -> AsyncIterator[None]:
        """Keep the lease meanwhile, and give it back at the end."""
        loop = asyncio.get_running_loop()
        beside = [loop.create_task(self._renew()), loop.create_task(self._beat())]
        try:
            yield
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            try:
                await self._log.release(lease)
            except Unavailable as error:
                log.info("lease_lapses_by_itself", code=error.code)

    async def _renew(self) -> None:
        """Also while the database is away, and nothing comes from it."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            try:
                await self.take()
            except IotSphereError as error:
                log.warning("lease_not_renewed", code=error.code)

    async def _beat(self) -> None:
        """Send a sign of life through the database."""
        key = f"{self._log.domains()[0]}/{READER}"
        while True:
            try:
                before = await self._database.get(HEARTBEATS.name, key)
                await self._database.put(HEARTBEATS.name, Write(key, before, {"at": self._clock.now()}))
            except IotSphereError as error:
                log.warning("heartbeat_failed", code=error.code)
            await asyncio.sleep(BEAT_EVERY_S)
