"""Care for connected devices: what each gets first, which commands are handed to it, and what became of them.

A device that comes gets one delta per shadow and its open commands, whatever the log's backlog holds. A command is handed
over only after the database says that it is on its way, one after the other per device: so one that was cancelled, has
expired or was handed over elsewhere is never sent. While the database is away, devices are greeted once it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final, Protocol

import structlog

from ...entities.command import Command
from ...entities.errors import IotSphereError
from ...entities.message import Record
from ...entities.principal import Principal
from ...entities.shadow import Shadow, ShadowKey
from ...entities.topic import parse_topic
from ..command.commands import Commands
from ..session.state import Carried, Wanted
from ..shadow.shadows import Shadows
from .evidence import RETRY_S, Evidence, patiently
from .handover import MAX_WAITING, Handover
from .visit import DELTA, NOTHING, REQUEST, CareVisit, Push

log = structlog.get_logger("iotsphere.care")

REFUSED: Final = {"reason": "the device refused the message"}
GREET_WITHIN_S: Final = 1.0


class CareRecords(Protocol):
    """Messages that devices get from here."""

    def request(self, command: Command) -> Record:
        """A command, as it lies in the log. Raises MessageRefused, such as for one that has expired."""
        ...

    def delta(self, shadow: Shadow) -> Record:
        """What the device has yet to take on."""
        ...

    def delta_of(self, record: Record) -> tuple[ShadowKey, int]:
        """The shadow and the sequence of a message on a delta topic."""
        ...


class DeviceCare:
    """What ``gateways.mqtt.door.DeviceCare`` asks for. A device is cared for on its own topics only."""

    def __init__(self, shadows: Shadows, commands: Commands, records: CareRecords) -> None:
        self._shadows = shadows
        self._commands = commands
        self._records = records
        self._visits: dict[str, dict[Push, CareVisit]] = {}
        self._evidence = Evidence()
        self._handover = Handover(commands, records.request, self._evidence)

    @property
    def dropped(self) -> int:
        """How much evidence could not be kept."""
        return self._evidence.dropped

    @property
    def connected(self) -> int:
        """How many connections are cared for."""
        return sum(map(len, self._visits.values()))

    def watches(self, topic: str) -> bool:
        """Commands and deltas."""
        return topic.endswith(REQUEST) or (topic.endswith(DELTA) and parse_topic(topic).channel == "shadow")

    def begin(self, principal: Principal, push: Push, carried: Carried) -> None:
        """What was pushed and not answered waits for the greeting; answers that only the session knows are learned."""
        visits = self._visits.setdefault(principal.identity, {})
        visits[push] = CareVisit(principal, push, carried)
        for each in carried.pushed:
            if each.fate:
                self._learn(principal.domain, each.mark, each.fate == "refused")

    def mark(self, record: Record) -> str:
        """The id of a command; the shadow and the sequence of a delta."""
        if record.topic.endswith(DELTA):
            return f"{record.topic} {self._records.delta_of(record)[1]}"
        return record.message_id

    def is_written(self, mark: str) -> bool:
        """Whether the database knows what the device answered for a command; of deltas it need not."""
        return mark not in self._handover.unwritten

    async def greet(self, principal: Principal, wanted: Collection[Wanted], push: Push) -> Sequence[Record]:
        """The open deltas that the filters select and this connection has not had; its commands follow by ``push``.

        What the database does not tell within a second follows once it does.
        """
        visits = self._visits.setdefault(principal.identity, {})
        visit = visits.get(push)
        if visit is None:
            visit = visits[push] = CareVisit(principal, push, Carried())
        visit.wanted = wanted
        if visit.greeting is not None:
            return ()  # it waits for the database, and sees these filters then
        try:
            async with asyncio.timeout(GREET_WITHIN_S):
                return await self._greeting(visit)
        except TimeoutError:
            log.warning("greeting_waits", code="database_unavailable")
        except IotSphereError as error:
            log.warning("greeting_waits", code=error.code)
        if not visit.over:
            visit.greeting = asyncio.get_running_loop().create_task(self._greet_late(visit))
        return ()

    async def run(self) -> None:
        """Write evidence down for ever; what the database does not take now is tried again."""
        await self._evidence.run()

    def left(self, principal: Principal, push: Push) -> None:
        """The connection is over."""
        visits = self._visits.get(principal.identity, {})
        visit = visits.pop(push, None)
        if visit is not None:
            visit.over = True
            for task in (visit.handing, visit.greeting):
                if task is not None:
                    task.cancel()
            self._handover.left(visit, lambda: self._visits.get(principal.identity, {}).values())
        if not visits:
            self._visits.pop(principal.identity, None)

    def skip(self, principal: Principal, record: Record, push: Push) -> bool:
        """Old deltas are; commands always are, since they are handed over one by one."""
        visit = self._visit(principal, record, push)
        if visit is None:
            return False
        if record.topic.endswith(REQUEST):
            if record.message_id not in visit.commands:
                self._handover.await_turn(visit, record.message_id)
            return True
        key, sequence = self._records.delta_of(record)
        return sequence <= visit.sequences.get(key, 0)

    def sent(self, principal: Principal, record: Record, push: Push) -> None:
        """A delta is on its way; commands were marked before."""
        visit = self._visit(principal, record, push)
        if visit is None:
            return
        if record.topic.endswith(REQUEST):
            visit.queued.pop(record.message_id, None)
            visit.unsent.pop(record.message_id, None)
            if visit.room is not None:
                visit.room.set()
            if not visit.qos:
                visit.commands.pop(record.message_id, None)
            return
        key, sequence = self._records.delta_of(record)
        visit.told(key, max(sequence, visit.sequences.get(key, 0)))
        self._evidence.note(lambda: self._shadows.deliver([(key, sequence, "delivered")]))

    def acknowledged(self, principal: Principal, record: Record, refused: bool) -> None:
        """The device has it, or refused it on the level of the protocol."""
        if not _is_own(principal, record):
            return
        if record.topic.endswith(DELTA):
            if not refused:
                key, sequence = self._records.delta_of(record)
                self._evidence.note(lambda: self._shadows.deliver([(key, sequence, "acknowledged")]))
            return
        for visit in self._visits.get(principal.identity, {}).values():
            visit.commands.pop(record.message_id, None)
            if visit.behind:
                self._handover.begin(visit)
        self._learn(principal.domain, record.message_id, refused)

    def _learn(self, domain: str, command_id: str, refused: bool) -> None:
        evidence, answer = ("reject", REFUSED) if refused else ("acknowledged", None)

        unwritten = self._handover.unwritten

        async def write() -> None:
            try:
                await self._commands.learn(domain, command_id, evidence, answer)
            except IotSphereError as error:
                if not error.retry:
                    unwritten.discard(command_id)
                raise
            unwritten.discard(command_id)

        if self._evidence.note(write):
            unwritten.add(command_id)

    def _visit(self, principal: Principal, record: Record, push: Push) -> CareVisit | None:
        """The connection, where the message is for the device behind it."""
        return self._visits.get(principal.identity, {}).get(push) if _is_own(principal, record) else None

    # -- greeting -----------------------------------------------------------------------------------------------------

    async def _greeting(self, visit: CareVisit) -> Sequence[Record]:
        domain, device = visit.principal.domain, visit.principal.name
        shadows: Sequence[Shadow] = ()
        if any("shadow" in each.filter.channels for each in visit.wanted):
            shadows = await self._shadows.of_device(domain, device)
        commands: Sequence[Command] = ()
        wants_commands = bool(visit.wants(visit.requests))
        if wants_commands:
            await self._handover.returned(visit.principal.identity)
            commands = await self._commands.outstanding(domain, device, limit=MAX_WAITING)
        if visit.over:
            return ()
        found: list[Record] = []
        for shadow in shadows:  # nothing is awaited from here on, so this connection is told all of it or nothing
            if shadow.sequence > visit.sequences.get(shadow.key, -1) and visit.wants(shadow.key.topic("delta")):
                visit.told(shadow.key, shadow.sequence)
                if shadow.delta:
                    found.append(self._records.delta(shadow))
        self._carry_on(visit, {self.mark(record) for record in found}, wants_commands)
        others = [other for other in self._visits[visit.principal.identity].values() if other is not visit]
        self._handover.take_on(visit, commands, others, again=True)
        visit.behind = visit.behind or len(commands) == MAX_WAITING
        visit.greeted = True
        if visit.behind:
            self._handover.begin(visit)
        return found

    def _carry_on(self, visit: CareVisit, deltas: Collection[str], wants_commands: bool) -> None:
        """Hand over first what was on its way to an earlier connection of the session, or let it go."""
        carried, visit.carried = visit.carried, NOTHING
        for mark in carried:
            if DELTA in mark:
                if mark not in deltas:
                    visit.let_go(mark)  # the shadow has moved on
            elif not wants_commands:
                visit.let_go(mark)
            else:
                self._handover.carry_on(visit, mark)

    async def _greet_late(self, visit: CareVisit) -> None:
        await asyncio.sleep(RETRY_S[0])
        try:
            visit.push(await patiently(partial(self._greeting, visit), "greeting_waits"))
        except IotSphereError as error:
            log.error("not_greeted", device=visit.principal.identity, code=error.code, message=error.message)
        finally:
            visit.greeting = None


def _is_own(principal: Principal, record: Record) -> bool:
    return principal.kind == "device" and record.topic.startswith(f"{principal.domain}/devices/{principal.name}/")
