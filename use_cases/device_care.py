"""Care for connected devices: what each gets first, which commands are handed to it, and what became of them.

A device that comes gets one delta per shadow and its open commands, whatever the log's backlog holds. A command is handed
over only after the database says that it is on its way, one after the other per device: so one that was cancelled,
has expired or was handed over by another process is never sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, Protocol, TypeAlias

import structlog

from ..entities.command import Command
from ..entities.errors import IotSphereError
from ..entities.message import Record
from ..entities.principal import Principal
from ..entities.shadow import Shadow, ShadowKey
from ..entities.topic import parse_topic
from .commands import Commands
from .session_state import Wanted
from .shadows import Shadows

log = structlog.get_logger("iotsphere.care")

Push: TypeAlias = Callable[[Iterable[Record]], None]
REQUEST: Final = "/commands/request"
DELTA: Final = "/delta"
MAX_EVIDENCE: Final = 10_000
CHUNK: Final = 100
REFUSED: Final = {"reason": "the device refused the message"}
RETRY_S: Final = (0.1, 5.0)


class CareRecords(Protocol):
    """Messages that devices get from here."""

    def request(self, command: Command) -> Record:
        """A command, as it lies in the log."""
        ...

    def delta(self, shadow: Shadow) -> Record:
        """What the device has yet to take on."""
        ...

    def delta_of(self, record: Record) -> tuple[ShadowKey, int]:
        """The shadow and the sequence of a message on a delta topic."""
        ...


class _Visit:
    """One connection: what it was greeted with, and the commands that wait to be handed over."""

    def __init__(self) -> None:
        self.sequences: dict[ShadowKey, int] = {}
        self.commands: set[str] = set()
        self.waiting: deque[tuple[str, bool]] = deque()
        self.handing: asyncio.Task[None] | None = None
        self.at_least_once = False


class DeviceCare:
    """What ``gateways.mqtt.door.DeviceCare`` asks for. ``dropped`` counts evidence that could not be kept."""

    def __init__(self, shadows: Shadows, commands: Commands, records: CareRecords) -> None:
        self._shadows = shadows
        self._commands = commands
        self._records = records
        self._visits: dict[str, dict[Push, _Visit]] = {}
        self._evidence: deque[Callable[[], Awaitable[object]]] = deque()
        self._told = asyncio.Event()
        self.dropped = 0

    def watches(self, topic: str) -> bool:
        """Commands and deltas."""
        return topic.endswith(REQUEST) or (topic.endswith(DELTA) and parse_topic(topic).channel == "shadow")

    async def greet(self, principal: Principal, wanted: Collection[Wanted], push: Push) -> Sequence[Record]:
        """The open deltas and commands that the filters select and this connection has not had. Raises Unavailable."""
        domain, device = principal.domain, principal.name
        visit = self._visits.setdefault(principal.identity, {}).setdefault(push, _Visit())
        found: list[Record] = []
        if any("shadow" in each.filter.channels for each in wanted):
            for shadow in await self._shadows.of_device(domain, device):
                topic = shadow.key.topic("delta")
                if shadow.key in visit.sequences or not any(each.filter.matches(topic) for each in wanted):
                    continue
                visit.sequences[shadow.key] = shadow.sequence
                if shadow.delta:
                    found.append(self._records.delta(shadow))
        chosen = [each for each in wanted if each.filter.matches(f"{domain}/devices/{device}{REQUEST}")]
        if chosen:
            visit.at_least_once = any(each.qos for each in chosen)
            others = [other for other in self._visits[principal.identity].values() if other is not visit]
            for command in await self._commands.outstanding(domain, device):
                if command.id not in visit.commands:
                    again = visit.at_least_once and not any(command.id in other.commands for other in others)
                    self._await_turn(principal, push, command.id, again)
        return found

    def left(self, principal: Principal, push: Push) -> None:
        """The connection is over."""
        visits = self._visits.get(principal.identity, {})
        visit = visits.pop(push, None)
        if visit is not None and visit.handing is not None:
            visit.handing.cancel()
        if not visits:
            self._visits.pop(principal.identity, None)

    def skip(self, principal: Principal, record: Record) -> bool:
        """Old deltas are; commands always are, since they are handed over one by one."""
        visits = self._visits.get(principal.identity, {})
        if record.topic.endswith(REQUEST):
            for push, visit in tuple(visits.items()):
                if record.message_id not in visit.commands:
                    self._await_turn(principal, push, record.message_id, again=False)
            return True
        key, sequence = self._records.delta_of(record)
        known = max((visit.sequences.get(key, 0) for visit in visits.values()), default=0)
        return sequence <= known

    def sent(self, principal: Principal, record: Record) -> None:
        """A delta is on its way; commands were marked before."""
        if record.topic.endswith(DELTA) and principal.kind == "device":
            key, sequence = self._records.delta_of(record)
            self._note(lambda: self._shadows.deliver([(key, sequence, "delivered")]))

    def acknowledged(self, principal: Principal, record: Record, refused: bool) -> None:
        """The device has it, or refused it on the level of the protocol."""
        if record.topic.endswith(DELTA):
            if not refused:
                key, sequence = self._records.delta_of(record)
                self._note(lambda: self._shadows.deliver([(key, sequence, "acknowledged")]))
            return
        for visit in self._visits.get(principal.identity, {}).values():
            visit.commands.discard(record.message_id)
        evidence, answer = ("reject", REFUSED) if refused else ("acknowledged", None)
        self._note(lambda: self._commands.learn(principal.domain, record.message_id, evidence, answer))

    async def run(self) -> None:
        """Write evidence down for ever; what the database does not take now is tried again."""
        while True:
            while self._evidence:
                chunk = [self._evidence.popleft() for _ in range(min(CHUNK, len(self._evidence)))]
                await asyncio.gather(*(_until_taken(write) for write in chunk))
            self._told.clear()
            await self._told.wait()

    # -- handing over -------------------------------------------------------------------------------------------------

    def _await_turn(self, principal: Principal, push: Push, command_id: str, again: bool) -> None:
        visit = self._visits[principal.identity][push]
        visit.commands.add(command_id)
        visit.waiting.append((command_id, again))
        if visit.handing is None:
            visit.handing = asyncio.get_running_loop().create_task(self._hand_over(principal, push, visit))

    async def _hand_over(self, principal: Principal, push: Push, visit: _Visit) -> None:
        try:
            while visit.waiting:
                command_id, again = visit.waiting[0]
                command = await self._claimed(principal.domain, command_id, again)
                visit.waiting.popleft()
                if command is not None and command.device == principal.name:
                    push((self._records.request(command),))
                else:
                    visit.commands.discard(command_id)
        finally:
            visit.handing = None

    async def _claimed(self, domain: str, command_id: str, again: bool) -> Command | None:
        """The command, if this connection is to hand it over now."""
        pause, longest = RETRY_S
        while True:
            try:
                return await self._commands.claim(domain, command_id, again)
            except IotSphereError as error:
                if not error.retry:
                    log.warning("command_not_handed_over", code=error.code, command=command_id)
                    return None
                log.warning("command_waits", code=error.code, command=command_id)
                await asyncio.sleep(pause)
                pause = min(pause * 2, longest)

    # -- evidence -----------------------------------------------------------------------------------------------------

    def _note(self, write: Callable[[], Awaitable[object]]) -> None:
        if len(self._evidence) >= MAX_EVIDENCE:
            self.dropped += 1  # the device's answer will tell it all the same
            return
        self._evidence.append(write)
        self._told.set()


async def _until_taken(write: Callable[[], Awaitable[object]]) -> None:
    pause, longest = RETRY_S
    while True:
        try:
            await write()
        except IotSphereError as error:
            if not error.retry:
                log.info("evidence_of_nothing", code=error.code)  # what it was about has been removed
                return
            log.warning("evidence_waits", code=error.code)
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)
        else:
            return
