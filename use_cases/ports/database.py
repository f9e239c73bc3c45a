"""Shared state as documents that people can read: shadows, commands, notifications; and the feed of their changes.

Unlike ``Documents``, which keeps the gateway's own bytes, a ``Database`` holds JSON objects that others may read and
write with the tools of their store. Every change, whoever made it, comes out of ``changes``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

MAX_DOCUMENT_BYTES: Final = 1_000_000
MAX_KEY_BYTES: Final = 512
MAX_DEPTH: Final = 64

Body = Mapping[str, Any]


class Index(NamedTuple):
    """A declared way to find documents: equal in the first fields, in the order of the last one, then of the key.

    ``fields``: dotted paths to scalars, of one type per field. A document that lacks one of them, or has null there, is
    not in the index.
    """

    name: str
    fields: tuple[str, ...]


class Collection(NamedTuple):
    """``name``: ``[a-z][a-z0-9_]{0,39}``. ``watched``: its changes are told, with the state before them. ``expires``: the
    field with the ms since 1970 after which a document may be removed, within a minute or so; the removal is told like
    any other."""

    name: str
    indexes: tuple[Index, ...] = ()
    watched: bool = False
    expires: str | None = None


class Stored(NamedTuple):
    """A document. ``key``: ``{domain}/{name}``. ``revision`` grows by one with each write through this port.

    It begins with 1, also when a removed document is made anew: what must outlive a removal belongs into the body.
    """

    key: str
    revision: int
    body: Body


class Write(NamedTuple):
    """``before``: exactly what is to be replaced (None: nothing must be there). ``body``: None removes the document.

    A write of an equal body is a write: the revision grows, and it is told. Removing nothing is done, and tells nothing.
    """

    key: str
    before: Stored | None
    body: Body | None


class Outcome(NamedTuple):
    """What a write did: whether it was carried out, and what stands there now (None: nothing)."""

    done: bool
    stands: Stored | None


class Change(NamedTuple):
    """One change of one document, or the word that there was none.

    ``token``: reading on after it repeats nothing and leaves nothing out. ``kind``: ``insert``, ``update``, ``delete``,
    ``dropped`` (the whole collection; ``key`` is empty) or ``quiet`` (only the token has moved on). ``before`` and
    ``after``: the document around the change; None where there was none, or where the store did not keep it: then
    ``whole`` is False, and the reader looks the document up. ``revision``: of ``after``, 0 where it is not known.
    ``at``: ms since 1970 by the store's clock. ``mended``: what of ``after`` is no JSON and was replaced ("": nothing).
    """

    token: str
    at: int
    kind: str
    collection: str = ""
    key: str = ""
    revision: int = 0
    before: Body | None = None
    after: Body | None = None
    whole: bool = True
    mended: str = ""


class Database(Protocol):
    """Collections of JSON objects with optimistic locks, declared indexes and a feed of changes.

    Keys are non-empty texts of up to 512 bytes without NUL, and sort by code point. Bodies hold what JSON holds (integers
    of 64 bits, finite doubles, whole characters, no key that is empty, begins with ``$`` or contains ``.`` or NUL, at
    most MAX_DEPTH levels) and come back equal, 1.0 as 1.0 and 1 as 1. What others wrote is read whatever it is: what JSON
    has not becomes a text or null, and a key that is no text is none of ours. Field names that begin with ``_`` and the field
    ``revision``, both at the top, are the store's own and are refused with RequestInvalid, as are bodies above
    MAX_DOCUMENT_BYTES (as JSON) and collections that this object was not told of by ``ensure``. Durability: a write that returned survives what the store is set
    up for (MongoDB: majority and journal; embedded: fsync). Errors: Unavailable (retry; a write may or may not have
    happened, and repeating it with the same ``before`` yields a Conflict at worst), Conflict. Several processes may
    share one store; a write is seen by all at once.
    """

    async def ensure(self, collections: Sequence[Collection]) -> None:
        """Make collections and indexes where missing. Idempotent; to be called before anything else.

        An index that is new is filled with what is there; a collection that is watched from now on tells from now on.
        """
        ...

    async def get(self, collection: str, key: str) -> Stored | None:
        """The document, or None."""
        ...

    async def get_many(self, collection: str, keys: Sequence[str]) -> Mapping[str, Stored]:
        """Those of the documents that exist."""
        ...

    async def write(self, collection: str, writes: Sequence[Write]) -> Sequence[Outcome]:
        """Carry out several writes, each whole and by itself, in any order; returns an outcome for each.

        A write whose ``before`` is not exactly what is there changes nothing: it is not done, and the outcome tells what
        is there instead. Raises RequestInvalid, before anything is written, when one of them may not be stored, and when
        two have the same key.
        """
        ...

    async def put(self, collection: str, write: Write) -> Stored | None:
        """Carry out one write; returns what stands there now. Raises Conflict when ``before`` is not what is there."""
        ...

    async def find(
        self, collection: str, index: str, equal: Sequence[Any], *, after: Any = None, limit: int = 1_000
    ) -> Sequence[Stored]:
        """Documents whose first index fields equal these values, in ascending order of the next field, if there is one.

        ``after``: only those whose next field is greater than this value; or the last document of a page (a ``Stored``):
        only those that come behind it, so that many with an equal value can be paged through. ``equal`` may name all
        fields; the order is that of the keys then. 1 and 1.0 are equal, 1 and true are not. Raises RequestInvalid for an
        unknown index, and for a value that is no text, boolean or number.
        """
        ...

    async def scan(self, collection: str, prefix: str = "", after: str = "", limit: int = 1_000) -> Sequence[Stored]:
        """Documents with key > ``after`` that begin with ``prefix``, in key order."""
        ...

    async def now(self) -> str:
        """A token for ``changes``: everything that happens from here on."""
        ...

    def changes(self, after: str, collections: Sequence[str] = ()) -> AsyncGenerator[Change, None]:
        """Changes of the watched collections (or of just these) after a token, for ever.

        Per document in the order in which they happened, each once. While nothing happens, ``quiet`` comes every few
        seconds. Raises ChangesLost when the store no longer knows what followed the token (which includes a token that
        another store gave), and Unavailable; after the latter, go on with the last token. Raises RequestInvalid for a
        collection that is not watched. Close it with ``aclose``.
        """
        ...

    async def ready(self) -> None:
        """Raise Unavailable when a write would fail now."""
        ...
