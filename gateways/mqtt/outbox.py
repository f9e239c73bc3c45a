"""A client's messages on their way out of the log: queued in bytes, sent within its window, and counted as they go.

The queue holds references to entries, never copies. When it is full, the reader behind it goes on from the log later;
so a slow client costs one queue, and nothing is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from ...adapters.mqtt.life import Settled
from ...adapters.mqtt.plan import Plans
from ...adapters.mqtt.session import Session
from ...entities.errors import Unavailable
from ...entities.message import Entry, Record
from ...entities.position import Gap, Partition, Position
from ...entities.principal import Principal
from ...use_cases.feed import Batch
from ...use_cases.ports.message_log import Tally
from ...use_cases.reader import Reader
from ...use_cases.session.state import Carried, Kept, Pushed, UnderWay, Wanted
from ...use_cases.sharing.crew import Handout
from .door import MqttDoor
from .sender import MqttSender
from .sharing import MqttShares
from .standing import PAGE, Ahead, Standing, Watched
from .ties import Ties

NOTHING_YET: Final[deque[Any]] = deque()  # shared by all whose queue was never used: an empty one has 760 bytes
ENTRY_OVERHEAD_BYTES: Final = 200
FLUSH_BYTES: Final = 64 * 1024
RETRY_S: Final = 0.5


class MqttOutbox:
    """One connection's way out, and the sink of its reader.

    ``ties``: to the connection. ``told`` is called with gaps. Call ``pump`` whenever there may be room.
    """

    __slots__ = (
        "_answered", "_bytes", "_care", "_counts", "_durable", "_first", "_greeting", "_limit", "_looking",
        "_principal", "_push", "_queue", "_session", "_sessions", "_shared_next", "_stalled", "_ties", "full", "plans", "sender", "shares", "standing", "told",
    )  # fmt: skip

    def __init__(self, door: MqttDoor, session: Session, principal: Principal, ties: Ties) -> None:
        self.told: Callable[[Gap], None] | None = None
        self.full = False
        care = door.use.care if principal.kind == "device" else None
        self.plans = Plans(door.watches if care is not None else None)
        self.standing = Standing(session, self.plans)
        self.sender = MqttSender(door, session, principal, self.plans, self.standing)
        self._care = care
        self._session = session
        self._principal = principal
        self._limit = door.limits.outbox_bytes
        self._counts = door.counts
        self._sessions = door.use.sessions
        self._looking: asyncio.Task[None] | None = None
        self._ties = ties
        self._queue: deque[tuple[Entry, Batch, int]] = NOTHING_YET
        self._first: deque[Ahead] = NOTHING_YET
        self._bytes = 0
        self._stalled: Reader | None = None
        self._greeting = False
        self.shares = MqttShares(door, session, principal, self)
        self._shared_next = False
        self._push = self.sender.push = self._send_more  # one object, so that it can be known again
        self._answered: tuple[Pushed, ...] = ()
        self._durable = False

    # -- what the client wants ----------------------------------------------------------------------------------------

    def send_retained(self, entries: Iterable[Entry], wanted: Wanted) -> None:
        """Send retained values for a filter, before anything that came later."""
        self._put_first([Ahead(each.record, wanted, (each.record.partition, each.position)) for each in entries])

    def send_again(self, entry: Entry, under_way: UnderWay) -> None:
        """Send what an earlier connection could not finish, and no reader brings."""
        place = entry.record.partition, entry.position
        self._put_first([Ahead(entry.record, None, place, under_way)])

    def passed(self, entry: Entry) -> None:
        """An entry had expired before its reader came by; but what was begun at QoS 2 is brought to its end."""
        again = self.standing.under_way_since(entry)
        if again is not None and again.qos == 2:
            self.standing.sent_again(entry)
            self.send_again(entry, again)
            self.pump()
        else:
            self.standing.expired(entry)

    def send_first(self, records: Iterable[Record]) -> None:
        """Send records that have no place in the queue, before it, where a filter selects their topics."""
        if self._care is not None:
            marked = [(record, self._care.mark(record)) for record in records]
            again = self.standing.pushed
            self._put_first([Ahead(record, again=again.pop(mark, None), mark=mark) for record, mark in marked])

    def _put_first(self, ahead: Sequence[Ahead]) -> None:
        if self._first is not NOTHING_YET:
            self._first.extend(ahead)
        elif ahead:
            self._first = deque(ahead)

    def begin(self, session: str, pushed: tuple[Pushed, ...]) -> None:
        """The connection begins. ``session``: what names its session, "" for one that is not kept; ``pushed``: to it."""
        self._durable = bool(session)
        if self._care is not None:
            self._answered = tuple(each for each in pushed if each.fate)
            self._care.begin(self._principal, self._push, Carried(session, pushed, self._let_go))
        if self._care is None or not self.plans.wanted:
            for mark in list(self.standing.pushed):
                self.standing.let_go(mark)

    async def greet(self) -> None:
        """Let a device have first what is kept for it, under the filters that it has now."""
        if self._care is not None and self.plans.wanted:
            self._greeting = True  # what is live comes behind it
            try:
                wanted = list(self.plans.wanted.values())
                self.send_first(await self._care.greet(self._principal, wanted, self._push))
            finally:
                self._greeting = False

    def left(self) -> None:
        """The connection is over."""
        if self._looking is not None:
            self._looking.cancel()
        self.shares.end()
        if self._care is not None:
            self._care.left(self._principal, self._push)

    def _let_go(self, mark: str) -> None:
        self.standing.let_go(mark)
        self.pump()

    def _send_more(self, records: Iterable[Record]) -> None:
        self.send_first(records)
        self.pump()

    def settled(self, event: Settled) -> None:
        """Take note of what the client has now."""
        self._counts["refused_by_client"] += event.refused
        self.sender.moved = True
        if self.shares.wanted or self.shares.lingers:
            self.shares.settled(event.tags)
        if self._care is not None:
            for tag in event.tags:
                if isinstance(tag, Watched):
                    self._care.acknowledged(self._principal, tag.record, event.refused > 0)
                    if self._durable and tag.place is None:
                        fate = "refused" if event.refused else "acknowledged"
                        self._answered += (Pushed(tag.mark, fate=fate),)

    # -- the sink -----------------------------------------------------------------------------------------------------

    def deliver(self, reader: Reader, batch: Batch) -> bool:
        """Take a batch, unless too much waits already."""
        if self._bytes >= self._limit:
            self._stalled = reader
            self._counts["fell_behind"] += 1
            return False
        if self._queue is NOTHING_YET:
            self._queue = deque()
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
        self.standing.not_applied(gap.partition, gap.last, Tally(lost=gap.missing))
        if self.told is not None:
            self.told(gap)

    def lagging(self, reader: Reader, lag: int) -> None:
        """MQTT has no word for it."""

    # -- sending ------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send what may be sent now: within the client's window, and while its socket takes it."""
        sent = 0
        queue = self._queue
        speech = self._session.speech
        while not (self.full or self._greeting or speech.blocked):
            if self._first:
                size = self.sender.ahead(self._first[0])
                if size < 0:
                    break
                self._first.popleft()
            elif self.standing.beside:
                if self._looking is None:
                    self._looking = asyncio.get_running_loop().create_task(self._look_up())
                break
            elif self.shares.waiting and (self._shared_next or not queue):
                self._shared_next = False
                size = self.shares.send()
                if size < 0:
                    break
            elif queue:
                self._shared_next = True
                entry, batch, index = queue[0]
                size = self.sender.entry(entry, batch, index)
                if size < 0:
                    break
                queue.popleft()
                self._bytes -= len(entry.record.body) + ENTRY_OVERHEAD_BYTES
            else:
                break
            sent += size
            if sent >= FLUSH_BYTES:
                self._ties.flush()
                sent = 0
        if sent or speech.unkept:
            self._ties.flush()
        if self._stalled is not None and self._bytes < self._limit // 2:
            stalled, self._stalled = self._stalled, None
            stalled.resume()

    async def _look_up(self) -> None:
        """Send the next of the retained values that an earlier connection did not finish: as many as the client takes."""
        beside = self.standing.beside
        some = list(islice(beside, PAGE))
        while True:
            try:
                found = await self._sessions.entries(some)
                break
            except Unavailable:
                await asyncio.sleep(RETRY_S)
        self._looking = None
        ahead: list[Ahead] = []
        for each, entry in zip(some, found, strict=True):
            beside.popleft()
            if entry is not None:
                ahead.append(Ahead(entry.record, None, (each.partition, each.position), each))
            elif each.qos == 2 and each.packet_id:
                self._session.outgoing.abandon(each.packet_id)
        later, self._first = self._first, NOTHING_YET
        self._put_first([*ahead, *later])
        self.pump()

    def send_shared(self, record: Record, flags: int, identifiers: tuple[int, ...], handout: Handout) -> int:
        """Send a message of a shared subscription; returns its size, 0 when it is too large for the client."""
        return self.sender.shared(record, flags, identifiers, handout)

    # -- where the client stands --------------------------------------------------------------------------------------

    @property
    def bytes_waiting(self) -> int:
        """What waits in the queue."""
        return self._bytes

    def reached(self) -> dict[Partition, Position]:
        """How far everything was sent or passed over, acknowledged or not."""
        return self.standing.reached(entry for entry, _, _ in reversed(self._queue))

    def kept(self) -> Kept:
        """What has to be known to go on later."""
        if self._care is not None and self._answered:
            self._answered = tuple(each for each in self._answered if not self._care.is_written(each.mark))
        kept = self.standing.kept(self.reached(), self._first, self._answered)
        return replace(kept, wanted=(*kept.wanted, *self.shares.wanted.values()))
