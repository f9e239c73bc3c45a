"""Which shared subscriptions exist, and which processes want a part of them.

A group is a registered reader of the log, so retention waits for it and the ledger accounts for it; a document beside
it says when it last had a member. A group that had none for as long as a session can outlive its connection is
forgotten. What a process wants stands in documents that outdate within a second, so the dead are not counted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Final

from ...entities.errors import Conflict, TooManyGroups
from ...entities.position import Partition
from ...entities.share import READERS, Share
from ..ports.clock import Clock
from ..ports.documents import Document, Documents
from ..ports.message_log import MessageLog
from .leases import MARKS

GROUPS: Final = "shares"
SEEKERS: Final = "share-seekers"
SEEN_EVERY: Final = 3_600_000
LEFTOVER: Final = 60_000
FORGETTING_S: Final = 0.05
FORGOTTEN_AFTER: Final = 5_000
ATTEMPTS: Final = 200


class ShareRegister:
    """The groups of all processes. ``expiry``: ms without a member after which a group is forgotten.

    All methods raise LogUnavailable.
    """

    def __init__(self, log: MessageLog, documents: Documents, clock: Clock, expiry: int, limit: int) -> None:
        self._log = log
        self._documents = documents
        self._clock = clock
        self._expiry = expiry
        self._limit = limit

    def partitions(self, share: Share) -> list[Partition]:
        """The partitions that can hold messages of the group."""
        wanted = share.filter
        return [p for channel in sorted(wanted.channels) for p in self._log.partitions(wanted.domain, channel)]

    async def open(self, share: Share) -> None:
        """Make the group where it is missing, to begin at the present end. Raises TooManyGroups beyond the limit."""
        await self._claim(share.reader)
        ends = {partition: (await self._log.bounds(partition)).last for partition in self.partitions(share)}
        if ends:
            await self._log.register(share.reader, ends)

    async def seen(self, reader: str) -> None:
        """Take note that the group has members, at most once an hour."""
        document = await self._documents.get(GROUPS, reader)
        if document is not None and self._clock.now() - _value(document)["seen"] >= SEEN_EVERY:
            await self.left(reader)

    async def left(self, reader: str) -> None:
        """Take note that the group had members until now."""
        document = await self._documents.get(GROUPS, reader)
        if document is None or _value(document)["gone"]:
            return
        try:
            await self._put(reader, document.version)
        except Conflict:
            return  # somebody else has just said the same

    async def _claim(self, reader: str) -> None:
        """Let the group be known, and not be forgotten for a while."""
        for _ in range(ATTEMPTS):
            document = await self._documents.get(GROUPS, reader)
            try:
                if document is None:
                    await self._require_room(reader.partition("/")[0])
                    await self._put(reader, 0)
                elif not _value(document)["gone"]:
                    await self._put(reader, document.version)
                elif self._clock.now() - _value(document)["seen"] < FORGOTTEN_AFTER:
                    await asyncio.sleep(FORGETTING_S)  # it is being forgotten right now
                    continue
                else:
                    await self._forget(reader)
                    continue
            except Conflict:
                continue
            return
        raise Conflict(f"the group {reader!a} is being changed by many at once; subscribe again")

    async def _require_room(self, domain: str) -> None:
        known = [name for name in await self._log.readers(domain) if name.startswith(f"{domain}/{READERS}/")]
        if len(known) >= self._limit:
            raise TooManyGroups(
                f"the domain {domain!a} has {self._limit} shared subscriptions; use one of them, or wait until those "
                "without members are forgotten"
            )

    async def expire(self) -> int:
        """Forget every group that had no member for long enough. Returns how many."""
        forgotten = 0
        async for document in self._all(GROUPS):
            if self._clock.now() - _value(document)["seen"] < self._expiry and not _value(document)["gone"]:
                continue
            try:
                await self._put(document.key, document.version, gone=True)
            except Conflict:
                continue
            await self._forget(document.key)
            forgotten += 1
        return forgotten

    async def _forget(self, reader: str) -> None:
        await self._log.forget(reader)
        found = await self._documents.scan(MARKS, f"{reader}|")
        marks = {document.key: None for document in found if document.key.rpartition("|")[0] == reader}
        if marks:
            await self._documents.put_many(MARKS, marks)
        await self._documents.delete(GROUPS, reader)

    async def _put(self, reader: str, expected: int, *, gone: bool = False) -> None:
        value = json.dumps({"seen": self._clock.now(), "gone": gone}).encode()
        await self._documents.put(GROUPS, reader, value, expected)

    # -- who seeks ----------------------------------------------------------------------------------------------------

    async def seek(self, owner: str, readers: Iterable[str], until: int) -> None:
        """Say that this process wants its part of these groups until then (ms)."""
        value = json.dumps({"until": until}).encode()
        await self._documents.put_many(SEEKERS, {f"{reader}/{owner}": value for reader in readers})

    async def unseek(self, owner: str, readers: Iterable[str]) -> None:
        """Take it back."""
        await self._documents.put_many(SEEKERS, {f"{reader}/{owner}": None for reader in readers})

    async def seekers(self) -> dict[str, set[str]]:
        """Who wants a part of which group now; what the dead left is swept away."""
        found: dict[str, set[str]] = {}
        now = self._clock.now()
        stale: dict[str, None] = {}
        async for document in self._all(SEEKERS):
            until = json.loads(document.value)["until"]
            if until > now:
                reader, _, owner = document.key.rpartition("/")
                found.setdefault(reader, set()).add(owner)
            elif until < now - LEFTOVER:
                stale[document.key] = None
        if stale:
            await self._documents.put_many(SEEKERS, stale)
        return found

    async def _all(self, collection: str) -> AsyncIterator[Document]:
        after = ""
        while page := await self._documents.scan(collection, after=after):
            for document in page:
                yield document
            after = page[-1].key


def _value(document: Document) -> dict[str, int]:
    value: dict[str, int] = json.loads(document.value)
    return value
