"""Hands commands over to a connected device: one after the other, and only once the database says that one is on its way.

So one that was cancelled, has expired or was handed over elsewhere is never sent. One that did not reach the socket of a
connection that has ended is queued again; of one that did, nobody knows, so it is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import structlog

from ...entities.command import SENT, Command
from ...entities.errors import IotSphereError
from ...entities.message import Record
from ..command.commands import Commands
from .evidence import Evidence, patiently
from .visit import CareVisit

log = structlog.get_logger("iotsphere.care")

MAX_WAITING: Final = 1_000
MAX_QUEUED: Final = 64
QUEUED_AT_MOST_S: Final = 30.0


class Handover:
    """``request`` makes a command's message, and raises MessageRefused such as for one that has expired.

    ``unwritten``: ids of commands that devices have answered for, which the database does not know yet.
    """

    def __init__(self, commands: Commands, request: Callable[[Command], Record], evidence: Evidence) -> None:
        self.unwritten: set[str] = set()
        self._commands = commands
        self._request = request
        self._evidence = evidence
        self._claims: set[asyncio.Task[Command | None]] = set()
        self._returning: dict[str, _Returning] = {}

    def carry_on(self, visit: CareVisit, command_id: str) -> None:
        """Hand over what was on its way to an earlier connection of the session; it is let go if it is over."""
        if command_id not in visit.commands:
            visit.take_on(command_id, True)
            self.begin(visit)

    def take_on(
        self, visit: CareVisit, commands: Sequence[Command], others: Iterable[CareVisit] = (), *, again: bool
    ) -> bool:
        """Let those wait their turn that are not here yet; ``again``: also what was sent and not acknowledged.

        At QoS 2 a device may hold what it has not answered. There that is only what was marked for its present session,
        which knows all that has left, and did not leave. ``others``: further connections of the device, which keep theirs.
        """
        qos, session = visit.qos, visit.session
        found = False
        for command in commands:
            if command.id in visit.commands:
                continue
            once_more = again and command.state == SENT
            once_more = once_more and (qos == 1 or (qos == 2 and session != "" and command.carrier == session))
            if once_more or command.state != SENT:
                once_more = once_more and not any(command.id in other.commands for other in others)
                self.await_turn(visit, command.id, once_more)
                found = True
        return found

    def await_turn(self, visit: CareVisit, command_id: str, again: bool = False) -> None:
        """Hand a command over after those that wait already."""
        if command_id in self.unwritten or command_id in visit.carried:
            return  # the device has it; or it is on its way, and comes again when the device is greeted
        if len(visit.waiting) >= MAX_WAITING:
            visit.behind = True  # it is looked up in the database when its turn comes
        else:
            visit.take_on(command_id, again)
        self.begin(visit)

    def begin(self, visit: CareVisit) -> None:
        """Go on, if there is anything to hand over."""
        if visit.handing is None and not visit.over:
            visit.handing = asyncio.get_running_loop().create_task(self._hand_over(visit))

    async def _hand_over(self, visit: CareVisit) -> None:
        try:
            while visit.waiting or (visit.behind and await self._look_up(visit)):
                await self._room_for_more(visit)
                command_id, again = visit.waiting[0]
                record = await self._claimed(visit, command_id, again)
                visit.waiting.pop(0)
                if record is None:
                    visit.commands.pop(command_id, None)
                    visit.let_go(command_id)
                else:
                    visit.queued[command_id] = None
                    if not again and len(visit.unsent) < MAX_WAITING:
                        visit.unsent[command_id] = None
                    visit.push((record,))
        finally:
            visit.handing = None

    async def _look_up(self, visit: CareVisit) -> bool:
        """Take on a page of what was too much before. False: there is nothing that is not under way."""
        visit.behind = False
        domain, device = visit.principal.domain, visit.principal.name
        after = ""
        while page := await patiently(
            partial(self._commands.outstanding, domain, device, after, MAX_WAITING), "commands_wait"
        ):
            if self.take_on(visit, page, again=False):
                visit.behind = True
                return True
            after = page[-1].order
        return False

    async def _room_for_more(self, visit: CareVisit) -> None:
        """Wait while many are on their way to a socket that takes none, so that they can still be taken back."""
        while len(visit.queued) >= MAX_QUEUED:
            visit.room = asyncio.Event()
            try:
                async with asyncio.timeout(QUEUED_AT_MOST_S):
                    await visit.room.wait()
            except TimeoutError:
                visit.queued.clear()  # some were too large for the client, or it wants none any more
            visit.room = None

    async def _claimed(self, visit: CareVisit, command_id: str, again: bool) -> Record | None:
        """The command's message, if this connection is to hand it over now."""
        try:
            command = await patiently(partial(self._claim, visit, command_id, again), "command_waits")
            return None if command is None else self._request(command)
        except IotSphereError as error:  # it has been removed, or has expired at this moment
            log.info("command_not_handed_over", code=error.code, command=command_id)
            return None

    async def _claim(self, visit: CareVisit, command_id: str, again: bool) -> Command | None:
        """Claim a command. A claim that was begun is ended also when the connection is over, and then taken back."""
        who = visit.principal

        async def claim() -> Command | None:
            try:
                return await self._commands.claim(who.domain, who.name, command_id, again=again, carrier=visit.carrier)
            finally:
                if visit.over and not again:
                    self._take_back(visit, command_id)

        task = asyncio.get_running_loop().create_task(claim())
        self._claims.add(task)
        task.add_done_callback(self._claimed_late)
        return await asyncio.shield(task)

    def _claimed_late(self, task: asyncio.Task[Command | None]) -> None:
        self._claims.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # whoever still waits for it hears of it
            log.debug("claim_failed", error=repr(error))

    # -- giving back --------------------------------------------------------------------------------------------------

    def left(self, visit: CareVisit, others: Callable[[], Iterable[CareVisit]]) -> None:
        """The connection is over: what has not reached its socket is queued again, for ``others`` of the device too."""
        visit.others = others
        unsent = list(visit.unsent)
        if visit.handing is not None and visit.waiting and not visit.waiting[0][1]:
            unsent.append(visit.waiting[0][0])  # it may have been claimed at this moment
        for command_id in unsent:
            self._take_back(visit, command_id)

    def _take_back(self, visit: CareVisit, command_id: str) -> None:
        """Queue a command again that is marked for this connection, once the database takes it."""
        domain, identity = visit.principal.domain, visit.principal.identity
        returning = self._returning.setdefault(identity, _Returning())

        def over() -> None:
            if returning.ended():
                self._returning.pop(identity, None)
                for other in visit.others() if returning.done else ():
                    if other.wants(other.requests):
                        other.behind = True  # it looks them up, and so in their order
                        if other.greeted:
                            self.begin(other)

        async def write() -> None:
            try:
                returning.done |= await self._commands.give_back(domain, command_id, visit.carrier)
            except IotSphereError as error:
                if not error.retry:
                    over()
                raise
            over()

        returning.count += 1
        if not self._evidence.note(write):
            over()

    async def returned(self, identity: str) -> None:
        """Wait until the database knows of all that did not leave on earlier connections of a device."""
        while (returning := self._returning.get(identity)) is not None:
            await returning.none.wait()


class _Returning:
    """How many commands of a device are on their way back. ``none``: set once that is over; ``done``: some are back."""

    __slots__ = ("count", "done", "none")

    def __init__(self) -> None:
        self.count = 0
        self.done = False
        self.none = asyncio.Event()

    def ended(self) -> bool:
        """One less. Tells whether there is none any more."""
        self.count -= 1
        if not self.count:
            self.none.set()
        return not self.count
