"""Collections and indexes of a database, made where they are missing, and what the store knows of itself.

The document ``store`` in the collection ``_store`` holds the ``epoch``, by which tokens of another database are told
apart, and for each collection that was there before it was watched the time ``since`` when it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from bson import Timestamp
from pymongo import ASCENDING, IndexModel, ReturnDocument
from pymongo.errors import OperationFailure

from ...use_cases.ports.database import Collection, Index
from .documents import EXPIRES
from .failures import NAMESPACE_EXISTS
from .link import Document, Link

STORE: Final = "_store"
_IMAGES: Final = "changeStreamPreAndPostImages"
_ENABLED: Final = {"enabled": True}


class Store(NamedTuple):
    """``epoch``: names this database. ``since``: by collection, changes up to this time were not watched."""

    epoch: str
    since: Mapping[str, Timestamp]


async def store_of(link: Link) -> Store:
    """What the store knows of itself; made where it is missing."""
    document = await link.run(
        lambda: link.collection(STORE).find_one_and_update(
            {"_id": "store"},
            [{"$set": {"epoch": {"$ifNull": ["$epoch", secrets.token_hex(8)]}}}],
            upsert=True,
            return_document=ReturnDocument.AFTER,
        )
    )
    return Store(document["epoch"], document.get("since", {}))


async def declare(link: Link, collections: Sequence[Collection]) -> None:
    """Make what is missing. Idempotent, also while others do the same."""
    there = await link.run(lambda: _options(link))
    for collection in collections:
        await _make(link, collection, there.get(collection.name))
        await _index(link, collection)
    await store_of(link)


async def _options(link: Link) -> dict[str, Document]:
    listed = await link.database.list_collections()
    return {one["name"]: one.get("options", {}) async for one in listed}


async def _make(link: Link, collection: Collection, options: Document | None) -> None:
    if options is None:
        images = {_IMAGES: _ENABLED} if collection.watched else {}
        if await link.run(lambda: _create(link, collection.name, images)):
            return
    if collection.watched and not (options or {}).get(_IMAGES, {}).get("enabled"):
        reply = await link.command({"collMod": collection.name, _IMAGES: _ENABLED})
        if options is not None:
            await _watched_since(link, collection.name, reply["operationTime"])


async def _create(link: Link, name: str, images: Mapping[str, Any]) -> bool:
    try:
        await link.database.create_collection(name, **images)
    except OperationFailure as error:
        if error.code != NAMESPACE_EXISTS:
            raise
        return False
    return True


async def _watched_since(link: Link, name: str, time: Timestamp) -> None:
    store = link.collection(STORE)
    await link.run(lambda: store.update_one({"_id": "store"}, {"$max": {f"since.{name}": time}}, upsert=True))


async def _index(link: Link, collection: Collection) -> None:
    models = [_model(index) for index in collection.indexes]
    if collection.expires is not None:
        models.append(IndexModel([(EXPIRES, ASCENDING)], name=EXPIRES, expireAfterSeconds=0))
    if not models:
        return
    target = link.collection(collection.name)
    there = await link.run(target.index_information)
    for model in models:
        name, fields = model.document["name"], list(model.document["key"].items())
        if name in there and list(there[name]["key"]) != fields:
            await link.run(partial(target.drop_index, name))
        elif name in there:
            continue
        await link.at_length(partial(target.create_indexes, [model]))
    if collection.expires is not None and EXPIRES not in there:
        await _date(link, collection.name, collection.expires)


async def _date(link: Link, name: str, path: str) -> None:
    """Give documents that are there already the date after which they go."""
    dated = [{"$set": {EXPIRES: {"$toDate": {"$toLong": f"${path}"}}}}]
    which = {path: {"$type": ["int", "long"]}, EXPIRES: {"$exists": False}}
    await link.at_length(lambda: link.collection(name).update_many(which, dated))


def _model(index: Index) -> IndexModel:
    """Ordered by the fields, then by the key; only of documents that have all fields."""
    return IndexModel(
        [*((field, ASCENDING) for field in index.fields), ("_id", ASCENDING)],
        name=index.name,
        partialFilterExpression={field: {"$exists": True} for field in index.fields},
    )
