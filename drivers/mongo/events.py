"""Events of MongoDB's change streams as changes of the port."""

from __future__ import annotations

import logging
from collections.abc import Collection as Names
from collections.abc import Mapping
from typing import Final

from bson import Timestamp

from ...use_cases.ports.database import Change
from .documents import body_of, revision_of
from .link import Document

logger = logging.getLogger(__name__)

_KINDS: Final = {"insert": "insert", "update": "update", "replace": "update", "delete": "delete"}
_IMAGES: Final = {"fullDocument": "whenAvailable", "fullDocumentBeforeChange": "whenAvailable"}
# Enough to say what happened to which document, however large it is.
_LEAN: Final = {"operationType": 1, "ns": 1, "to": 1, "documentKey": 1, "clusterTime": 1, "wallTime": 1}


def pipeline(start: Timestamp, names: Names[str], since: Mapping[str, Timestamp], lean: bool) -> list[Document]:
    """The stages that tell what happens to these collections, and to nothing else, from the time ``start`` on.

    ``since``: collections whose changes up to a time are to be left out. ``lean``: without documents.
    """
    late = {name: time for name, time in since.items() if name in names}
    wanted: list[Document] = [
        {"ns.coll": {"$in": [name for name in names if name not in late]}},
        *({"ns.coll": name, "clusterTime": {"$gt": time}} for name, time in late.items()),
        {"operationType": {"$in": ["drop", "rename"]}, "ns.coll": {"$in": list(names)}},
        {"operationType": "rename", "to.coll": {"$in": list(names)}},
        {"operationType": "invalidate"},
    ]
    stream = {"startAtOperationTime": start, **({} if lean else _IMAGES)}
    stages: list[Document] = [{"$changeStream": stream}, {"$match": {"$or": wanted}}]
    return [*stages, {"$project": _LEAN}] if lean else stages


def changes_of(event: Document, token: str, names: Names[str], lean: bool) -> list[Change]:
    """What an event tells. ``lean``: its documents were left out."""
    at = time_of(event)
    operation = event["operationType"]
    kind = _KINDS.get(operation)
    if kind is None:
        touched = [event.get("ns", {}).get("coll"), event.get("to", {}).get("coll")]
        return [Change(token, at, "dropped", name) for name in touched if name in names]
    collection, key = event["ns"]["coll"], event["documentKey"]["_id"]
    if type(key) is not str:
        logger.warning("%s holds a document whose _id is no text; it is not told, for it is none of ours", collection)
        return []
    before, after = event.get("fullDocumentBeforeChange"), event.get("fullDocument")
    whole = not lean and (before is not None or kind == "insert") and (after is not None or kind == "delete")
    revision = 0 if after is None else revision_of(after)
    lost: set[str] = set()
    was, now = None if before is None else body_of(before), None if after is None else body_of(after, lost)
    return [Change(token, at, kind, collection, key, revision, was, now, whole, ", ".join(sorted(lost)))]


def time_of(event: Document) -> int:
    """When it happened, ms since 1970 by the server's clock."""
    wall = event.get("wallTime")
    return int(wall) if wall is not None else int(event["clusterTime"].time) * 1000
