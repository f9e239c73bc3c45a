"""Persistent sessions: what a client that comes back finds again, kept as a few filters and a cursor in the log.

A session's offline queue is the log itself: the session is a registered reader, so retention waits for it, and its
committed position is the lowest message that the client has not acknowledged. Filters, and the packet ids that were
under way at a goodbye, lie beside it in a document. A session that ends is forgotten by both.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ...entities.errors import Conflict
from ...entities.message import Entry
from ...entities.position import Partition, Position
from ...entities.principal import Principal
from ..ports.clock import Clock
from ..ports.documents import Document, Documents
from ..ports.message_log import MessageLog, Tally
from .exactly_once import ExactlyOnce
from .state import READERS, Hold, Inbound, Kept, Received, UnderWay, Wanted, read, write

COLLECTION: Final = "sessions"
PAGE: Final = 500
ATTEMPTS: Final = 5
GENERATIONS: Final = 8  # crashes in a row, without one orderly end between them, that QoS 2 is exact across


class Sessions:
    """Opens, saves and ends sessions. ``node``: this process's name, the same after its restart.

    All methods raise LogUnavailable. A Conflict says that another connection of the same client has the session now.
    """

    def __init__(self, documents: Documents, log: MessageLog, clock: Clock, node: str = "gateway") -> None:
        self._documents = documents
        self._log = log
        self._clock = clock
        self._node = node
        self.exactly_once = ExactlyOnce(documents, log, clock)

    async def open(self, principal: Principal, client_id: str, clean: bool, expiry: int) -> tuple[Hold, Kept | None]:
        """Take the client's session over, or begin a new one (None). ``clean``: an old one is to end first."""
        key = f"{principal.identity}/{client_id}"
        hold = Hold(key, expiry)
        for attempt in range(ATTEMPTS):
            document = await self._documents.get(COLLECTION, key)
            if document is not None and (clean or self._is_over(document)):
                await self._end(document.key, hold.reader)
                document = None
            if document is None and not expiry:
                return hold, None
            kept = await self._resume(hold, principal.domain, document) if document is not None else None
            if kept is None:
                hold.salt, hold.inbound = secrets.token_hex(8), Inbound(self._clock.now())
            try:
                await self._put(hold, Kept(kept.wanted) if kept else Kept(), document.version if document else 0)
            except Conflict:
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            hold.since = hold.version
            if kept is None:
                return hold, None
            progress = await self._log.committed(hold.reader)
            hold.committed = {partition: part.position for partition, part in progress.items()}
            return hold, replace(kept, positions=dict(hold.committed))
        raise AssertionError("unreachable")

    async def _resume(self, hold: Hold, domain: str, document: Document) -> Kept:
        """What the session holds, by its own document and by its record for exactly-once delivery."""
        value = json.loads(document.value)
        kept = read(domain, value)
        hold.salt = value.get("salt") or secrets.token_hex(8)
        generation, before = value.get("generation", 0), tuple(value.get("before", ()))
        settled: tuple[tuple[int, int], ...] = ()
        received: tuple[Received, ...] = ()
        record = await self.exactly_once.load(hold, domain)
        if record is not None:
            sent, inbound = record
            kept = replace(sent, wanted=kept.wanted)
            received, settled = inbound.received, inbound.settled
            if inbound.generation >= generation:
                generation, before = inbound.generation, inbound.before
        if not value.get("clean"):  # it ended without saying what it had received
            before = (*before, generation)[-GENERATIONS:]
        hold.inbound = Inbound(max(generation + 1, self._clock.now()), before, settled if before else (), received)
        return kept

    async def subscribe(self, hold: Hold, wanted: Iterable[Wanted], positions: Mapping[Partition, Position]) -> None:
        """Remember the session's filters, and let retention wait from ``positions`` on in their partitions.

        Partitions that no filter selects any more are let go. Raises Conflict.
        """
        if not hold.expiry:
            return
        gone = hold.committed.keys() - positions.keys()
        if gone:
            await self._log.forget(hold.reader)
            hold.committed = {p: position for p, position in hold.committed.items() if p not in gone}
        starts = {**positions, **hold.committed}
        if starts:
            await self._log.register(hold.reader, starts)
            hold.committed = {p: part.position for p, part in (await self._log.committed(hold.reader)).items()}
        await self._put(hold, Kept(tuple(wanted)), hold.version)

    async def commit(
        self, hold: Hold, positions: Mapping[Partition, Position], tallies: Mapping[Partition, Tally]
    ) -> None:
        """Move the cursor; ``tallies`` says what of it was not applied. Messages of other topics count as applied."""
        progress: dict[Partition, tuple[Position, Tally]] = {}
        for partition, position in positions.items():
            before = hold.committed.get(partition)
            if before is not None and position > before:
                tally = tallies.get(partition, Tally())
                other = sum(tally) - tally.applied
                progress[partition] = position, tally._replace(applied=max(0, position.offset - before.offset - other))
        if progress:
            await self._log.commit(hold.reader, progress)
            hold.committed = {**hold.committed, **{partition: moved[0] for partition, moved in progress.items()}}

    async def leave(self, hold: Hold, kept: Kept, inbound: Inbound | None = None) -> None:
        """Save the session at the end of its connection, or end it when it does not outlive that. Raises Conflict.

        ``inbound``: what is known of the client's messages at QoS 2, unless that is what it was.
        """
        if hold.expiry:
            hold.inbound = inbound or hold.inbound
            twos = hold.inbound.received or kept.released or any(each.qos == 2 for each in kept.under_way)
            if inbound is not None and (hold.record or twos or kept.pushed):
                await self.exactly_once.keep(hold, kept, inbound)
            await self._put(hold, kept, hold.version, left_at=self._clock.now())
        elif hold.version:
            await self._end(hold.key, hold.reader)

    async def entries(self, under_way: Sequence[UnderWay]) -> Sequence[Entry | None]:
        """What lies at places of the log, looked up together; None where it is gone. Raises LogUnavailable."""
        return await self._log.entries([(each.partition, each.position) for each in under_way])

    async def recover(self) -> int:
        """After a crash: begin the expiry of sessions that this process held. Returns how many.

        Readers that a crash left without their session are forgotten.
        """
        found = 0
        known: set[str] = set()
        async for document in self._all():
            known.add(document.key)
            value = json.loads(document.value)
            if value["leftAt"] is None and value["node"] == self._node:
                value["leftAt"] = self._clock.now()
                await self._documents.put(COLLECTION, document.key, json.dumps(value).encode(), document.version)
                found += 1
        for domain in self._log.domains():
            prefix = f"{domain}/{READERS}/"
            for reader in await self._log.readers(domain):
                key = f"{domain}/{reader.removeprefix(prefix)}"
                if not reader.startswith(prefix) or key in known:
                    continue
                if await self._documents.get(COLLECTION, key) is None:  # it is not younger than the scan either
                    await self._log.forget(reader)
        return found

    async def expire(self) -> int:
        """End every session whose time is over. Returns how many."""
        ended = 0
        async for document in self._all():
            if self._is_over(document):
                domain, rest = document.key.split("/", 1)
                await self._end(document.key, f"{domain}/{READERS}/{rest}")
                ended += 1
        return ended

    async def _all(self) -> AsyncIterator[Document]:
        after = ""
        while page := await self._documents.scan(COLLECTION, after=after, limit=PAGE):
            for document in page:
                yield document
            after = page[-1].key

    def _is_over(self, document: Document) -> bool:
        value = json.loads(document.value)
        left_at = value["leftAt"]
        return left_at is not None and left_at + value["expiry"] * 1000 <= self._clock.now()

    async def _put(self, hold: Hold, kept: Kept, expected: int, left_at: int | None = None) -> None:
        value = {
            "node": self._node,
            "leftAt": left_at,
            "clean": left_at is not None,
            "expiry": hold.expiry,
            "salt": hold.salt,
            "generation": hold.inbound.generation,
            "before": hold.inbound.before,
            **write(kept),
        }
        hold.version = await self._documents.put(COLLECTION, hold.key, json.dumps(value).encode(), expected)

    async def _end(self, key: str, reader: str) -> None:
        # The document goes first: a crash in between leaves a reader that ``recover`` finds, not a queue that has lost
        # its place.
        await self._documents.delete(COLLECTION, key)
        await self.exactly_once.forget(key)
        await self._log.forget(reader)
