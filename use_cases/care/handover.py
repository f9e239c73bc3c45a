"""Hands commands over to a connected device: one after the other, and only once the database says that one is on its way.

So one that was cancelled, has expired or was handed over elsewhere is never sent.
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
from .evidence import patiently
from .visit import CareVisit

log = structlog.get_logger("iotsphere.care")

MAX_WAITING: Final = 1_000
MAX_QUEUED: Final = 64
QUEUED_AT_MOST_S: Final = 30.0


class Handover:
    """``request`` makes a command's message, and raises MessageRefused such as for one that has expired.

    ``unwritten``: ids of commands that devices have answered for, which the database does not know yet.
    """

    def __init__(self, commands: Commands, request: Callable[[Command], Record]) -> None:
        self.unwritten: set[str] = set()
        self._commands = commands
        self._request = request

    def carry_on(self, visit: CareVisit, command_id: str) -> None:
        """Hand over what was on its way to an earlier connection of the session; it is let go if it is over."""
        if command_id not in visit.commands:
            visit.commands[command_id] = None
            visit.waiting.append((command_id, True))
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
            once_more = again and (qos == 1 or (qos == 2 and session != "" and command.carrier == session))
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
            visit.commands[command_id] = None
            visit.waiting.append((command_id, again))
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
                await asyncio.wait_for(visit.room.wait(), QUEUED_AT_MOST_S)
            except TimeoutError:
                visit.queued.clear()  # some were too large for the client, or it wants none any more
            visit.room = None

    async def _claimed(self, visit: CareVisit, command_id: str, again: bool) -> Record | None:
        """The command's message, if this connection is to hand it over now."""
        who, carrier = visit.principal, visit.session if visit.qos else ""
        claim = partial(self._commands.claim, who.domain, who.name, command_id, again=again, carrier=carrier)
        try:
            command = await patiently(claim, "command_waits")
            return None if command is None else self._request(command)
        except IotSphereError as error:  # it has been removed, or has expired at this moment
            log.info("command_not_handed_over", code=error.code, command=command_id)
            return None
