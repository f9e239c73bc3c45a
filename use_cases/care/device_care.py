"""Care for connected devices: what each gets first, which commands are handed to it, and what became of them.

A device that comes gets one delta per shadow and its open commands, whatever the log's backlog holds. A command is handed
over only after the database says that it is on its way, one after the other per device: so one that was cancelled, has
expired or was handed over elsewhere is never sent. While the database is away, devices are greeted once it is back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

import structlog

from ...entities.command import SENT, Command
from ...entities.errors import IotSphereError
from ...entities.message import Record
from ...entities.principal import Principal
from ...entities.shadow import Shadow, ShadowKey
from ...entities.topic import parse_topic
from ..command.commands import Commands
from ..session.state import Wanted
from ..shadow.shadows import Shadows
from .evidence import RETRY_S, Evidence, patiently

log = structlog.get_logger("iotsphere.care")

Push: TypeAlias = Callable[[Iterable[Record]], None]
REQUEST: Final = "/commands/request"
DELTA: Final = "/delta"
REFUSED: Final = {"reason": "the device refused the message"}
GREET_WITHIN_S: Final = 1.0
MAX_WAITING: Final = 1_000
MAX_QUEUED: Final = 64
QUEUED_AT_MOST_S: Final = 30.0


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


class _Visit:
    """One connection. ``sequences``: the deltas that it was greeted with. ``commands``: taken on here, and not yet known
    to be with the device; ``waiting``: those of them that are to be handed over; ``queued``: handed over, and not at the
    socket. ``behind``: there are more in the database."""

    def __init__(self, principal: Principal, push: Push) -> None:
        self.principal = principal
        self.push = push
        self.wanted: Collection[Wanted] = ()
        self.sequences: dict[ShadowKey, int] = {}
        self.commands: set[str] = set()
        self.waiting: deque[tuple[str, bool]] = deque()
        self.queued: set[str] = set()
        self.room = asyncio.Event()
        self.behind = False
        self.over = False
        self.handing: asyncio.Task[None] | None = None
        self.greeting: asyncio.Task[None] | None = None

    def wants(self, topic: str) -> list[Wanted]:
        """The filters that select a topic."""
        return [each for each in self.wanted if each.filter.matches(topic)]

    @property
    def qos(self) -> int:
        """At which QoS commands go out."""
        topic = f"{self.principal.domain}/devices/{self.principal.name}{REQUEST}"
        return max((each.qos for each in self.wants(topic)), default=0)


class DeviceCare:
    """What ``gateways.mqtt.door.DeviceCare`` asks for. A device is cared for on its own topics only."""

    def __init__(self, shadows: Shadows, commands: Commands, records: CareRecords) -> None:
        self._shadows = shadows
        self._commands = commands
        self._records = records
        self._visits: dict[str, dict[Push, _Visit]] = {}
        self._evidence = Evidence()

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

    async def greet(self, principal: Principal, wanted: Collection[Wanted], push: Push) -> Sequence[Record]:
        """The open deltas that the filters select and this connection has not had; its commands follow by ``push``.

        What the database does not tell within a second follows once it does.
        """
        visits = self._visits.setdefault(principal.identity, {})
        visit = visits.setdefault(push, _Visit(principal, push))
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
        if not visits:
            self._visits.pop(principal.identity, None)

    def skip(self, principal: Principal, record: Record, push: Push) -> bool:
        """Old deltas are; commands always are, since they are handed over one by one."""
        visit = self._visit(principal, record, push)
        if visit is None:
            return False
        if record.topic.endswith(REQUEST):
            if record.message_id not in visit.commands:
                self._await_turn(visit, record.message_id, again=False)
            return True
        key, sequence = self._records.delta_of(record)
        return sequence <= visit.sequences.get(key, 0)

    def sent(self, principal: Principal, record: Record, push: Push) -> None:
        """A delta is on its way; commands were marked before."""
        visit = self._visit(principal, record, push)
        if visit is None:
            return
        if record.topic.endswith(REQUEST):
            visit.queued.discard(record.message_id)
            visit.room.set()
            if not visit.qos:
                visit.commands.discard(record.message_id)
            return
        key, sequence = self._records.delta_of(record)
        visit.sequences[key] = max(sequence, visit.sequences.get(key, 0))
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
            visit.commands.discard(record.message_id)
            if visit.behind:
                self._begin(visit)
        evidence, answer = ("reject", REFUSED) if refused else ("acknowledged", None)
        self._evidence.note(lambda: self._commands.learn(principal.domain, record.message_id, evidence, answer))

    def _visit(self, principal: Principal, record: Record, push: Push) -> _Visit | None:
        """The connection, where the message is for the device behind it."""
        return self._visits.get(principal.identity, {}).get(push) if _is_own(principal, record) else None

    # -- greeting -----------------------------------------------------------------------------------------------------

    async def _greeting(self, visit: _Visit) -> Sequence[Record]:
        domain, device = visit.principal.domain, visit.principal.name
        shadows: Sequence[Shadow] = ()
        if any("shadow" in each.filter.channels for each in visit.wanted):
            shadows = await self._shadows.of_device(domain, device)
        commands: Sequence[Command] = ()
        if visit.wants(f"{domain}/devices/{device}{REQUEST}"):
            commands = await self._commands.outstanding(domain, device, limit=MAX_WAITING)
        if visit.over:
            return ()
        found: list[Record] = []
        for shadow in shadows:  # nothing is awaited from here on, so this connection is told all of it or nothing
            if shadow.sequence > visit.sequences.get(shadow.key, -1) and visit.wants(shadow.key.topic("delta")):
                visit.sequences[shadow.key] = shadow.sequence
                if shadow.delta:
                    found.append(self._records.delta(shadow))
        self._take_on(visit, commands, again=visit.qos == 1)  # at QoS 2 a device may hold what it has not answered
        visit.behind = visit.behind or len(commands) == MAX_WAITING
        return found

    async def _greet_late(self, visit: _Visit) -> None:
        await asyncio.sleep(RETRY_S[0])
        try:
            visit.push(await patiently(partial(self._greeting, visit), "greeting_waits"))
        except IotSphereError as error:
            log.error("not_greeted", device=visit.principal.identity, code=error.code, message=error.message)
        finally:
            visit.greeting = None

    # -- handing over -------------------------------------------------------------------------------------------------

    def _take_on(self, visit: _Visit, commands: Sequence[Command], *, again: bool) -> bool:
        """Let those wait their turn that are not here yet; ``again``: also what was sent and not acknowledged."""
        others = [other for other in self._visits[visit.principal.identity].values() if other is not visit]
        found = False
        for command in commands:
            if command.id not in visit.commands and (again or command.state != SENT):
                self._await_turn(visit, command.id, again and not any(command.id in other.commands for other in others))
                found = True
        return found

    def _await_turn(self, visit: _Visit, command_id: str, again: bool) -> None:
        if len(visit.waiting) >= MAX_WAITING:
            visit.behind = True  # it is looked up in the database when its turn comes
        else:
            visit.commands.add(command_id)
            visit.waiting.append((command_id, again))
        self._begin(visit)

    def _begin(self, visit: _Visit) -> None:
        if visit.handing is None and not visit.over:
            visit.handing = asyncio.get_running_loop().create_task(self._hand_over(visit))

    async def _hand_over(self, visit: _Visit) -> None:
        try:
            while visit.waiting or (visit.behind and await self._look_up(visit)):
                await self._room_for_more(visit)
                command_id, again = visit.waiting[0]
                record = await self._claimed(visit.principal, command_id, again)
                visit.waiting.popleft()
                if record is None:
                    visit.commands.discard(command_id)
                else:
                    visit.queued.add(command_id)
                    visit.push((record,))
        finally:
            visit.handing = None

    async def _look_up(self, visit: _Visit) -> bool:
        """Take on a page of what was too much before. False: there is nothing that is not under way."""
        visit.behind = False
        domain, device = visit.principal.domain, visit.principal.name
        after = ""
        while page := await patiently(
            partial(self._commands.outstanding, domain, device, after, MAX_WAITING), "commands_wait"
        ):
            if self._take_on(visit, page, again=False):
                visit.behind = True
                return True
            after = page[-1].order
        return False

    async def _room_for_more(self, visit: _Visit) -> None:
        """Wait while many are on their way to a socket that takes none, so that they can still be taken back."""
        while len(visit.queued) >= MAX_QUEUED:
            visit.room.clear()
            try:
                await asyncio.wait_for(visit.room.wait(), QUEUED_AT_MOST_S)
            except TimeoutError:
                visit.queued.clear()  # some were too large for the client, or it wants none any more

    async def _claimed(self, principal: Principal, command_id: str, again: bool) -> Record | None:
        """The command's message, if this connection is to hand it over now."""
        claim = partial(self._commands.claim, principal.domain, principal.name, command_id, again)
        try:
            command = await patiently(claim, "command_waits")
            return None if command is None else self._records.request(command)
        except IotSphereError as error:  # it has been removed, or has expired at this moment
            log.info("command_not_handed_over", code=error.code, command=command_id)
            return None


def _is_own(principal: Principal, record: Record) -> bool:
    return principal.kind == "device" and record.topic.startswith(f"{principal.domain}/devices/{principal.name}/")
