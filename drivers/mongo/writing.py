"""Writing under optimistic locks: a write is carried out only where the whole document is what the caller saw.

The server compares the whole document and replaces it in one step, so an edit that a person made in between is never
written over. A write that finds something else fails in the server, with its place in the batch: each gets an outcome
of its own in one request.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from pymongo import InsertOne, UpdateOne
from pymongo.errors import BulkWriteError, OperationFailure
from pymongo.read_concern import ReadConcern

from ...adapters.database.body import decode, next_revision, same
from ...entities.errors import DatabaseUnavailable, RequestInvalid
from ...use_cases.ports.database import Collection, Outcome, Stored, Write
from .documents import document_of, revision_of, stored_of
from .failures import DUPLICATE_KEY, NO_OBJECT, WRITE_CONFLICT, translate
from .link import Document, Link

BATCH: Final = 500
REMOVALS_AT_ONCE: Final = 8
LOOKS: Final = 5
CONFLICTS: Final = 5
FIRST_PAUSE_S: Final = 0.05
_LOCAL: Final = ReadConcern("local")

Failed = dict[int, int]  # the server's number of the error, by place in the batch


@dataclass(slots=True)
class Draft:
    """A write on its way: ``seen`` is what must be there as MongoDB keeps it, ``new`` what will be."""

    key: str
    before: Stored | None
    seen: Document | None
    new: Document | None


class Writer:
    """Carries out writes to one collection."""

    def __init__(self, link: Link, collection: Collection) -> None:
        self._link = link
        self._expires = collection.expires
        self._name = collection.name
        self._target = link.collection(collection.name)
        # What a write lost against may not have reached a majority yet, and is the truth to go on from all the same.
        self._newest = self._target.with_options(read_concern=_LOCAL)

    async def write(self, writes: Sequence[Write], texts: Sequence[bytes | None]) -> list[Outcome]:
        """Carry out writes whose bodies are these texts. Raises DatabaseUnavailable, RequestInvalid."""
        drafts = [self._draft(write, text) for write, text in zip(writes, texts, strict=True)]
        outcomes: list[Outcome] = []
        for start in range(0, len(drafts), BATCH):
            outcomes += await self._batch(drafts[start : start + BATCH])
        return outcomes

    def _draft(self, write: Write, text: bytes | None) -> Draft:
        key, before, _ = write
        revision = before.revision if before is not None else 0
        seen = None if before is None else document_of(key, revision, before.body, self._expires)
        new = None if text is None else document_of(key, next_revision(revision), decode(text), self._expires)
        return Draft(key, before, seen, new)

    async def _batch(self, drafts: Sequence[Draft]) -> list[Outcome]:
        refused = await self._try(drafts)
        outcomes: list[Outcome] = [_done(draft) for draft in drafts]
        for look in range(1, LOOKS + 1):
            if not refused:
                break
            there = await self._look(drafts[place].key for place in refused)
            again = []
            for place in refused:
                draft, found = drafts[place], there.get(drafts[place].key)
                outcomes[place] = Outcome(False, None if found is None else stored_of(found))
                if look == LOOKS or not _matches(draft.before, found):
                    continue
                if draft.before is None and draft.new is None:
                    outcomes[place] = Outcome(True, None)
                    continue
                # It is what the caller saw, kept otherwise than we would write it (a date, another order of fields).
                draft.seen = found
                outcomes[place] = _done(draft)
                again.append(place)
            refused = [again[place] for place in await self._try([drafts[place] for place in again])]
        return outcomes

    async def _try(self, drafts: Sequence[Draft]) -> list[int]:
        """Carry out what can be; returns the places of those that found something else."""
        replaced = [place for place, draft in enumerate(drafts) if draft.new is not None]
        removed = [place for place, draft in enumerate(drafts) if draft.new is None and draft.seen is not None]
        refused = [place for place, draft in enumerate(drafts) if draft.new is None and draft.seen is None]
        refused += [replaced[place] for place in await self._replace([drafts[place] for place in replaced])]
        for start in range(0, len(removed), REMOVALS_AT_ONCE):
            some = removed[start : start + REMOVALS_AT_ONCE]
            gone = await asyncio.gather(*(self._remove(drafts[place]) for place in some))
            refused += [place for place, done in zip(some, gone, strict=True) if not done]
        return refused

    async def _replace(self, drafts: Sequence[Draft]) -> list[int]:
        waiting = list(range(len(drafts)))
        refused: list[int] = []
        for attempt in range(CONFLICTS + 1):
            if not waiting:
                return refused
            if attempt:
                await asyncio.sleep(random.uniform(0.5, 1) * FIRST_PAUSE_S * 2 ** (attempt - 1))
            failed = await self._link.run(partial(self._bulk, [drafts[place] for place in waiting]))
            refused += [waiting[place] for place, code in failed.items() if code != WRITE_CONFLICT]
            waiting = [waiting[place] for place, code in failed.items() if code == WRITE_CONFLICT]
        if waiting:
            raise DatabaseUnavailable(f"{self._name} is changed by too many at once in MongoDB: try again")
        return refused

    async def _bulk(self, drafts: Sequence[Draft]) -> Failed:
        try:
            await self._target.bulk_write([_operation(draft) for draft in drafts], ordered=False)
        except BulkWriteError as error:
            return self._failed(error)
        except OperationFailure as error:
            if error.code != WRITE_CONFLICT:
                raise
            return dict.fromkeys(range(len(drafts)), WRITE_CONFLICT)
        return {}

    def _failed(self, error: BulkWriteError) -> Failed:
        details = error.details or {}
        failed = {one["index"]: one["code"] for one in details.get("writeErrors", ())}
        for one in (*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())):
            if one["code"] not in (DUPLICATE_KEY, NO_OBJECT, WRITE_CONFLICT):
                known = OperationFailure(one.get("errmsg", ""), one["code"], one)
                raise translate(known, self._link.server) from error
        return failed

    async def _remove(self, draft: Draft) -> bool:
        which = {"_id": draft.key, "$expr": {"$eq": ["$$ROOT", {"$literal": draft.seen}]}}
        found = await self._link.run(lambda: self._target.find_one_and_delete(which, projection=["_id"]))
        return found is not None

    async def _look(self, keys: Iterable[str]) -> Mapping[str, Document]:
        wanted = list(keys)
        found = await self._link.run(lambda: self._newest.find({"_id": {"$in": wanted}}).to_list(None))
        return {document["_id"]: document for document in found}


def _done(draft: Draft) -> Outcome:
    return Outcome(True, None if draft.new is None else stored_of(draft.new))


def _matches(before: Stored | None, found: Document | None) -> bool:
    if before is None or found is None:
        return before is None and found is None
    try:
        return before.revision == revision_of(found) and same(before.body, stored_of(found).body)
    except TypeError as error:
        raise RequestInvalid("what is to be replaced is no JSON: give the document as it was read") from error


def _operation(draft: Draft) -> InsertOne[Document] | UpdateOne:
    if draft.seen is None:
        assert draft.new is not None
        return InsertOne(draft.new)
    unchanged = {"$eq": ["$$ROOT", {"$literal": draft.seen}]}
    # No document can be null: the server refuses that, and says at which place. With upsert it does so too when there
    # is nothing at all, instead of passing over it in silence.
    new = {"$replaceWith": {"$cond": [unchanged, {"$literal": draft.new}, None]}}
    return UpdateOne({"_id": draft.key}, [new], upsert=True)
