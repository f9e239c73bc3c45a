"""What one group commit appends: duplicates found, offsets given, records packed, chunks written.

This is the hot path, and it runs in the writer thread: nothing is done per record that can be done per batch.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final

from ...adapters.record import pack
from ...entities.errors import IotSphereError, RequestInvalid
from ...entities.message import Entry, Record
from ...entities.position import Partition, Position
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.message_log import Appended, Slice
from . import chunks, trimming
from .chunks import Shelf
from .followers import Followers
from .seen import SeenIds

RECENT_IDS: Final = 8_192
_OFFSET_BITS: Final = 48


class Draft:
    """What one transaction adds to one partition."""

    __slots__ = ("epoch", "fresh", "hashes", "last", "older", "prefix", "recent", "records", "shelf", "stored", "total")

    def __init__(self, shelf: Shelf, recent: dict[str, int], older: dict[str, int], secret: bytes) -> None:
        self.shelf = shelf
        self.recent = recent
        self.older = older
        self.prefix = secret + shelf.number.to_bytes(8, "little")
        self.epoch = shelf.lineage.epoch
        self.last = shelf.last
        self.total = shelf.total
        self.fresh: dict[str, int] = {}
        self.records: list[Record] = []
        self.stored: list[bytes] = []
        self.hashes: list[int] = []


class GroupAppender:
    """Appends to the shelves of one log, and tells its followers."""

    def __init__(self, shelves: Mapping[Partition, Shelf], clock: Clock, followers: Followers) -> None:
        self.followers = followers
        self.seen = SeenIds()
        self._secret = b""
        self._touched_at = 0
        self._shelves = shelves
        self._clock = clock
        # The last few ids of each shelf by themselves, minted ones too, so that any caller can repeat its append.
        self._recent: dict[int, tuple[dict[str, int], dict[str, int]]] = {}

    def write(self, connection: sqlite3.Connection, batches: Sequence[Sequence[Record]]) -> WrittenGroup:
        """Write all batches; each outcome is what ``append`` returns or raises."""
        now = max(self._clock.now(), self._touched_at)
        drafts: dict[Partition, Draft] = {}
        outcomes = [self._batch(connection, records, drafts, now) for records in batches]
        written = [draft for draft in drafts.values() if draft.stored]
        for draft in written:
            draft.total = chunks.insert(connection, draft.shelf, now, draft.stored, draft.hashes)
        return WrittenGroup(self, outcomes, written, now)

    def _draft(self, partition: Partition) -> Draft:
        shelf = self._shelves[partition]
        return Draft(shelf, *self._recent.setdefault(shelf.number, ({}, {})), self._secret)

    def _batch(
        self, connection: sqlite3.Connection, records: Sequence[Record], drafts: dict[Partition, Draft], now: int
    ) -> Appended | IotSphereError:
        try:
            packed = [pack(record, now) for record in records]
        except (struct.error, UnicodeEncodeError) as error:
            return RequestInvalid(f"a record cannot be stored ({error}): check its topic, message id and times")
        positions: list[Position] = []
        duplicates: list[int] = []
        for record, stored in zip(records, packed, strict=True):
            partition, _, message_id, _, _, _, _, minted, _ = record
            draft = drafts.get(partition)
            if draft is None:
                draft = drafts[partition] = self._draft(partition)
            known = draft.fresh.get(message_id) or draft.recent.get(message_id) or draft.older.get(message_id)
            value = 0
            if known is None and not minted:
                digest = blake2b(draft.prefix + message_id.encode(), digest_size=8).digest()
                value = int.from_bytes(digest, "little") or 1
                place = self.seen.find(value)
                if place:
                    known = self._compare(connection, draft.shelf, place, message_id)
            if known:
                duplicates.append(len(positions))
                positions.append(draft.shelf.lineage.position(known))
                continue
            draft.last = offset = draft.last + 1
            draft.fresh[message_id] = offset
            draft.records.append(record)
            draft.stored.append(stored)
            draft.hashes.append(value)
            positions.append(Position(draft.epoch, offset))
        return Appended(positions, frozenset(duplicates))

    def _compare(self, connection: sqlite3.Connection, shelf: Shelf, place: int, message_id: str) -> int:
        """The offset of an id's first appearance when it is the one at ``place``, else 0."""
        number, offset = divmod(place, 1 << _OFFSET_BITS)
        if number != shelf.number:
            return 0
        entry = chunks.entry_at(connection, shelf, offset)
        # A trimmed entry cannot be compared; that its secret hash of 64 bits is there by chance is not to be feared.
        return offset if entry is None or entry.record.message_id == message_id else 0

    def remember(self, draft: Draft, now: int) -> None:
        """Take note that a draft is committed."""
        shelf = draft.shelf
        if len(draft.recent) + len(draft.fresh) > RECENT_IDS:
            self._recent[shelf.number] = draft.fresh, draft.recent
        else:
            draft.recent.update(draft.fresh)
        place = shelf.number << _OFFSET_BITS | shelf.last
        for value in draft.hashes:
            place += 1
            if value:
                self.seen.add(value, place, now)
        shelf.total = draft.total
        shelf.last = draft.last
        self._touched_at = now

    def restore(self, connection: sqlite3.Connection, secret: bytes, since: int) -> None:
        """Take up what is stored: the key of the hashes, and those of what was appended at or after ``since`` (ms)."""
        self._secret = secret
        self.seen = SeenIds()
        for shelf in self._shelves.values():
            self._touched_at = max(self._touched_at, shelf.touched_at)
            number = shelf.number << _OFFSET_BITS
            for value, offset, appended_at in trimming.hashes_since(connection, shelf, since):
                self.seen.add(value, number | offset, appended_at)


class WrittenGroup:
    """One transaction's appends, before and after it is committed."""

    __slots__ = ("_appender", "_drafts", "_now", "_starts", "outcomes", "size")

    def __init__(
        self, appender: GroupAppender, outcomes: Sequence[Appended | IotSphereError], drafts: Sequence[Draft], now: int
    ) -> None:
        self.outcomes = outcomes
        self._appender = appender
        self._drafts = drafts
        self._now = now
        self._starts = [draft.shelf.last for draft in drafts]
        self.size = sum(draft.total - draft.shelf.total for draft in drafts)

    def settle(self) -> None:
        """The transaction is committed: only now do later appends see it."""
        for draft in self._drafts:
            self._appender.remember(draft, self._now)

    def announce(self) -> None:
        """Hand the new entries to whoever follows; in the event loop."""
        followers = self._appender.followers
        for draft, start in zip(self._drafts, self._starts, strict=True):
            partition = draft.shelf.partition
            if not followers.wanted(partition):
                continue
            epoch, now = draft.epoch, self._now
            entries = [
                Entry(Position(epoch, offset), now, record) for offset, record in enumerate(draft.records, start + 1)
            ]
            followers.offer(Slice(partition, entries, entries[-1].position), sum(map(len, draft.stored)))
