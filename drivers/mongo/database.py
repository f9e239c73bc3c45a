"""Shared state in MongoDB: documents that people read and edit with its shell, and the feed of their changes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any, Final

from ...adapters.database.requests import Declared, stands_or_conflict, texts_of
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.database import Change, Collection, Outcome, Stored, Write
from . import schema, searching
from .documents import stored_of
from .feed import Feed
from .link import Collection as Target
from .link import Document, Link
from .options import DEFAULTS, MongoOptions
from .stream import Stream
from .tokens import place_after
from .turnstile import Turnstile
from .writing import Writer

GET_AT_ONCE: Final = 500


class MongoDatabase:
    """A ``Database`` in the MongoDB database that the URL names; an async context manager.

    Writes are acknowledged by a majority, with their journals on disk; reads see what a majority has.
    """

    def __init__(self, url: str, clock: Clock, options: MongoOptions = DEFAULTS) -> None:
        """Raises RequestInvalid for an address that is no MongoDB URL with a database."""
        self.link = Link(url, options)
        self._clock = clock
        self._declared = Declared()
        self._turnstile = Turnstile()

    async def __aenter__(self) -> MongoDatabase:
        """Connect. Raises DatabaseUnavailable, and RequestInvalid where the server cannot tell changes."""
        await self.link.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self.link.close()

    async def ensure(self, collections: Sequence[Collection]) -> None:
        """Make collections and indexes."""
        self._declared.add(collections)
        await schema.declare(self.link, collections)

    async def get(self, collection: str, key: str) -> Stored | None:
        """The document, or None."""
        target = self.link.collection(self._declared.collection(collection).name)
        found = await self.link.run(lambda: target.find_one({"_id": key}))
        return None if found is None else stored_of(found)

    async def get_many(self, collection: str, keys: Sequence[str]) -> Mapping[str, Stored]:
        """Those of the documents that exist."""
        target = self.link.collection(self._declared.collection(collection).name)
        there: dict[str, Stored] = {}
        for start in range(0, len(keys), GET_AT_ONCE):
            which = {"_id": {"$in": list(keys[start : start + GET_AT_ONCE])}}
            found = await self.link.run(partial(_all, target, which))
            there.update((document["_id"], stored_of(document)) for document in found)
        return there

    async def write(self, collection: str, writes: Sequence[Write]) -> Sequence[Outcome]:
        """Carry out several writes."""
        declared = self._declared.collection(collection)
        texts = texts_of(writes)
        if not writes:
            return []
        writer = Writer(self.link, declared)
        if len(writes) > 1:
            return await writer.write(writes, texts)
        (only,) = writes

        async def write() -> Outcome:
            (outcome,) = await writer.write(writes, texts)
            return outcome

        return [await self._turnstile((collection, only.key), only.before, write)]

    async def put(self, collection: str, write: Write) -> Stored | None:
        """Carry out one write. Raises Conflict."""
        (outcome,) = await self.write(collection, (write,))
        return stands_or_conflict(collection, write.key, outcome)

    async def find(
        self, collection: str, index: str, equal: Sequence[Any], *, after: Any = None, limit: int = 1_000
    ) -> Sequence[Stored]:
        """Documents by an index."""
        which, order = searching.by_index(self._declared.index(collection, index, equal, after), equal, after)
        target = self.link.collection(collection)
        found = await self.link.run(lambda: target.find(which).hint(index).sort(order).limit(limit).to_list(limit))
        return [stored_of(document) for document in found]

    async def scan(self, collection: str, prefix: str = "", after: str = "", limit: int = 1_000) -> Sequence[Stored]:
        """Documents in key order."""
        target = self.link.collection(self._declared.collection(collection).name)
        which = searching.by_prefix(prefix, after)
        found = await self.link.run(lambda: target.find(which).sort("_id", 1).limit(limit).to_list(limit))
        return [stored_of(document) for document in found]

    async def now(self) -> str:
        """A token for what happens from here on."""
        store = await schema.store_of(self.link)
        stream = await Stream.open(self.link, [{"$changeStream": {}}])
        await stream.close()
        return place_after(stream.token).text(store.epoch)

    async def changes(self, after: str, collections: Sequence[str] = ()) -> AsyncGenerator[Change, None]:
        """Changes of the watched collections after a token, for ever."""
        names = frozenset(self._declared.watched(collections))
        feed = Feed(self.link, self._clock, names, self._mend)
        async with aclosing(feed.follow(after, await schema.store_of(self.link))) as changes:
            async for change in changes:
                yield change

    async def _mend(self) -> schema.Store:
        await schema.declare(self.link, list(self._declared.collections.values()))
        return await schema.store_of(self.link)

    async def ready(self) -> None:
        """Raise DatabaseUnavailable when a write would fail now."""
        store = self.link.collection(schema.STORE)
        await self.link.run(
            lambda: store.update_one({"_id": "ready"}, {"$set": {"at": self._clock.now()}}, upsert=True)
        )


async def _all(target: Target, which: Document) -> list[Document]:
    return await target.find(which).to_list(None)
