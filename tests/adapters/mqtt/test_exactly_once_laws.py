"""However connections end and processes die, a message that a sound client sends at QoS 2 is appended exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from iotsphere.adapters.mqtt.inflow import Inflow
from iotsphere.adapters.mqtt.packets import DUP, Publish
from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.documents import MemoryDocuments
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.channel import DEFAULT_CHANNELS
from iotsphere.entities.principal import device
from iotsphere.use_cases.session.sessions import GENERATIONS, Sessions
from iotsphere.use_cases.session.state import Hold, Kept
from tests.support.examples import tried

WHO = device("iotsphere", "d1")
IDS = (1, 2, 3)
T = TypeVar("T")


class ExactlyOnce(RuleBasedStateMachine):
    """A client with three packet ids, the server's session on real documents, and a log of message ids.

    Every message has the same bytes, so that nothing but the protocol can tell two of them apart.
    """

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        log = MemoryLog(self.clock)
        self.run(log.ensure("iotsphere", DEFAULT_CHANNELS))
        self.sessions = Sessions(MemoryDocuments(), log, self.clock)
        self.log: dict[str, int] = {}  # message id -> the message that the client meant
        self.appended: list[int] = []
        self.count = 0
        self.publishing: dict[int, int] = {}  # the client's: packet id -> message
        self.releasing: dict[int, int] = {}
        self.connect()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def connect(self) -> None:
        self.hold: Hold
        self.hold, _ = self.run(self.sessions.open(WHO, "c1", False, 600))
        self.inflow = Inflow(self.hold.salt, self.hold.inbound)
        self.arrived: dict[int, int] = {}  # at the server, on its way into the log
        self.receipts: set[int] = set()  # PUBRECs on their way to the client
        for packet_id in self.releasing:
            self.take_release(packet_id)
        for packet_id, message in self.publishing.items():
            self.take(packet_id, message, DUP)

    # -- the server ---------------------------------------------------------------------------------------------------

    def take(self, packet_id: int, message: int, flags: int = 0) -> None:
        taken = self.inflow.take(Publish(b"t", b"1", packet_id, 4 | flags))
        if taken:
            self.arrived[packet_id] = message
        elif taken is False:
            self.receipts.add(packet_id)

    def append(self, packet_id: int) -> None:
        message = self.arrived.pop(packet_id)
        message_id = self.inflow.message_id(packet_id)
        assert message_id is not None
        if not any(each in self.log for each in self.inflow.message_ids(packet_id) | {message_id}):
            self.log[message_id] = message
            self.appended.append(message)
        self.inflow.done(packet_id)
        self.receipts.add(packet_id)

    def take_release(self, packet_id: int) -> None:
        self.released = self.inflow.free(packet_id)

    def keep(self) -> None:
        self.run(self.sessions.exactly_once.keep(self.hold, Kept(), self.inflow.snapshot(self.clock.now())))

    # -- what may happen ----------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.publishing) + len(self.releasing) < len(IDS))
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        """The client sends something new under any id that is free."""
        free = [each for each in IDS if each not in self.publishing and each not in self.releasing]
        packet_id = data.draw(st.sampled_from(free))
        self.count += 1
        self.publishing[packet_id] = self.count
        self.take(packet_id, self.count)

    @precondition(lambda self: self.arrived)
    @rule(data=st.data())
    def reach_the_log(self, data: st.DataObject) -> None:
        self.append(data.draw(st.sampled_from(sorted(self.arrived))))

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """A PUBREC reaches the client, which answers with PUBREL."""
        packet_id = data.draw(st.sampled_from(sorted(self.receipts)))
        self.receipts.discard(packet_id)
        if packet_id in self.publishing:
            self.releasing[packet_id] = self.publishing.pop(packet_id)
        self.take_release(packet_id)

    @precondition(lambda self: self.releasing)
    @rule()
    def complete(self) -> None:
        """What was released gets on record, and then the PUBCOMPs reach the client."""
        self.keep()
        self.releasing.clear()

    @rule(milliseconds=st.sampled_from([0, 1, 60_000]))
    def wait(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    @rule()
    def write(self) -> None:
        """A record is written for another reason, such as a message to the client."""
        self.keep()

    @precondition(lambda self: len(self.hold.inbound.before) < GENERATIONS)
    @rule(written=st.booleans())
    def crash(self, written: bool) -> None:
        """The process dies, with or without the record that it was writing."""
        if written:
            self.keep()
        self.connect()

    @rule()
    def leave(self) -> None:
        """The connection is lost, and the session is saved."""
        self.run(self.sessions.leave(self.hold, Kept(), self.inflow.state()))
        self.connect()

    @invariant()
    def nothing_is_appended_twice(self) -> None:
        if self.count:
            assert len(self.appended) == len(set(self.appended))

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            for packet_id in sorted(self.arrived):
                self.append(packet_id)
            assert sorted(self.appended) == list(range(1, self.count + 1))
            self.loop.close()


TestExactlyOnce = ExactlyOnce.TestCase
TestExactlyOnce.settings = tried(100, 30)
