"""How one message reaches one client: whether it is still to be sent, at which QoS, and in which bytes."""

from __future__ import annotations

from collections.abc import Iterable

from ...adapters.mqtt import packets as p
from ...adapters.mqtt.plan import Plans
from ...adapters.mqtt.session import Session
from ...entities.message import Entry, Record
from ...entities.principal import Principal
from ...use_cases.feed import Batch
from ...use_cases.ports.message_log import Tally
from ...use_cases.session.state import UnderWay
from ...use_cases.sharing.crew import Handout
from .door import MqttDoor
from .parts import Parts
from .standing import NOTHING, Ahead, Place, Retained, Standing, Watched
from .use_cases import DeviceCare, Push


class MqttSender:
    """Sends through the session, and books what it does not send. ``moved``: something was sent or passed over.
    ``push``: by which care for devices knows the connection.

    Its methods return the size of what was sent, 0 when that was nothing, -1 when the client's window is full.
    """

    __slots__ = (
        "_clock", "_counts", "_own", "_parts", "_plans", "_principal", "_session", "_standing", "care", "moved", "push",
    )  # fmt: skip

    def __init__(
        self, door: MqttDoor, session: Session, principal: Principal, plans: Plans, standing: Standing
    ) -> None:
        self.moved = False
        self.push: Push = _nowhere
        self.care: DeviceCare | None = door.use.care if principal.kind == "device" else None
        self._session = session
        self._principal = principal
        self._plans = plans
        self._standing = standing
        self._clock = door.use.clock
        self._counts = door.counts
        self._parts = Parts(session, door.use.clock, door.use.playground)
        self._own: dict[str, None] = NOTHING

    def published(self, records: Iterable[Record]) -> None:
        """Remember messages of the client's own, where it does not want to hear itself."""
        if not self._plans.no_local:
            return
        for record in records:
            plan = self._plans.of_topic(record.topic)
            if plan is not None and plan.no_local:
                if self._own is NOTHING:
                    self._own = {}
                self._own[record.message_id] = None

    def entry(self, entry: Entry, batch: Batch, index: int) -> int:
        """Send an entry of the queue."""
        record = entry.record
        standing = self._standing
        flags = 0
        again: UnderWay | None = None
        if standing.earlier:
            if standing.has(entry):
                return 0
            again = standing.under_way_since(entry)
        plan = self._plans.of(entry)
        if plan is None or (plan.no_local and record.message_id in self._own):
            self._own.pop(record.message_id, None)
            standing.given_up(entry)
            return 0
        begun = again is not None and again.qos == 2  # then it does not expire any more (MQTT 5 section 4.3.3)
        if record.expires_at and record.expires_at <= self._clock.now() and not begun:
            self._counts["expired"] += 1
            return self._pass_over(entry, Tally(expired=1))
        place = record.partition, entry.position
        tag: Place | Watched = place
        if plan.watched and self.care is not None:
            if self.care.skip(self._principal, record, self.push):
                self._counts["superseded"] += 1
                return self._pass_over(entry, Tally(superseded=1))
            tag = Watched(place, record)
        qos = min(plan.qos, record.qos) if again is None else again.qos
        if qos and self._session.outgoing.window.free <= 0:
            return -1
        flags |= qos << 1 | (p.RETAIN if plan.as_published and record.retain else 0)
        packet_id = 0
        if again is not None:
            packet_id, flags = again.packet_id, flags | p.DUP
            standing.sent_again(entry)
            self._counts["redelivered"] += 1
        return self._write(self._parts.of_entry(batch, index, flags, plan.identifiers), flags, tag, packet_id)

    def _pass_over(self, entry: Entry, tally: Tally) -> int:
        self._standing.not_applied(entry.record.partition, entry.position.offset, tally)
        self._standing.given_up(entry)
        return 0

    def ahead(self, ahead: Ahead) -> int:
        """Send a retained value for its filter, or a record by what all filters make of its topic."""
        record, wanted, place, again, mark = ahead
        begun = again is not None and again.qos == 2 and again.packet_id
        if record.expires_at and record.expires_at <= self._clock.now() and not begun:
            return 0
        retained = wanted is not None or (isinstance(again, UnderWay) and again.beside)
        tag: Place | Retained | Watched = Watched(None, record, mark)
        if place is not None:
            tag = Retained(place) if retained else place
        flags, packet_id = p.RETAIN if retained else 0, 0
        identifiers: tuple[int, ...]
        if wanted is not None:
            identifiers = (wanted.identifier,) if wanted.identifier else ()
            qos = wanted.qos
        else:
            plan = self._plans.of_topic(record.topic)
            if plan is None:
                if begun and again is not None:
                    self._session.outgoing.abandon(again.packet_id)
                return 0
            qos, identifiers = plan.qos, plan.identifiers
        qos = min(qos, record.qos)
        if again is not None:
            qos, packet_id = again.qos, again.packet_id
            flags |= p.DUP if packet_id else 0
        if qos and self._session.outgoing.window.free <= 0:
            return -1
        flags |= qos << 1
        return self._write(self._parts.of_record(record, flags, identifiers), flags, tag, packet_id)

    def shared(self, record: Record, flags: int, identifiers: tuple[int, ...], handout: Handout) -> int:
        """Send a message of a shared subscription."""
        return self._write(self._parts.of_record(record, flags, identifiers), flags, handout, 0)

    def _write(
        self, parts: tuple[bytes, bytes], flags: int, tag: Place | Retained | Watched | Handout, packet_id: int
    ) -> int:
        outgoing = self._session.outgoing
        size = len(parts[0]) + len(parts[1]) + 2
        if not outgoing.fits(size):
            self._counts["too_large_for_client"] += 1  # MQTT 5 section 3.1.2.11.4: discarded as if it were delivered
            if packet_id and flags & 4:
                outgoing.abandon(packet_id)
            return 0
        self._counts["delivered"] += 1
        self.moved = True
        if flags & 4:
            outgoing.send_once(parts, tag, packet_id)
        elif flags & 2:
            outgoing.send(parts, tag, packet_id, recorded=isinstance(tag, Watched) and tag.place is None)
        else:
            outgoing.send_unanswered(parts[0] + parts[1])
        if isinstance(tag, Watched) and self.care is not None:
            self.care.sent(self._principal, tag.record, self.push)
        return size


def _nowhere(records: Iterable[Record]) -> None:
    """Stands for a connection until there is one."""
