"""Telemetry in MongoDB: one document per metric with its latest value, and one per reading for some days."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from bson import DatetimeMS
from pymongo import ASCENDING, DESCENDING, IndexModel, InsertOne, UpdateOne
from pymongo.errors import BulkWriteError, OperationFailure

from ...use_cases.ports.telemetry import Reading
from .failures import DUPLICATE_KEY
from .link import Document, Link

LATEST: Final = "latest"
HISTORY: Final = "history"
BATCH: Final = 1_000
DAY_S: Final = 86_400
_EXPIRES: Final = "expires"

Operation = InsertOne[Document] | UpdateOne


class MongoTelemetry:
    """A ``TelemetryStore`` beside the documents of a ``MongoDatabase``, whose link it uses.

    ``history_days``: how long readings are kept after they were received; a change of it takes effect with ``ensure``.
    """

    def __init__(self, link: Link, history_days: float = 7.0) -> None:
        self._link = link
        self._seconds = int(history_days * DAY_S)

    async def ensure(self) -> None:
        """Make the indexes."""
        by_metric = [("domain", ASCENDING), ("device", ASCENDING), ("metric", ASCENDING)]
        latest, history = self._link.collection(LATEST), self._link.collection(HISTORY)
        await self._link.at_length(lambda: latest.create_indexes([IndexModel(by_metric, name="by_metric")]))
        by_time = IndexModel([*by_metric, ("at", DESCENDING)], name="by_metric")
        await self._link.at_length(lambda: history.create_indexes([by_time]))
        there = await self._link.run(history.index_information)
        if _EXPIRES not in there:
            gone = IndexModel([("received", ASCENDING)], name=_EXPIRES, expireAfterSeconds=self._seconds)
            await self._link.at_length(lambda: history.create_indexes([gone]))
        elif there[_EXPIRES].get("expireAfterSeconds") != self._seconds:
            index = {"name": _EXPIRES, "expireAfterSeconds": self._seconds}
            await self._link.command({"collMod": HISTORY, "index": index})

    async def save(self, readings: Sequence[Reading]) -> None:
        """Keep readings."""
        newest: dict[tuple[str, str, str], Reading] = {}
        for reading in readings:
            known = newest.setdefault(reading[:3], reading)
            if (known.at, known.order) < (reading.at, reading.order):
                newest[reading[:3]] = reading
        await self._write(HISTORY, [InsertOne(_history(reading)) for reading in readings])
        await self._write(LATEST, [_update(reading) for reading in newest.values()])

    async def _write(self, collection: str, operations: Sequence[Operation]) -> None:
        for start in range(0, len(operations), BATCH):
            await self._link.run(partial(self._bulk, collection, operations[start : start + BATCH]))

    async def _bulk(self, collection: str, operations: Sequence[Operation]) -> None:
        try:
            await self._link.collection(collection).bulk_write(operations, ordered=False)
        except BulkWriteError as error:
            details = error.details or {}
            for one in (*details.get("writeConcernErrors", ()), *details.get("writeErrors", ())):
                if one["code"] != DUPLICATE_KEY:  # that one is a reading which was saved before
                    raise OperationFailure(one.get("errmsg", ""), one["code"], one) from error


def _facts(reading: Reading) -> Document:
    facts: Document = {
        "domain": reading.domain,
        "device": reading.device,
        "metric": reading.metric,
        "value": reading.value,
        "unit": reading.unit,
        "quality": reading.quality,
        "at": DatetimeMS(reading.at),
        "received": DatetimeMS(reading.received),
        "messageId": reading.message_id,
        "order": reading.order,
        "schema": 1,
    }
    return {name: value for name, value in facts.items() if value is not None or name == "value"}


def _history(reading: Reading) -> Document:
    key = f"{reading.message_id}/{reading.metric}/{reading.at}"
    return {"_id": f"{key}/{reading.sample}" if reading.sample else key, **_facts(reading)}


def _update(reading: Reading) -> UpdateOne:
    """Replaces what is older, in one step: it neither fails nor writes where something newer is."""
    key = f"{reading.domain}/{reading.device}/{reading.metric}"
    new = {"_id": key, **_facts(reading)}
    earlier: dict[str, Any] = {"$lt": ["$at", new["at"]]}
    before: dict[str, Any] = {"$and": [{"$eq": ["$at", new["at"]]}, {"$lt": ["$order", {"$literal": reading.order}]}]}
    newer = {"$cond": [{"$or": [earlier, before]}, {"$literal": new}, "$$ROOT"]}
    return UpdateOne({"_id": key}, [{"$replaceWith": newer}], upsert=True)
