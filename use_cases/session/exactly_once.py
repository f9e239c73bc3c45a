"""What exactly-once delivery (QoS 2) has to remember of a session, and how it finds what a crash left unsaid.

The record is one small document beside the session's: which messages of the client are in the log and not released, and
which messages to it are under way under which packet id. It is written before whatever depends on it leaves, once for
all that has come together. It is exact without a write in front of each append, since the ids of messages follow from
what is on record: the log itself then knows the rest.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from ...entities.errors import Conflict
from ...entities.position import Partition
from ..ports.clock import Clock
from ..ports.documents import Documents
from ..ports.message_log import MessageLog
from .state import Hold, Inbound, Kept, Received, read_sent, write_sent

COLLECTION: Final = "exactly-once"
DEDUPE_MS: Final = 9 * 60_000  # of the 10 minutes that every log remembers ids; the rest is for clocks that differ
SKEW_MS: Final = 5 * 60_000


class ExactlyOnce:
    """Keeps the records. Methods raise LogUnavailable; repeating them is safe."""

    def __init__(self, documents: Documents, log: MessageLog, clock: Clock) -> None:
        self._documents = documents
        self._log = log
        self._clock = clock

    async def load(self, hold: Hold, domain: str) -> tuple[Kept, Inbound] | None:
        """The session's record; None when it never had one."""
        document = await self._documents.get(COLLECTION, hold.key)
        if document is None:
            return None
        value: Mapping[str, Any] = json.loads(document.value)
        if value["session"] != hold.salt:
            return None  # of a session that has ended
        hold.record = document.version
        received = tuple(Received(*each) for each in value["received"])
        settled = tuple((packet_id, generation) for packet_id, generation in value["settled"])
        inbound = Inbound(value["generation"], tuple(value["before"]), settled, received)
        return read_sent(domain, value), inbound

    async def keep(self, hold: Hold, kept: Kept, inbound: Inbound) -> None:
        """Write the record. Raises Conflict when a newer connection has written to it."""
        value = json.dumps(
            {
                "session": hold.salt,
                "since": hold.since,
                "generation": inbound.generation,
                "before": inbound.before,
                "settled": inbound.settled,
                "received": inbound.received,
                **write_sent(kept),
            }
        ).encode()
        while True:
            try:
                hold.record = await self._documents.put(COLLECTION, hold.key, value, hold.record)
                return
            except Conflict:
                document = await self._documents.get(COLLECTION, hold.key)
                stored: Mapping[str, Any] = json.loads(document.value) if document is not None else {}
                if stored.get("session") == hold.salt and stored["since"] > hold.since:
                    raise
                hold.record = document.version if document is not None else 0

    async def forget(self, key: str) -> None:
        """The session has ended."""
        await self._documents.delete(COLLECTION, key)

    def is_remembered(self, generation: int) -> bool:
        """Whether the log recognises every message of a generation by its id, without being searched."""
        return self._clock.now() - generation < DEDUPE_MS

    async def appended(self, partition: Partition, ids: Collection[str], since: int) -> bool:
        """Whether one of the ids lies in the partition, at or after a time (ms) by any clock that is not far off."""
        after = await self._log.at(partition, since - SKEW_MS)
        while True:
            part = await self._log.read(partition, after)
            if any(entry.record.message_id in ids for entry in part.entries):
                return True
            if part.end == after:
                return False
            after = part.end

    async def is_known(self, domain: str, message_id: str) -> bool:
        """Whether an id that the sender has stated is in the log."""
        return await self._log.find(domain, message_id) is not None
