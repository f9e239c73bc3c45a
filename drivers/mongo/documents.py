"""Documents of the port as documents of MongoDB, and back.

``{_id: key, revision, …body…}``: a person reads and edits it with the MongoDB shell. Fields that begin with ``_`` are the
store's: ``_expires`` is the time after which MongoDB removes the document.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from bson import DatetimeMS, Timestamp

from ...adapters.database.body import at_path
from ...use_cases.ports.database import Body, Stored
from .link import Document

REVISION: Final = "revision"
EXPIRES: Final = "_expires"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def document_of(key: str, revision: int, body: Body, expires: str | None) -> Document:
    """The document as it is kept. ``expires``: the path of the time (ms) after which it may go."""
    document = {"_id": key, REVISION: revision, **body}
    due = at_path(body, expires) if expires is not None else None
    if type(due) is int:
        document[EXPIRES] = DatetimeMS(due)
    return document


def stored_of(document: Document) -> Stored:
    """The document of the port."""
    return Stored(document["_id"], revision_of(document), body_of(document))


def revision_of(document: Document) -> int:
    """Its revision; 0 for one that a person made without."""
    revision = document.get(REVISION)
    return int(revision) if isinstance(revision, int) and type(revision) is not bool else 0


def body_of(document: Document, lost: set[str] | None = None) -> dict[str, Any]:
    """Its body: JSON, whatever is kept. ``lost`` takes up what became null for that."""
    lost = set() if lost is None else lost
    return {name: plain(value, lost) for name, value in document.items() if name != REVISION and name[:1] != "_"}


def plain(value: Any, lost: set[str]) -> Any:
    """A value as JSON. What JSON does not have (dates, object ids, decimals) becomes a text, NaN becomes null."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is float:
        if math.isfinite(value):
            return value
        lost.add("a number that is not finite")
        return None
    if kind is dict:
        return {name: plain(item, lost) for name, item in value.items()}
    if kind is list:
        return [plain(item, lost) for item in value]
    if isinstance(value, int):  # Int64 is a class of its own
        return int(value)
    return _TEXTS.get(kind.__name__, str)(value)


def _time(value: Any) -> str | None:
    try:
        moment = _EPOCH + timedelta(milliseconds=int(value))
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(value: Timestamp) -> str | None:
    return _time(value.time * 1000)


def _bytes(value: bytes) -> str:
    return b64encode(value).decode()


def _nothing(_: object) -> None:
    return None


_TEXTS: Final[dict[str, Callable[[Any], str | None]]] = {
    "DatetimeMS": _time,
    "Timestamp": _seconds,
    "Binary": _bytes,
    "bytes": _bytes,
    "Regex": lambda value: str(value.pattern),
    "MinKey": _nothing,
    "MaxKey": _nothing,
}
