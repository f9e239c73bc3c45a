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
from . import chunks
from .chunks import Shelf
from .followers import Followers
from .seen import SeenIds

RECENT_IDS: Final = 8_192
_OFFSET_BITS: Final = 48


class Draft:
    """What one transaction adds to one partition."""

    __slots__ = ("epoch", "fresh", "hashes", "last", "records", "shelf", "stored", "total")

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
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
        # The last few ids by themselves, minted ones too, so that any append can be repeated by its caller.
        self._recent: dict[tuple[int, str], int] = {}
        self._older: dict[tuple[int, str], int] = {}

    def write(self, connection: sqlite3.Connection, batches: Sequence[Sequence[Record]]) -> WrittenGroup:
        """Write all batches; each outcome is what ``append`` returns or raises."""
        now = max(self._clock.now(), self._touched_at)
        drafts: dict[Partition, Draft] = {}
        outcomes = [self._batch(connection, records, drafts, now) for records in batches]
        for draft in drafts.values():
            if draft.stored:
                draft.total = chunks.insert(connection, draft.shelf, now, draft.stored, draft.hashes)
        return WrittenGroup(self, outcomes, [draft for draft in drafts.values() if draft.stored], now)

    def _batch(
        self, connection: sqlite3.Connection, records: Sequence[Record], drafts: dict[Partition, Draft], now: int
    ) -> Appended | IotSphereError:
        try:
            packed = [pack(record, now) for record in records]
        except (struct.error, UnicodeEncodeError) as error:
            return RequestInvalid(f"a record cannot be stored ({error}): check its topic, message id and times")
        positions: list[Position] = []
        duplicates: list[int] = []
        recent, older = self._recent, self._older
        for index, record in enumerate(records):
            partition, _, message_id, _, _, _, _, minted = record
            draft = drafts.get(partition)
            if draft is None:
                draft = drafts[partition] = Draft(self._shelves[partition])
            key = (draft.shelf.number, message_id)
            known = draft.fresh.get(message_id) or recent.get(key) or older.get(key)
            value = 0
            if known is None and not minted:
                value = self._hash(key)
                known = self._look_up(connection, draft.shelf, message_id, value)
            if known:
                duplicates.append(index)
                positions.append(draft.shelf.lineage.position(known))
                continue
            draft.last = offset = draft.last + 1
            draft.fresh[message_id] = offset
            draft.records.append(record)
            draft.stored.append(packed[index])
            draft.hashes.append(value)
            positions.append(Position(draft.epoch, offset))
        return Appended(positions, frozenset(duplicates))

    def _hash(self, key: tuple[int, str]) -> int:
        digest = blake2b(key[1].encode(), digest_size=8, key=self._secret, person=b"%d" % key[0]).digest()
        return int.from_bytes(digest, "little") or 1

    def _look_up(self, connection: sqlite3.Connection, shelf: Shelf, message_id: str, value: int) -> int:
        """The offset of an id's first appearance, else 0."""
        place = self.seen.find(value)
        if place >> _OFFSET_BITS != shelf.number:
            return 0
        offset = place & ((1 << _OFFSET_BITS) - 1)
        entry = chunks.entry_at(connection, shelf, offset)
        # A trimmed entry cannot be compared; that its hash of 64 keyed bits is there by chance is not to be feared.
        return offset if entry is None or entry.record.message_id == message_id else 0

    def remember(self, draft: Draft, now: int) -> None:
        """Take note that a draft is committed."""
        shelf = draft.shelf
        offset = shelf.last
        if len(self._recent) >= RECENT_IDS:
            self._recent, self._older = {}, self._recent
        number = shelf.number
        self._recent.update(((number, message_id), place) for message_id, place in draft.fresh.items())
        for value in draft.hashes:
            offset += 1
            if value:
                self.seen.add(value, number << _OFFSET_BITS | offset, now)
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
            for value, offset, appended_at in chunks.hashes_since(connection, shelf, since):
                self.seen.add(value, number | offset, appended_at)


class WrittenGroup:
    """One transaction's appends, before and after it is committed."""

    __slots__ = ("_appender", "_drafts", "_now", "_starts", "outcomes")

    def __init__(
        self, appender: GroupAppender, outcomes: Sequence[Appended | IotSphereError], drafts: Sequence[Draft], now: int
    ) -> None:
        self.outcomes = outcomes
        self._appender = appender
        self._drafts = drafts
        self._now = now
        self._starts = [draft.shelf.last for draft in drafts]

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
