"""A client's messages on their way out of the log: queued in bytes, sent within its window, and counted as they go.

The queue holds references to entries, never copies. When it is full, the reader behind it goes on from the log later;
so a slow client costs one queue, and nothing is dropped. Where the client stands follows from three things: what the
reader has handed over, what waits in the queue, and what is under way and not acknowledged.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from ...adapters.mqtt import packets as p
from ...adapters.mqtt.encode import encode, publish_parts
from ...adapters.mqtt.plan import Plans
from ...adapters.mqtt.properties import NONE, Properties
from ...adapters.mqtt.session import Session
from ...entities.message import Entry, Record
from ...entities.position import Gap, Partition, Position
from ...use_cases.feed import Batch
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.message_log import Tally
from ...use_cases.reader import Reader
from ...use_cases.sessions import Kept, UnderWay, Wanted

ENTRY_OVERHEAD_BYTES: Final = 200
FLUSH_BYTES: Final = 64 * 1024
_RETAINED: Final = "retained"  # the tag of what has no place in the queue

Place: TypeAlias = tuple[Partition, Position]


class MqttOutbox:
    """One connection's way out, and the sink of its reader.

    ``flush`` sends what the session has to say. ``told`` is called with gaps. ``held``: where the client stands while its
    reader is being replaced. Call ``pump`` whenever there may be room.
    """

    def __init__(
        self, session: Session, clock: Clock, limit: int, counts: Counter[str], flush: Callable[[], None]
    ) -> None:
        self.reader: Reader | None = None
        self.held: Mapping[Partition, Position] | None = None
        self.plans = Plans()
        self.told: Callable[[Gap], None] | None = None
        self.full = False
        self.moved = False
        self._session = session
        self._clock = clock
        self._limit = limit
        self._counts = counts
        self._flush = flush
        self._shared = f"mqtt{session.version}"
        self._queue: deque[tuple[Entry, Batch, int]] = deque()
        self._retained: deque[tuple[Entry, Wanted]] = deque()
        self._bytes = 0
        self._stalled: Reader | None = None
        self._own: set[str] = set()
        self._sent: dict[Partition, Position] = {}
        self._again: dict[Place, int] = {}
        self._not_applied: dict[Partition, list[tuple[int, Tally]]] = {}

    # -- what the client wants ----------------------------------------------------------------------------------------

    def send_retained(self, entries: Iterable[Entry], wanted: Wanted) -> None:
        """Send retained values for a filter, before anything that came later."""
        self._retained.extend((entry, wanted) for entry in entries)

    def resume(self, kept: Kept) -> None:
        """Send again what was under way when the client left, under the same packet ids, and not what it had."""
        self._sent = dict(kept.sent)
        self._again = {(each.partition, each.position): each.packet_id for each in kept.under_way}

    def published(self, records: Iterable[Record]) -> None:
        """Remember messages of the client's own, where it does not want to hear itself."""
        if not self.plans.no_local:
            return
        for record in records:
            plan = self.plans.of_topic(record.topic)
            if plan is not None and plan.no_local:
                self._own.add(record.message_id)

    # -- the sink -----------------------------------------------------------------------------------------------------

    def deliver(self, reader: Reader, batch: Batch) -> bool:
        """Take a batch, unless too much waits already."""
        if self._bytes >= self._limit:
            self._stalled = reader
            self._counts["fell_behind"] += 1
            return False
        queue = self._queue
        size = 0
        for index, entry in enumerate(batch.entries):
            queue.append((entry, batch, index))
            size += len(entry.record.body) + ENTRY_OVERHEAD_BYTES
        self._bytes += size
        self.pump()
        return True

    def missed(self, reader: Reader, gap: Gap) -> None:  # noqa: ARG002  (the sink's shape)
        """Count and tell what the client can no longer get."""
        self._counts["missed"] += gap.missing
        self._not_applied.setdefault(gap.partition, []).append((gap.last, Tally(lost=gap.missing)))
        if self.told is not None:
            self.told(gap)

    def lagging(self, reader: Reader, lag: int) -> None:
        """MQTT has no word for it."""

    # -- sending ------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send what may be sent now: within the client's window, and while its socket takes it."""
        sent = 0
        queue = self._queue
        while not self.full:
            if self._retained:
                entry, wanted = self._retained[0]
                size = self._send_retained(entry, wanted)
                if size < 0:
                    break
                self._retained.popleft()
            elif queue:
                entry, batch, index = queue[0]
                size = self._send(entry, batch, index)
                if size < 0:
                    break
                queue.popleft()
                self._bytes -= len(entry.record.body) + ENTRY_OVERHEAD_BYTES
            else:
                break
            sent += size
            if sent >= FLUSH_BYTES:
                self._flush()
                sent = 0
        if sent:
            self._flush()
        if self._stalled is not None and self._bytes < self._limit // 2:
            stalled, self._stalled = self._stalled, None
            stalled.resume()

    def _send(self, entry: Entry, batch: Batch, index: int) -> int:
        """Send one entry; returns its size, 0 when it is passed over, -1 when the window is full."""
        record = entry.record
        place = record.partition, entry.position
        packet_id, flags = 0, 0
        if self._sent:
            sent = self._sent.get(record.partition)
            if sent is not None and entry.position <= sent:
                packet_id = self._again.get(place, 0)
                if not packet_id:
                    return 0  # the client has it already
                flags = p.DUP
        plan = self.plans.of(entry)
        if plan is None or (plan.no_local and record.message_id in self._own):
            self._own.discard(record.message_id)
            self._again.pop(place, None)
            return 0
        if record.expires_at and record.expires_at <= self._clock.now():
            self._counts["expired"] += 1
            self._not_applied.setdefault(record.partition, []).append((entry.position.offset, Tally(expired=1)))
            self._again.pop(place, None)
            return 0
        qos = 1 if packet_id else plan.qos
        if qos and self._session.window.free <= 0:
            return -1
        flags |= qos << 1 | (p.RETAIN if plan.as_published and record.retain else 0)
        if packet_id:
            del self._again[place]
            self._counts["redelivered"] += 1
        parts = self._shared_parts(entry, batch, index, flags, plan.identifiers)
        return self._write(parts, flags, place, packet_id)

    def _send_retained(self, entry: Entry, wanted: Wanted) -> int:
        record = entry.record
        if record.expires_at and record.expires_at <= self._clock.now():
            return 0
        if wanted.qos and self._session.window.free <= 0:
            return -1
        flags = wanted.qos << 1 | p.RETAIN
        identifiers = (wanted.identifier,) if wanted.identifier else ()
        return self._write(self._parts(entry, flags, identifiers), flags, _RETAINED, 0)

    def _write(self, parts: tuple[bytes, bytes], flags: int, tag: Place | str, packet_id: int) -> int:
        session = self._session
        size = len(parts[0]) + len(parts[1]) + 2
        if not session.fits(size):
            self._counts["too_large_for_client"] += 1  # MQTT 5 section 3.1.2.11.4: discarded as if it were delivered
            return 0
        self._counts["delivered"] += 1
        self.moved = True
        if flags & 6:
            session.send(parts, tag, packet_id)
        else:
            session.send_unanswered(parts[0] + parts[1])
        return size

    def _shared_parts(
        self, entry: Entry, batch: Batch, index: int, flags: int, identifiers: tuple[int, ...]
    ) -> tuple[bytes, bytes]:
        if identifiers or entry.record.expires_at:
            return self._parts(entry, flags, identifiers)
        shared: dict[int, tuple[bytes, bytes]] | None = batch.encoded.get(self._shared)
        if shared is None:
            shared = batch.encoded[self._shared] = {}
        place = index << 4 | flags
        parts = shared.get(place)
        if parts is None:
            parts = shared[place] = self._parts(entry, flags, ())
        return parts

    def _parts(self, entry: Entry, flags: int, identifiers: tuple[int, ...]) -> tuple[bytes, bytes]:
        record = entry.record
        properties = NONE
        if self._session.version == p.MQTT_5 and (identifiers or record.expires_at):
            left = None
            if record.expires_at:
                left = max(1, (record.expires_at - self._clock.now()) // 1000)
            properties = Properties(message_expiry_interval=left, subscription_identifiers=identifiers)
        topic = record.topic.encode()
        if flags & 6:
            return publish_parts(topic, record.body, flags, self._session.version, properties)
        return encode(p.Publish(topic, record.body, 0, flags, properties), self._session.version), b""

    # -- where the client stands --------------------------------------------------------------------------------------

    @property
    def bytes_waiting(self) -> int:
        """What waits in the queue."""
        return self._bytes

    def reached(self) -> dict[Partition, Position]:
        """How far everything was sent or passed over, acknowledged or not; tidies up what lies behind that."""
        positions = self.held
        if positions is None and self.reader is not None:
            positions = self.reader.positions()
        reached = dict(positions or {})
        for entry, _, _ in reversed(self._queue):
            reached[entry.record.partition] = before(entry.position)
        if self._sent:
            nowhere = Position(0, 0)
            self._again = {place: i for place, i in self._again.items() if place[1] > reached.get(place[0], nowhere)}
            self._sent = {p: at for p, at in self._sent.items() if reached.get(p, at) < at}
            if not self._sent:
                self._session.window.drop_reserved()
        self.plans.reached(reached)
        return reached

    def kept(self) -> Kept:
        """What has to be known to go on later: nothing that is not acknowledged is left behind."""
        sent = self.reached()
        for partition, position in self._sent.items():
            sent[partition] = max(sent[partition], position)
        under_way = [
            UnderWay(packet_id, *tag)
            for packet_id, tag in self._session.window.under_way()
            if isinstance(tag, tuple) and tag[0] in sent
        ]
        under_way += [UnderWay(packet_id, *place) for place, packet_id in self._again.items() if place[0] in sent]
        low = self.reached()
        for each in under_way:
            low[each.partition] = min(low[each.partition], before(each.position))
        return Kept(tuple(self.plans.wanted.values()), low, sent, tuple(under_way))

    def tallies(self, upto: Mapping[Partition, Position]) -> dict[Partition, Tally]:
        """What was not applied of the messages up to these positions; each is told once."""
        found: dict[Partition, Tally] = {}
        for partition, items in self._not_applied.items():
            limit = upto.get(partition)
            if limit is None:
                continue
            passed = [tally for offset, tally in items if offset <= limit.offset]
            self._not_applied[partition] = [item for item in items if item[0] > limit.offset]
            total = Tally()
            for tally in passed:
                total = total.plus(tally)
            if passed:
                found[partition] = total
        return found


def before(position: Position) -> Position:
    """The place to read after in order to get this position's entry."""
    return Position(position.epoch, position.offset - 1)
