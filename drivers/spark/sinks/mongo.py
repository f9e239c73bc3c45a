"""Results in MongoDB: each document is replaced as a whole, in one step, unless the one that is there knows more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Self

import pymongo
from bson.codec_options import CodecOptions
from pymongo import InsertOne, ReplaceOne
from pymongo.errors import BulkWriteError, ConfigurationError, InvalidURI, OperationFailure, PyMongoError

from ....entities.errors import DatabaseUnavailable, RequestInvalid
from .kept import Kept

TIMEOUT_MS: Final = 20_000
PING_S: Final = 5.0
DUPLICATE_KEY: Final = 11000
EXPIRES: Final = "expires"
STATE: Final = "state"
Operation = InsertOne[dict[str, Any]] | ReplaceOne[dict[str, Any]]


class MongoSink:
    """A ``DocumentSink`` in the database that the address names; keys are ``_id``, and texts that sort by time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: pymongo.MongoClient[dict[str, Any]] | None = None
        self._seen: set[str] = set()

    def __enter__(self) -> Self:
        try:
            self._client = pymongo.MongoClient(
                self._url,
                appname="iotsphere-spark",
                w="majority",
                journal=True,
                retryWrites=True,
                serverSelectionTimeoutMS=TIMEOUT_MS,
                socketTimeoutMS=3 * TIMEOUT_MS,
            )
            self._database = self._client.get_default_database(codec_options=CodecOptions(tz_aware=True))
        except (ConfigurationError, InvalidURI) as error:
            self.__exit__()
            raise RequestInvalid(
                f"the MongoDB address cannot be used ({type(error).__name__}): write mongodb://HOST:PORT/NAME?replicaSet=…"
            ) from error
        return self

    def __exit__(self, *exc: object) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def ping(self) -> None:
        """Ask for a sign of life, as this user. Raises DatabaseUnavailable."""
        assert self._client is not None, "use it in a with statement"
        try:
            with pymongo.timeout(PING_S):
                self._client.admin.command("ping")
        except PyMongoError as error:
            raise DatabaseUnavailable(
                f"MongoDB does not answer ({type(error).__name__}): start it, or mend its address or user in --database"
            ) from error

    def write(self, collection: str, documents: Sequence[Kept]) -> int:
        """Set documents. Raises DatabaseUnavailable."""
        # An insert costs the server a fraction of an upsert. Those whose key was taken are asked for once more: of two
        # that upsert at once both may find nothing, and whoever was first need not know more.
        taken = self._ask(collection, documents, [_insert(kept) if kept.new else _replace(kept) for kept in documents])
        again = [documents[index] for index in taken]
        return len(documents) - len(self._ask(collection, again, [_replace(kept) for kept in again]))

    def find(self, collection: str, state: str) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Key and body of the documents in a state. Raises DatabaseUnavailable."""
        try:
            self._database[collection].create_index([(STATE, 1)], name=STATE, partialFilterExpression={STATE: state})
            found = list(self._database[collection].find({STATE: state}))
        except (PyMongoError, OSError) as error:
            raise _unavailable(error) from error
        return [(one.pop("_id"), one) for one in found]

    def _ask(self, collection: str, documents: Sequence[Kept], operations: Sequence[Operation]) -> list[int]:
        """Have the server do all of it, and return the indexes of those whose key was taken."""
        if not operations:
            return []
        try:
            self._prepare(collection, documents)
            self._database[collection].bulk_write(operations, ordered=False)
        except BulkWriteError as error:
            details = error.details or {}
            for one in (*details.get("writeConcernErrors", ()), *details.get("writeErrors", ())):
                if one["code"] != DUPLICATE_KEY:
                    raise _unavailable(OperationFailure("", one["code"])) from error
            return [one["index"] for one in details.get("writeErrors", ())]
        except (PyMongoError, OSError) as error:
            raise _unavailable(error) from error
        return []

    def _prepare(self, collection: str, documents: Sequence[Kept]) -> None:
        if collection in self._seen or not any(kept.expires for kept in documents):
            return
        self._database[collection].create_index([(EXPIRES, 1)], name=EXPIRES, expireAfterSeconds=0)
        self._seen.add(collection)


def _insert(kept: Kept) -> Operation:
    return InsertOne(_stored(kept))


def _replace(kept: Kept) -> Operation:
    """Where nothing is, or what is there knows no more, the filter holds; else the insert finds the key taken."""
    known = {"_id": kept.key, "firstOffset": {"$gte": kept.first}, "lastOffset": {"$lte": kept.last}}
    return ReplaceOne(known, _stored(kept), upsert=True)


def _stored(kept: Kept) -> dict[str, Any]:
    stored = {"_id": kept.key, **kept.body, "firstOffset": kept.first, "lastOffset": kept.last, "schema": 1}
    if isinstance(kept.expires, datetime):
        stored[EXPIRES] = kept.expires
    return stored


def _unavailable(error: Exception) -> DatabaseUnavailable:
    """Without the library's text, which may quote documents."""
    code = f" {error.code}" if isinstance(error, OperationFailure) else ""
    return DatabaseUnavailable(
        f"MongoDB took not all of the results ({type(error).__name__}{code}): see that it has a primary and that its "
        f"user may write, then run the job again; nothing is counted twice"
    )
