"""What a database was told of by ``ensure``, and the checks of each request that every store makes alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from ...entities.errors import ChangesLost, Conflict, RequestInvalid
from ...use_cases.ports.database import Collection, Index, Outcome, Stored, Write
from .body import at_path, check_key, check_scalar, encode

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}(?:\.[A-Za-z][A-Za-z0-9_]{0,39})*\Z")


class Declared:
    """The collections that a driver object knows, by name."""

    def __init__(self) -> None:
        self.collections: dict[str, Collection] = {}

    def add(self, collections: Sequence[Collection]) -> None:
        """Take up collections. Raises RequestInvalid for names that not every store takes."""
        for collection in collections:
            names = [collection.name, *(index.name for index in collection.indexes)]
            paths = [path for index in collection.indexes for path in index.fields]
            if collection.expires is not None:
                paths.append(collection.expires)
            if not all(map(_NAME.match, names)) or not all(map(_PATH.match, paths)):
                raise RequestInvalid(f"the collection {collection.name!a} has a name or a field that no store takes")
        self.collections.update((collection.name, collection) for collection in collections)

    def collection(self, name: str) -> Collection:
        """Raises RequestInvalid."""
        try:
            return self.collections[name]
        except KeyError as error:
            raise RequestInvalid(f"there is no collection {name!a}: declare it with ensure()") from error

    def index(self, collection: str, name: str, equal: Sequence[Any], after: Any) -> Index:
        """The index that a search names, after a look at its values. Raises RequestInvalid."""
        for index in self.collection(collection).indexes:
            if index.name == name:
                break
        else:
            raise RequestInvalid(f"the collection {collection!a} has no index {name!a}: declare it with ensure()")
        for value in equal:
            check_scalar(value)
        if len(equal) > len(index.fields):
            raise RequestInvalid(f"the index {name!a} has {len(index.fields)} fields, not {len(equal)}")
        if type(after) is Stored:
            if len(equal) < len(index.fields):
                check_scalar(at_path(after.body, index.fields[len(equal)]))
        elif after is not None:
            check_scalar(after)
            if len(equal) == len(index.fields):
                raise RequestInvalid(f"no field of the index {name!a} is left to begin after: give a document instead")
        return index

    def watched(self, names: Sequence[str]) -> Sequence[str]:
        """The collections whose changes are asked for; all that are watched when none is named."""
        for name in names:
            if not self.collection(name).watched:
                raise RequestInvalid(f"the collection {name!a} is not watched: declare it so")
        return names or [name for name, collection in self.collections.items() if collection.watched]


def texts_of(writes: Sequence[Write]) -> Sequence[bytes | None]:
    """The bodies of several writes as JSON. Raises RequestInvalid when one of them may not be stored."""
    seen: set[str] = set()
    texts = []
    for key, _, body in writes:
        check_key(key)
        if key in seen:
            raise RequestInvalid(f"the key {key[:80]!a} is written twice in one call: make two calls")
        seen.add(key)
        texts.append(None if body is None else encode(body))
    return texts


def stands_or_conflict(collection: str, key: str, outcome: Outcome) -> Stored | None:
    """What ``put`` returns or raises for an outcome. Raises Conflict."""
    done, stands = outcome
    if done:
        return stands
    found = "is not there" if stands is None else f"is at revision {stands.revision}"
    raise Conflict(
        f"{collection}/{key} {found}, for somebody else changed it: read it again and retry",
        revision=0 if stands is None else stands.revision,
    )


def changes_lost(token: str) -> ChangesLost:
    """The error for a token whose future is not known any more."""
    return ChangesLost(
        f"what changed after {token[:80]!a} is not known any more: read the documents anew, then go on from now()",
        token=token,
    )


def token_of(epoch: str, place: int) -> str:
    """The token of stores that number their changes: ``epoch`` names the numbering, ``place`` the last change seen."""
    return f"{epoch}.{place}"


def place_of(token: str, epoch: str, first: int, last: int) -> int:
    """The place that a token names. Raises ChangesLost where it lies in another epoch, or not in ``first`` … ``last``."""
    named, _, number = token.partition(".")
    if named != epoch or not (number.isascii() and number.isdigit() and len(number) < 20):
        raise changes_lost(token)
    if not first <= int(number) <= last:
        raise changes_lost(token)
    return int(number)
