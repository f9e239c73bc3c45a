"""What was told last of each document of the watched collections, and what has become different since."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from ...entities.message import Record
from ..ports.clock import Clock
from ..ports.database import Body, Change, Database
from ..ports.documents import Documents
from .place import CHECKPOINTS

PAGE: Final = 500

Tell = Callable[[Sequence[Change]], Awaitable[int]]


class Told:
    """Compares documents with what was told of them, by a hash of each."""

    def __init__(self, database: Database, documents: Documents, clock: Clock) -> None:
        self._database = database
        self._documents = documents
        self._clock = clock

    async def reconcile(self, collections: Sequence[str], since: int, tell: Tell) -> int:
        """Tell each document that is not as it was told last. Returns how many ``tell`` found new.

        ``since``: the time of the place that is left behind, the same when a crash lets it be done again; by it the
        outcome is told apart from an equal one before.
        """
        found = 0
        outcome = partial(self._outcome, since)
        for collection in collections:
            told = _Ahead(self._all(collection))
            after = ""
            while page := await self._database.scan(collection, after=after, limit=PAGE):
                changes: list[Change] = []
                for stored in page:
                    changes += [outcome(collection, key, None) for key in await told.until(stored.key)]
                    if await told.value(stored.key) != digest_of(stored.body):
                        change = outcome(collection, stored.key, stored.body)
                        changes.append(change._replace(revision=stored.revision))
                found += await self._tell(changes, tell)
                after = page[-1].key
            found += await self._tell([outcome(collection, key, None) for key in await told.rest()], tell)
        return found

    async def _tell(self, changes: Sequence[Change], tell: Tell) -> int:
        new = await tell(changes)
        await self._documents.put_many(CHECKPOINTS, dict(note_of(change) for change in changes))
        return new

    def _outcome(self, since: int, collection: str, key: str, body: Body | None) -> Change:
        """A document as it is, told without the changes that led there."""
        token = f"outcome/{since}/{collection}/{key}/{digest_of(body) or 'gone'}"
        kind = "delete" if body is None else "update"
        return Change(token, self._clock.now(), kind, collection, key, after=body)

    async def _all(self, collection: str) -> AsyncIterator[tuple[str, str]]:
        prefix = _prefix(collection)
        after = ""
        while page := await self._documents.scan(CHECKPOINTS, prefix=prefix, after=after, limit=PAGE):
            for document in page:
                yield document.key.removeprefix(prefix), document.value.decode()
            after = page[-1].key


def same_state(one: Record, other: Record) -> bool:
    """Whether two messages on one topic say the same, whenever they were made."""
    left, right = json.loads(one.body), json.loads(other.body)
    return {**left, "metadata": None} == {**right, "metadata": None}


def digest_of(body: Body | None) -> str | None:
    """A hash of a document's content; None for no document."""
    if body is None:
        return None
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]


def note_of(change: Change) -> tuple[str, bytes | None]:
    """What to remember of a change that was told: under which key, and the hash; None to forget it."""
    digest = digest_of(change.after)
    return _prefix(change.collection) + change.key, digest.encode() if digest is not None else None


def _prefix(collection: str) -> str:
    return f"told/{collection}/"


class _Ahead:
    """What was told last, in key order, beside the documents as they are now."""

    def __init__(self, told: AsyncIterator[tuple[str, str]]) -> None:
        self._told = told
        self._next: tuple[str, str] | None = None
        self._over = False

    async def _peek(self) -> tuple[str, str] | None:
        if self._next is None and not self._over:
            self._next = await anext(self._told, None)
            self._over = self._next is None
        return self._next

    async def until(self, key: str) -> list[str]:
        """The keys before this one: they are no more."""
        gone = []
        while (peeked := await self._peek()) is not None and peeked[0] < key:
            gone.append(peeked[0])
            self._next = None
        return gone

    async def value(self, key: str) -> str | None:
        """What was told of this key."""
        peeked = await self._peek()
        if peeked is None or peeked[0] != key:
            return None
        self._next = None
        return peeked[1]

    async def rest(self) -> list[str]:
        """The keys that are left."""
        return await self.until("\U0010ffff" * 2)
