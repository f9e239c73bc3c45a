"""The way in: messages of the broker are admitted, appended, and only then acknowledged, in the order in which they came.

One append of this bridge is under way at a time, and what arrives meanwhile is the next one. A broker waits after Receive
Maximum unanswered messages; since not every broker counts well, what waits here is bounded in bytes besides. What was
received outlives its connection: it goes into the log all the same, and is known again when the broker repeats it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from ...adapters.bridge.messages import Admitted, Arrival
from ...entities.errors import IotSphereError, ShuttingDown
from ...entities.message import Record
from ...use_cases.ports.message_log import Appended
from ...use_cases.publish import MessagePublishUseCase
from .decisions import Decisions
from .options import BridgeOptions

FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 5.0
OVERHEAD_BYTES: Final = 1_000

log = structlog.get_logger("iotsphere.bridge")


class Answering(Protocol):
    """The part of a connection that the way in needs."""

    def acknowledge(self, packet_id: int) -> bool:
        """Send a PUBACK; False when the connection has ended."""
        ...

    def drop(self, why: str) -> None:
        """End the connection."""
        ...


class _Taken:
    """A message on its way. ``digest``: by which a repetition is known; ``record``: None once nothing is left to do."""

    __slots__ = ("asks", "digest", "packet_id", "record", "since")

    def __init__(self, packet_id: int, digest: int, admitted: Admitted, since: float) -> None:
        self.packet_id = packet_id
        self.digest = digest
        self.record: Record | None = admitted.record
        self.asks = admitted.asks
        self.since = since


class Inbound:
    """``admit`` says what becomes of an arrival; ``counts`` gets its words. ``decisions`` may be set: where requests go."""

    def __init__(
        self,
        admit: Callable[[Arrival], Admitted],
        publish: MessagePublishUseCase,
        counts: Counter[str],
        options: BridgeOptions,
    ) -> None:
        self._admit = admit
        self._publish = publish
        self._counts = counts
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._link: Answering | None = None
        self._owed: deque[_Taken] = deque()  # to be acknowledged on this connection, in this order
        self._unsettled: dict[int, _Taken] = {}  # received on an earlier one, and not acknowledged
        self._waiting: list[_Taken] = []
        self._batch: list[_Taken] = []
        self._held = 0
        self._loose = 0
        self._delay = FIRST_RETRY_S
        self._flush_due = False
        self._retry: asyncio.TimerHandle | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._refusing = False
        self._closed = False
        self.decisions: Decisions | None = None

    @property
    def unacknowledged(self) -> int:
        """How many messages the broker waits for."""
        return len(self._owed)

    @property
    def crowded(self) -> bool:
        """Whether so much waits for the log that no further connection may bring more."""
        return self._held >= self._options.held_bytes // 2

    @property
    def oldest(self) -> float:
        """Seconds that the longest-waiting message has waited for the log or its acknowledgement; 0 = none waits."""
        firsts = [queue[0].since for queue in (self._owed, self._batch, self._waiting) if queue]
        return self._loop.time() - min(firsts) if firsts else 0.0

    # -- connections --------------------------------------------------------------------------------------------------

    def opened(self, link: Answering, session_present: bool) -> None:
        """A connection stands; its messages follow. Without our session the broker repeats nothing."""
        self._link = link
        self._refusing = False
        if not session_present:
            self._unsettled.clear()

    def lost(self) -> None:
        """The connection is gone. What it owed comes again, by the same packet ids (MQTT 5 section 4.4)."""
        self._link = None
        self._unsettled.update((taken.packet_id, taken) for taken in self._owed)
        self._owed.clear()

    def receive(self, arrival: Arrival) -> None:
        """Take one message; never raises, and never waits."""
        if self._closed:
            return  # not acknowledged: the broker keeps it
        self._counts["received"] += 1
        if not arrival.packet_id:
            self._receive_loose(arrival)
            return
        if self._refusing or self._held >= self._options.held_bytes:
            self._counts["held_back"] += 1
            self._refusing = True  # all that follows as well, or the order would be lost
            if self._link is not None:
                self._link.drop("too much waits for the log; the broker keeps the rest until that is done")
            return
        digest = hash((arrival.topic, arrival.payload))
        taken = self._unsettled.pop(arrival.packet_id, None)
        if taken is not None and arrival.repeated and taken.digest == digest:
            self._counts["repeated"] += 1
        else:
            taken = _Taken(arrival.packet_id, digest, self._admitted(arrival), self._loop.time())
            self._wait(taken)
        self._owed.append(taken)
        self._settle()
        self._soon()

    def _receive_loose(self, arrival: Arrival) -> None:
        """QoS 0 knows no acknowledgement, so nothing else can hold it back: past the limit it is dropped and counted."""
        if self._loose >= self._options.loose_bytes:
            self._counts["dropped_qos0"] += 1
            return
        self._wait(_Taken(0, 0, self._admitted(arrival), self._loop.time()))
        self._soon()

    def _wait(self, taken: _Taken) -> None:
        if taken.record is None:
            return
        self._hold(taken, 1)
        if taken.asks and self.decisions is not None:
            self._quiet.clear()
            self.decisions.put(taken)
        else:
            self._waiting.append(taken)

    def settled(self, taken: _Taken, letter: Record | None) -> None:
        """A request was decided; ``letter``: the dead letter that it left, where it was decided against."""
        self._hold(taken, -1)
        taken.record, taken.asks = letter, False
        if letter is not None:
            self._counts["refused"] += 1
        self._wait(taken)
        self._settle()
        self._soon()
        self._rest()

    def _rest(self) -> None:
        if not self._batch and not self._waiting and (self.decisions is None or not self.decisions.busy):
            self._quiet.set()

    def _hold(self, taken: _Taken, sign: int) -> None:
        """Count what a message that waits for the log costs, or stop to."""
        size = 0 if taken.record is None else len(taken.record.body) + OVERHEAD_BYTES
        self._held += sign * size
        if not taken.packet_id:
            self._loose += sign * size

    def _admitted(self, arrival: Arrival) -> Admitted:
        admitted = self._admit(arrival)
        self._counts[admitted.outcome] += 1
        return admitted

    # -- appending and acknowledging ----------------------------------------------------------------------------------

    def _soon(self) -> None:
        if not self._flush_due and not self._batch and self._waiting:
            self._flush_due = True
            self._quiet.clear()
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        self._batch, self._waiting = self._waiting, []
        self._submit()

    def _submit(self) -> None:
        records = [taken.record for taken in self._batch if taken.record is not None]
        self._publish.submit(records, self._appended)

    def _appended(self, result: Appended | IotSphereError) -> None:
        if isinstance(result, IotSphereError):
            self._not_appended(result)
            return
        self._delay = FIRST_RETRY_S
        for taken in self._batch:
            self._hold(taken, -1)
            taken.record = None
        self._counts["appended"] += len(self._batch)
        self._batch = []
        self._settle()
        self._soon()
        self._rest()

    def _not_appended(self, error: IotSphereError) -> None:
        """Nothing is acknowledged, and the same records are tried again, in the same order."""
        self._counts["appends_failed"] += 1
        if isinstance(error, ShuttingDown):
            self._closed = True
            return
        log.warning("bridge_waits_for_the_log", code=error.code, message=error.message)
        self._retry = self._loop.call_later(self._delay * random.uniform(0.5, 1.0), self._submit)
        self._delay = min(self._delay * 2, LAST_RETRY_S)

    def _settle(self) -> None:
        owed, link = self._owed, self._link
        while link is not None and owed and owed[0].record is None and link.acknowledge(owed[0].packet_id):
            owed.popleft()
            self._counts["acknowledged"] += 1

    # -- the end ------------------------------------------------------------------------------------------------------

    async def quiet(self) -> None:
        """Wait until nothing waits for the log."""
        await self._quiet.wait()

    async def drain(self, timeout: float) -> None:
        """Take nothing more, and wait until what was taken is in the log and acknowledged."""
        self._closed = True
        try:
            async with asyncio.timeout(timeout):
                await self._quiet.wait()
        except TimeoutError:
            log.warning("bridge_not_drained", unacknowledged=len(self._owed), remedy="the broker will send them again")

    def close(self) -> None:
        """Try no more."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
