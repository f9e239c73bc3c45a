"""What one turn of the event loop has read from all clients, on its way into the log and back, in steps for all at once.

To admit, submit and answer a message by itself costs about as much as thirty in a row, and at a moderate rate nearly
every read brings a single one. So plain messages are only gathered while the sockets are read. At the end of the turn
they are admitted together and join one submission, and its answer acknowledges them with one write for each client.

Plain is a payload that is admitted, on a topic that is its sender's, of a client that has nothing unusual under way. All else
goes the client's own way: submitted behind what was gathered from it before, and answered behind it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from ...adapters.edge import Edge, Route
from ...entities.errors import IotSphereError, MessageRefused
from ...entities.message import Record
from ...use_cases.ports.clock import Clock
from ...use_cases.ports.message_log import Appended
from ...use_cases.publish import BATCH_RECORDS, MessagePublishUseCase, Submission

if TYPE_CHECKING:
    from .ingress import MqttIngress

GATHERED_BYTES: Final = 64 * 1024

_Messages: TypeAlias = list[tuple[bytes, bytes, int, int]]  # as in a Burst


class Owed:
    """What one client is owed by a submission: packet ids in order, payload bytes, and how many reads brought them."""

    __slots__ = ("ids", "reads", "size")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.reads = 0
        self.size = 0


class Turn:
    """Gathers what the clients of one door have sent. ``counts``: those of the door."""

    __slots__ = ("_bytes", "_clock", "_counts", "_edge", "_owed", "_publish", "_reads", "_submission")

    def __init__(self, edge: Edge, publish: MessagePublishUseCase, clock: Clock, counts: Counter[str]) -> None:
        self._edge = edge
        self._publish = publish
        self._clock = clock
        self._counts = counts
        self._reads: list[tuple[MqttIngress, _Messages]] = []
        self._bytes = 0
        self._submission: Submission | None = None
        self._owed: dict[MqttIngress, Owed] = {}  # by that submission

    def gather(self, ingress: MqttIngress, messages: _Messages, size: int) -> None:
        """Take the messages of one read of ``size`` bytes, from a client with nothing unusual under way."""
        if not self._reads:
            asyncio.get_running_loop().call_soon(self.submit)
        self._reads.append((ingress, messages))
        self._bytes += size
        if self._bytes >= GATHERED_BYTES:
            self.submit()

    def submit(self) -> None:
        """Admit and submit what was gathered: at the end of a turn, or as soon as something must come behind it."""
        reads = self._reads
        if not reads:
            return
        self._reads = []
        self._bytes = 0
        submission = self._submission
        if submission is None or submission.taken or len(submission.records) >= BATCH_RECORDS:
            submission = None
            self._owed = {}
        records: list[Record] = []
        apart = self._admit(reads, records)
        if records:
            self._counts["submitted"] += len(records)
            if submission is None:
                self._submission = self._publish.begin(records, partial(self._answer, self._owed))
            else:
                self._publish.join(submission, records)
            congested = self._publish.congested
            for ingress, _ in reads:
                ingress.submitted(congested)
        for ingress, messages in apart:
            ingress.take_apart(messages)

    def _admit(
        self, reads: list[tuple[MqttIngress, _Messages]], records: list[Record]
    ) -> list[tuple[MqttIngress, _Messages]]:
        """Make records of what is plain, and note what is owed for it; returns the rest."""
        apart: list[tuple[MqttIngress, _Messages]] = []
        unusual: set[MqttIngress] = set()
        admit = self._edge.admit
        add = records.append
        now = self._clock.now()
        for ingress, messages in reads:
            ways = ingress.ways
            start = len(records)
            ids: list[int] = []
            size = 0
            if ingress not in unusual:
                for topic, payload, packet_id, first in messages:
                    way = ways.get(topic)
                    if way is None:
                        way = ingress.way(topic)
                    if not payload or not isinstance(way, Route):
                        break
                    try:
                        add(admit(way, payload, now, first & 1 == 1, first >> 1 & 3))
                    except MessageRefused:
                        break  # it is made a dead letter on the client's own way
                    size += len(payload)
                    if packet_id:
                        ids.append(packet_id)
            taken = len(records) - start
            if taken:
                ingress.bytes_under_way += size
                if ingress.own is not None:
                    ingress.own(records[start:])
                owed = self._owed.get(ingress)
                if owed is None:
                    owed = self._owed[ingress] = Owed()
                owed.ids += ids
                owed.size += size
                owed.reads += 1
            else:
                ingress.gathered -= 1
            if taken < len(messages):
                unusual.add(ingress)
                apart.append((ingress, messages[taken:]))
        return apart

    def _answer(self, debts: dict[MqttIngress, Owed], result: Appended | IotSphereError) -> None:
        if debts is self._owed:
            self._submission = None
            self._owed = {}
        for ingress, owed in debts.items():
            ingress.answered(owed, result)
