"""What the product remembers beside the log: small documents by collection and key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class Document(NamedTuple):
    """A stored value. ``version`` grows by one with each write of this key, and is never reused after a delete."""

    key: str
    value: bytes
    version: int


class Documents(Protocol):
    """Collections of documents with optimistic locking.

    Durability: as the log of the same driver. Order: keys sort by code point. Errors: LogUnavailable (retry), Conflict
    when ``expected`` does not match. Several processes may share one store; a write is seen by all at once.
    """

    async def get(self, collection: str, key: str) -> Document | None:
        """The document, or None."""
        ...

    async def put(self, collection: str, key: str, value: bytes, expected: int | None = None) -> int:
        """Write one document and return its version. ``expected``: the version it must have now (0 = absent)."""
        ...

    async def put_many(self, collection: str, values: Mapping[str, bytes | None]) -> None:
        """Write (or, where the value is None, delete) several documents of one collection, all or nothing."""
        ...

    async def delete(self, collection: str, key: str) -> bool:
        """Remove one document; tells whether it was there."""
        ...

    async def scan(self, collection: str, prefix: str = "", after: str = "", limit: int = 1_000) -> Sequence[Document]:
        """Documents with key > ``after`` that begin with ``prefix``, in key order."""
        ...
