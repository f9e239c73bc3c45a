"""From log entries to the frames that clients get: each entry is encoded once, however many clients listen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from ...entities.cursor import Cursor
from ...entities.message import StoredEntries
from ...entities.position import Partition, Position
from ...use_cases.feed import Batch, Feed
from ...use_cases.reader import Reader
from ...use_cases.round import Round
from ...use_cases.work import Handout
from .. import cursor as cursors
from ..envelope import browser_safe, is_browser_safe
from .frames import FRAME_BYTES, SharedFrame
from .listening import Listening

JOINED_BYTES: Final = 64 * 1024
Part: TypeAlias = tuple[bytes, bytes]  # joined envelopes, and the vector of where a client stands that has got them


class Piece(NamedTuple):
    """Joined envelopes that go into one frame. ``ends``: the position of each; ``last`` marks the batch's last piece."""

    body: bytes
    ends: Sequence[Position]
    last: bool


class ClientDeliveryAdapter:
    """Makes `messages` and `deliveries` frames, with the cursor that resumes right after each of them."""

    def __init__(self, feed: Feed, key: bytes) -> None:
        self._feed = feed
        self._key = key
        self._vectors: dict[tuple[str, frozenset[str]], tuple[int, bytes]] = {}

    def frames(self, batch: Batch, reader: Reader, form: Listening, exact: bool) -> Iterator[bytes]:
        """The frames for one client."""
        scope = form.scope
        for piece in self.pieces(batch, exact):
            at_end = self.cursor(reader, scope) if piece.last else self._midway(batch, reader, piece.ends[-1], scope)
            parts = [form.head, _shown(at_end), b',"messages":[', piece.body]
            if form.each:
                inner = [_shown(self._midway(batch, reader, end, scope)) for end in piece.ends[:-1]]
                parts += (b'],"cursors":[', b",".join((*inner, _shown(at_end))))
            parts.append(b"]}")
            yield b"".join(parts)

    def _midway(self, batch: Batch, reader: Reader, end: Position, scope: str) -> str | None:
        """The cursor after a message that is not its batch's last one."""
        positions = reader.held if batch.values else reader.positions()
        if positions is None:
            return None
        return self._sign(positions if batch.values else {**positions, batch.partition: end}, scope)

    def shared(self, whole: Round, reader: Reader, form: Listening, exact: bool) -> list[SharedFrame]:
        """The frames of a round for a reader that stands behind it everywhere.

        Whoever has the same principal, the same filters and the same name for the subscription gets the same ones.
        """
        key = (exact, form.head, form.scope)
        frames: list[SharedFrame] | None = whole.encoded.get(key)
        if frames is None:
            frames = whole.encoded[key] = []
            for body, vector in self._parts(whole, reader, exact):
                cursor = cursors.sign(vector, form.scope, self._key)
                frames.append(SharedFrame(b"".join((form.head, _shown(cursor), b',"messages":[', body, b"]}"))))
        return frames

    def _parts(self, whole: Round, reader: Reader, exact: bool) -> list[Part]:
        """The messages of a round, in frames of at most 64 KiB; made once, however many get them."""
        parts: list[Part] | None = whole.encoded.get(exact)
        if parts is not None:
            return parts
        parts = whole.encoded[exact] = []
        bodies: list[bytes] = []
        size = 0
        if whole.size <= JOINED_BYTES:
            for batch in whole.batches:
                bodies += [entry.record.body for entry in batch.entries if entry.record.body]
            if bodies:
                body = b",".join(bodies)
                if not exact and not is_browser_safe(body):
                    body = b",".join(map(browser_safe, bodies))
                parts.append((body, self._live_vector(reader)))
            return parts
        standing = {**(reader.positions() or {}), **whole.before}
        for batch in whole.batches:
            for entry in batch.entries:
                body = entry.record.body
                if not body:
                    continue
                if size and size + len(body) > JOINED_BYTES:
                    parts.append((b",".join(bodies), cursors.vector(standing)))
                    bodies, size = [], 0
                bodies.append(body if exact else browser_safe(body))
                size += len(body)
                standing[batch.partition] = entry.position
            standing[batch.partition] = batch.end
        if bodies:
            parts.append((b",".join(bodies), self._live_vector(reader)))
        return parts

    def pieces(self, batch: Batch, exact: bool) -> list[Piece]:
        """A batch as clients get it; made once, however many they are."""
        pieces: list[Piece] | None = batch.encoded.get(exact)
        if pieces is not None:
            return pieces
        if isinstance(batch.entries, StoredEntries) and (piece := _passed_on(batch.entries, exact)) is not None:
            batch.encoded[exact] = [piece]
            return [piece]
        pieces = []
        bodies: list[bytes] = []
        ends: list[Position] = []
        size = 0
        for entry in batch.entries:
            body = entry.record.body
            if not body:
                continue
            if size and size + len(body) > FRAME_BYTES:
                pieces.append(Piece(b",".join(bodies), tuple(ends), False))
                bodies, ends, size = [], [], 0
            bodies.append(body if exact else browser_safe(body))
            ends.append(entry.position)
            size += len(body)
        if bodies:
            pieces.append(Piece(b",".join(bodies), tuple(ends), True))
        batch.encoded[exact] = pieces
        return pieces

    def cursor(self, reader: Reader, scope: str) -> str | None:
        """The cursor of a reader as it stands; None while its first last values are still under way."""
        if reader.is_live:
            return cursors.sign(self._live_vector(reader), scope, self._key)
        positions = reader.positions()
        return None if positions is None else self._sign(positions, scope)

    def read_cursor(self, text: str, scope: str) -> Cursor:
        """Read a cursor back. Raises CursorInvalid when it was altered or made for something else."""
        return cursors.decode(text, scope, self._key)

    def write_cursor(self, positions: Mapping[Partition, Position], scope: str) -> str:
        """The cursor of a vector of positions."""
        return self._sign(positions, scope)

    def _sign(self, positions: Mapping[Partition, Position], scope: str) -> str:
        return cursors.sign(cursors.vector(positions), scope, self._key)

    def _live_vector(self, reader: Reader) -> bytes:
        key = (reader.subscription.domain, reader.subscription.channels)
        known = self._vectors.get(key)
        if known is None or known[0] != self._feed.version:
            positions = reader.positions()
            assert positions is not None  # a live reader has nothing pending
            known = self._vectors[key] = (self._feed.version, cursors.vector(positions))
        return known[1]

    def handouts(self, subscription: str, handouts: list[Handout], exact: bool) -> Iterator[bytes]:
        """The `deliveries` frames of a work queue."""
        head = b'{"type":"deliveries","subscription":"%s","deliveries":[' % subscription.encode()
        items: list[bytes] = []
        size = 0
        for item in handouts:
            body = item.entry.record.body
            shown = body if exact else browser_safe(body)
            if size and size + len(shown) > FRAME_BYTES:
                yield b"".join((head, b",".join(items), b"]}"))
                items, size = [], 0
            items.append(b'{"delivery":"%b","attempt":%d,"message":%b}' % (item.token.encode(), item.attempt, shown))
            size += len(shown)
        if items:
            yield b"".join((head, b",".join(items), b"]}"))


def _shown(cursor: str | None) -> bytes:
    return b"null" if cursor is None else b'"%b"' % cursor.encode()


def _passed_on(entries: StoredEntries, exact: bool) -> Piece | None:
    """All of them as one piece, without taking them apart; None where they are too large or some are empty."""
    bodies = entries.bodies()
    if not all(bodies) or sum(map(len, bodies)) > FRAME_BYTES:
        return None
    body = b",".join(bodies)
    if not exact and not is_browser_safe(body):
        body = b",".join(map(browser_safe, bodies))
    return Piece(body, entries.positions(), True)
