"""A database in this process's memory: for tests, and for trying things out; nothing outlives the process."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ...adapters.database.body import at_path, decode, equal_scalars, same
from ...adapters.database.requests import Declared, changes_lost, place_of, stands_or_conflict, texts_of, token_of
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.database import Change, Collection, Outcome, Stored, Write

KEPT_BYTES: Final = 64 << 20
QUIET_S: Final = 5.0
SWEEP_S: Final = 1.0
Row = tuple[int, bytes]


class Told(NamedTuple):
    """A change as the journal keeps it. ``facts``: at, kind, collection, key, revision; the documents are JSON."""

    facts: tuple[int, str, str, str, int]
    before: bytes | None
    after: bytes | None

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return 200 + len(self.before or b"") + len(self.after or b"")


class MemoryDatabase:
    """A ``Database`` of dicts that hold JSON texts, so that nobody's later changes to a body reach what is stored.

    ``kept``: how many bytes of changes are remembered. ``quiet``: seconds between two words that nothing happened.
    """

    def __init__(self, clock: Clock, kept: int = KEPT_BYTES, quiet: float = QUIET_S) -> None:
        self._clock = clock
        self._kept = kept
        self._quiet = quiet
        self._epoch = secrets.token_hex(4)
        self._declared = Declared()
        self._rows: dict[str, dict[str, Row]] = {}
        self._journal: dict[int, Told] = {}
        self._size = 0
        self._forgotten = 0  # places before this one are gone
        self._end = 0
        self._swept_at = 0.0
        self._moved = asyncio.Event()

    async def ensure(self, collections: Sequence[Collection]) -> None:
        """Make collections known."""
        self._declared.add(collections)
        for collection in collections:
            self._rows.setdefault(collection.name, {})

    async def get(self, collection: str, key: str) -> Stored | None:
        """The document, or None."""
        return _stored(key, self._table(collection).get(key))

    async def get_many(self, collection: str, keys: Sequence[str]) -> Mapping[str, Stored]:
        """Those of the documents that exist."""
        rows = self._table(collection)
        return {key: Stored(key, rows[key][0], decode(rows[key][1])) for key in keys if key in rows}

    async def write(self, collection: str, writes: Sequence[Write]) -> Sequence[Outcome]:
        """Carry out several writes."""
        self._table(collection)
        self._sweep()
        outcomes = [
            self._write(collection, write.key, write.before, text)
            for write, text in zip(writes, texts_of(writes), strict=True)
        ]
        await asyncio.sleep(0)  # as with every store, others get their turn
        return outcomes

    async def put(self, collection: str, write: Write) -> Stored | None:
        """Carry out one write. Raises Conflict."""
        (outcome,) = await self.write(collection, (write,))
        return stands_or_conflict(collection, write.key, outcome)

    def _write(self, collection: str, key: str, before: Stored | None, text: bytes | None) -> Outcome:
        rows = self._rows[collection]
        row = rows.get(key)
        there = _stored(key, row)
        if before is None or there is None or row is None:
            if before is not None or there is not None:
                return Outcome(False, there)
            if text is None:
                return Outcome(True, None)
            rows[key] = (1, text)
            self._tell("insert", collection, key, None, rows[key])
            return Outcome(True, _stored(key, rows[key]))
        if before.revision != there.revision or not same(before.body, there.body):
            return Outcome(False, there)
        if text is None:
            self._remove(collection, key)
            return Outcome(True, None)
        rows[key] = (row[0] + 1, text)
        self._tell("update", collection, key, row, rows[key])
        return Outcome(True, _stored(key, rows[key]))

    def _remove(self, collection: str, key: str) -> None:
        self._tell("delete", collection, key, self._rows[collection].pop(key), None)

    def _tell(self, kind: str, collection: str, key: str, before: Row | None, after: Row | None) -> None:
        if not self._declared.collections[collection].watched:
            return
        facts = self._clock.now(), kind, collection, key, after[0] if after is not None else 0
        self._journal[self._end] = told = Told(facts, before and before[1], after and after[1])
        self._end += 1
        self._size += told.size
        self.forget(self._kept)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def forget(self, kept: int = 0) -> None:
        """Forget the oldest changes, down to ``kept`` bytes."""
        while self._size > kept:
            self._size -= self._journal.pop(self._forgotten).size
            self._forgotten += 1

    async def find(
        self, collection: str, index: str, equal: Sequence[Any], *, after: Any = None, limit: int = 1_000
    ) -> Sequence[Stored]:
        """Documents by an index."""
        fields = self._declared.index(collection, index, equal, after).fields
        following = fields[len(equal)] if len(fields) > len(equal) else None

        def place(document: Stored) -> tuple[Any, str]:
            return at_path(document.body, following) if following is not None else 0, document.key

        found = []
        for key, (revision, text) in self._rows[collection].items():
            document = Stored(key, revision, decode(text))
            values = [at_path(document.body, field) for field in fields]
            if None in values or not all(map(equal_scalars, values, equal)):
                continue
            if type(after) is Stored:
                if place(document) <= place(after):
                    continue
            elif after is not None and following is not None and not place(document)[0] > after:
                continue
            found.append(document)
        return sorted(found, key=place)[:limit]

    async def scan(self, collection: str, prefix: str = "", after: str = "", limit: int = 1_000) -> Sequence[Stored]:
        """Documents in key order."""
        rows = self._table(collection)
        keys = sorted(key for key in rows if key > after and key.startswith(prefix))[:limit]
        return [Stored(key, rows[key][0], decode(rows[key][1])) for key in keys]

    async def now(self) -> str:
        """A token for what happens from here on."""
        return token_of(self._epoch, self._end)

    async def changes(self, after: str, collections: Sequence[str] = ()) -> AsyncGenerator[Change, None]:
        """Changes of the watched collections after a token, for ever."""
        wanted = frozenset(self._declared.watched(collections)) if collections else None
        place = place_of(after, self._epoch, self._forgotten, self._end)
        while True:
            self._sweep()
            moved = self._moved
            while place < self._end:
                if place < self._forgotten:
                    raise changes_lost(token_of(self._epoch, place))
                told = self._journal[place]
                place += 1
                if wanted is None or told.facts[2] in wanted:
                    yield Change(token_of(self._epoch, place), *told.facts, _body(told.before), _body(told.after))
            if not await self._wait(moved):
                yield Change(token_of(self._epoch, place), self._clock.now(), "quiet")

    async def _wait(self, moved: asyncio.Event) -> bool:
        """Wait until something happens; False when nothing has for a while."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._quiet
        while (left := end - loop.time()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, SWEEP_S)):
                    await moved.wait()
            self._sweep()
            if moved.is_set():
                return True
        return False

    def _sweep(self) -> None:
        """Remove what has expired; looked for while somebody follows, and at most once a second."""
        time = asyncio.get_running_loop().time()
        if time - self._swept_at < SWEEP_S:
            return
        self._swept_at = time
        now = self._clock.now()
        for collection in self._declared.collections.values():
            if collection.expires is None:
                continue
            for key, (_, text) in list(self._rows[collection.name].items()):
                due = at_path(decode(text), collection.expires)
                if type(due) is int and due < now:
                    self._remove(collection.name, key)

    def _table(self, collection: str) -> dict[str, Row]:
        return self._rows[self._declared.collection(collection).name]

    async def ready(self) -> None:
        """Memory is always ready."""


def _stored(key: str, row: Row | None) -> Stored | None:
    return None if row is None else Stored(key, row[0], decode(row[1]))


def _body(text: bytes | None) -> dict[str, Any] | None:
    return None if text is None else decode(text)
