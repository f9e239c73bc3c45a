"""A client's messages on their way into the log: appended in batches, and only then acknowledged.

What has arrived with one read of the socket is one submission, unless it is plain: see ``turn``. A refused message
becomes a dead letter in the same submission, and is acknowledged with its reason. Answers leave in the order in which
the messages came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import structlog

from ...adapters.mqtt import packets as p
from ...adapters.mqtt.reasons import Reason
from ...adapters.mqtt.session import Session
from ...entities.errors import IotSphereError, LogFull, ShuttingDown, Unavailable
from ...entities.message import Record
from ...entities.principal import Principal
from ...use_cases.ports.message_log import Appended
from .door import MqttDoor
from .intake import QOS_2, Batch, MqttIntake
from .ties import Ties
from .turn import Owed

log = structlog.get_logger("iotsphere.mqtt")

RETRY_S: Final = 0.5
_Item: TypeAlias = p.Burst | p.Publish | p.Oversized

NOTHING: Final = Appended((), frozenset())


class MqttIngress:
    """One connection's way in. ``ties`` are told once answers lie in the session, or it ``failed`` and is to be closed.

    ``own`` is told each record that the client has published. ``gathered``: reads that go into the log with those of
    other clients, and are not answered yet; all that is ``_under_way`` came later than they.
    """

    __slots__ = (
        "_congested", "_deferred", "_door", "_intake", "_principal", "_requesting", "_requests", "_session",
        "_settled", "_sorting_out", "_ties", "_under_way", "bytes_under_way", "failed", "gathered", "own", "way", "ways",
    )  # fmt: skip

    def __init__(self, door: MqttDoor, session: Session, principal: Principal, ties: Ties) -> None:
        self._door = door
        self._session = session
        self._principal = principal
        self._ties = ties
        self._intake = MqttIntake(door, session, principal)
        self.ways = self._intake.ways
        self.way = self._intake.way
        self._under_way: deque[Batch] = deque()
        self._requests: deque[Batch] = deque()
        self._requesting: asyncio.Task[None] | None = None
        self._deferred: deque[_Item] = deque()
        self._sorting_out: asyncio.Task[None] | None = None
        self._congested = False
        self._settled: asyncio.Event | None = None
        self.gathered = 0
        self.bytes_under_way = 0
        self.own: Callable[[list[Record]], None] | None = None
        self.failed: tuple[Reason, str] | None = None

    @property
    def blocked(self) -> bool:
        """Whether the client has enough under way: its socket is to be read no further."""
        return (
            self.bytes_under_way >= self._door.limits.unappended_bytes
            or self._session.incoming.unanswered >= self._session.offer.receive_maximum
            or bool(self._deferred)
            or len(self._requests) >= self._door.limits.requests_under_way
            or (self._congested and self._door.use.publish.congested)
        )

    @property
    def busy(self) -> bool:
        """Whether anything is on its way into the log."""
        return bool(self.gathered or self._under_way or self._deferred)

    async def settle(self) -> None:
        """Wait until nothing is on its way any more."""
        while self.busy:
            self._settled = asyncio.Event()
            await self._settled.wait()

    def take(self, items: Sequence[_Item]) -> None:
        """Admit messages and submit them."""
        if self._deferred or (self._session.incoming.inflow.unsure and any(map(self._is_unsure, items))):
            self._deferred.extend(items)
            if self._sorting_out is None:
                self._sorting_out = asyncio.get_running_loop().create_task(self._sort_out())
                self._sorting_out.add_done_callback(self._carried_out)
            return
        for batch in self._intake.take(items):
            self._submit(batch)

    # -- with others --------------------------------------------------------------------------------------------------

    def gather(self, burst: p.Burst, size: int) -> bool:
        """Let simple messages go into the log with those of others, unless there are some to be answered before them."""
        turn = self._door.turn
        if turn is None or self._under_way or self._deferred:
            return False
        self.gathered += 1
        turn.gather(self, burst.messages, size)
        return True

    def submit(self) -> None:
        """Let what was gathered go before what comes now."""
        if self.gathered and (turn := self._door.turn) is not None:
            turn.submit()

    def take_apart(self, messages: list[tuple[bytes, bytes, int, int]]) -> None:
        """Take messages of a read that was gathered, but is not plain."""
        self.take((p.Burst(messages),))
        self._ties.moved()

    def submitted(self, congested: bool) -> None:
        """What was gathered is on its way."""
        self._congested = congested
        if self.blocked:
            self._ties.moved()

    def answered(self, owed: Owed, result: Appended | IotSphereError) -> None:
        """What was gathered is in the log, or is not taken by it."""
        self.bytes_under_way -= owed.size
        self.gathered -= owed.reads
        if isinstance(result, IotSphereError):
            self._fail(owed.ids, result)
        else:
            self._session.incoming.acknowledge(owed.ids)
        if self._under_way or self._settled is not None:
            self._answer_all()
        if self.failed is None:
            self._ties.answered()
        else:
            self._ties.moved()

    # -- what may be in the log already -------------------------------------------------------------------------------

    def _is_unsure(self, item: _Item) -> bool:
        unsure = self._session.incoming.inflow.unsure
        return bool(unsure) and not isinstance(item, p.Burst) and item.flags & QOS_2 > 0 and item.packet_id in unsure

    async def _sort_out(self) -> None:
        """Look messages up in the log that were under way when a connection ended badly; all others wait behind them."""
        while self._deferred:
            item = self._deferred[0]
            if not isinstance(item, p.Burst) and self._is_unsure(item) and await self._is_in_log(item):
                batches = [self._intake.answer_only(item)]
            else:
                batches = self._intake.take([item])
            self._deferred.popleft()
            for batch in batches:
                self._submit(batch)
        self._sorting_out = None
        self._answer_all()
        self._ties.moved()

    async def _is_in_log(self, packet: p.Publish | p.Oversized) -> bool:
        inflow, look = self._session.incoming.inflow, self._door.use.sessions.exactly_once
        generations = inflow.unsure[packet.packet_id]
        if not generations:
            return True
        record = self._intake.record_of(packet)
        if record is None or (len(generations) == 1 and look.is_remembered(generations[0])):
            return False  # the append itself finds it
        ids = inflow.message_ids(packet.packet_id)
        while True:
            try:
                if record.message_id not in ids:
                    found = await look.is_known(record.partition.domain, record.message_id)
                else:
                    found = await look.appended(record.partition, ids, min(generations))
                self._door.counts["looked_up"] += 1
                return found
            except Unavailable:
                await asyncio.sleep(RETRY_S)

    # -- appending ----------------------------------------------------------------------------------------------------

    def _submit(self, batch: Batch) -> None:
        self._under_way.append(batch)
        self.bytes_under_way += batch.size
        if batch.request is not None:
            self._requests.append(batch)
            if self._requesting is None:
                self._requesting = asyncio.get_running_loop().create_task(self._carry_out())
                self._requesting.add_done_callback(self._carried_out)
        else:
            self._append(batch)

    def _append(self, batch: Batch) -> None:
        if self.own is not None:
            self.own(batch.records)
        if not batch.records:
            batch.result = NOTHING
            self._answer_all()
            return
        self._door.counts["submitted"] += len(batch.records)

        def done(result: Appended | IotSphereError) -> None:
            batch.result = result
            self._answer_all()
            self._ties.moved()

        self._congested = self._door.use.publish.submit(batch.records, done)

    async def _carry_out(self) -> None:
        """Carry out requests, one after the other."""
        carry_out = self._door.use.requests
        assert carry_out is not None
        while self._requests:
            batch = self._requests[0]
            assert batch.request is not None
            size = batch.size
            try:
                await carry_out(self._principal, batch.request.record)
                self._door.counts["requests_done"] += 1
            except IotSphereError as error:
                self._intake.failed(batch, batch.request, error)
            self.bytes_under_way += batch.size - size
            self._requests.popleft()
            self._append(batch)
            self._ties.moved()
        self._requesting = None

    def _carried_out(self, task: asyncio.Task[None]) -> None:
        """Whoever waits for an answer that no longer comes is better off with a lost connection."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._door.counts["requests_broken"] += 1
            log.error("request_broken", exc_info=error)
            self.failed = Reason.UNSPECIFIED_ERROR, "the request could not be carried out; connect again and repeat it"
            self._ties.moved()

    # -- answering ----------------------------------------------------------------------------------------------------

    def _answer_all(self) -> None:
        under_way = self._under_way
        if self.gathered:
            return
        while under_way:
            batch = under_way[0]
            if batch.result is None:
                return
            under_way.popleft()
            self.bytes_under_way -= batch.size
            self._answer(batch, batch.result)
        if self._settled is not None:
            self._settled.set()

    def _answer(self, batch: Batch, result: Appended | IotSphereError) -> None:
        session = self._session.incoming
        if isinstance(result, IotSphereError):
            self._fail(batch.ids, result)
        elif not batch.apart:
            session.acknowledge(batch.ids)
        else:
            start = 0
            for index, (reason, text) in batch.apart.items():
                session.acknowledge(batch.ids[start:index])
                session.answer(batch.ids[index], reason, text)
                start = index + 1
            session.acknowledge(batch.ids[start:])
        if batch.close is not None and self.failed is None:
            self.failed = batch.close

    def _fail(self, packet_ids: Sequence[int], error: IotSphereError) -> None:
        """The log did not take the messages, and retrying it here is pointless."""
        self._door.counts[error.code] += 1
        if isinstance(error, ShuttingDown):
            self.failed = Reason.SERVER_SHUTTING_DOWN, error.message
        elif self._session.version == p.MQTT_5:
            full = isinstance(error, LogFull)
            reason = Reason.QUOTA_EXCEEDED if full else Reason.IMPLEMENTATION_SPECIFIC_ERROR
            for packet_id in packet_ids:
                self._session.incoming.answer(packet_id, reason, error.message)
        else:
            self.failed = Reason.QUOTA_EXCEEDED, error.message
