"""Commands: accepting, following and ending what callers ask of devices. Every step is written before it is told.

A command is written to the database, appended to the log with its id as the message id, and then marked as queued. What
was written and not queued is appended again by whoever repeats it, or by a timer; the log knows the id, so that is
harmless.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, NamedTuple

import structlog

from ...entities import command as life
from ...entities.command import Command
from ...entities.errors import (
    Conflict,
    DatabaseUnavailable,
    IotSphereError,
    MessageRefused,
    NotFound,
    RequestInvalid,
    Unavailable,
)
from ...entities.message import Record
from ..due import due_pages
from ..ports.clock import Clock
from ..ports.database import Database, Outcome, Stored, Write
from ..ports.message_log import Appended
from .documents import COMMANDS, ROLLOUTS, command_at, commands_at
from .order import Order
from .waits import CommandWaits

STALE_AFTER_MS: Final = 5 * 60 * 1000
REMEMBERED_MS: Final = 7 * 24 * 3600 * 1000
ATTEMPTS: Final = 12
CALLED_OFF: Final = ("aborted", "cancelled")

log = structlog.get_logger("iotsphere.commands")

Append = Callable[[Sequence[Record]], Awaitable[Appended]]
Compose = Callable[[Command, int], Record]
Known = Callable[[str, str], Awaitable[bool]]


class Sent(NamedTuple):
    """``repeated``: it was known already, and nothing was done again."""

    command: Command
    repeated: bool


class Commands:
    """``append`` makes records durable; ``compose`` (command, now) makes the request; ``known`` (domain, device id)."""

    def __init__(self, database: Database, append: Append, compose: Compose, known: Known, clock: Clock) -> None:
        self._database = database
        self._append = append
        self._compose = compose
        self._known = known
        self._clock = clock
        self._waits = CommandWaits()

    # -- asking -------------------------------------------------------------------------------------------------------

    async def send(self, order: Order) -> Sent:
        """Accept a command, unless it is known already: then it is answered as it stands, whatever its times are.

        Raises NotFound (no such device), RequestInvalid (times out of bounds), MessageRefused ``expired`` (stated
        more than five minutes from now), Conflict (the id belongs to another command), and Unavailable.
        """
        now = self._clock.now()
        command = life.accept(order.command(now))
        stored = await self._database.get(COMMANDS.name, command.key)
        if stored is None:
            order.check(now)
            if order.stated_at and abs(order.stated_at - now) > STALE_AFTER_MS:
                raise MessageRefused(
                    "the command was stated more than five minutes from now: state it anew with a new id",
                    code="expired",
                )
            if not await self._known(order.domain, order.device):
                raise NotFound
            (outcome,) = await self._database.write(COMMANDS.name, [Write(command.key, None, life.body_of(command))])
            if outcome.done and outcome.stands is not None:
                return Sent(await self._queue(outcome.stands, command), False)
            stored = outcome.stands
        if stored is None:
            raise Conflict(f"command {order.id} was removed at this moment: send it again")
        known = command_at(stored)
        if not life.same_order(known, command):
            raise Conflict(f"{order.id} is the id of another command: choose a new one", id=order.id)
        if known.state == life.ACCEPTED and known.expires_at <= now:
            known = await self._move(stored, "expire")  # as the timer would; nobody is to find it in the log any more
        elif known.state == life.ACCEPTED:
            # A crash came between the two steps. What the caller sends next must come behind it in the log.
            known = await self._queue(stored, known)
        return Sent(known, True)

    async def _queue(self, stored: Stored, command: Command) -> Command:
        """Append the request, and note where it lies: that is its place among the device's commands."""
        appended = await self._append([self._compose(command, self._clock.now())])
        position = appended.positions[0]
        order = f"{position.epoch:010d}-{position.offset:016d}"
        return await self._move(stored, "logged", order=order)

    async def cancel(self, domain: str, command_id: str) -> Command:
        """End a command that the device has not been sent yet. Raises NotFound, and Conflict when it is too late."""
        command = await self.learn(domain, command_id, "cancel")
        if command.state != "cancelled":
            why = "is over" if command.is_final else "is with the device already"
            raise Conflict(
                f"command {command_id} {why} ({command.state}) and cannot be taken back", state=command.state
            )
        return command

    # -- looking ------------------------------------------------------------------------------------------------------

    async def get(self, domain: str, command_id: str) -> Command:
        """The command. Raises NotFound."""
        stored = await self._database.get(COMMANDS.name, f"{domain}/{command_id}")
        if stored is None:
            raise NotFound
        return command_at(stored)

    async def of_device(self, domain: str, device: str, after: int = 0, limit: int = 100) -> Sequence[Command]:
        """A device's commands that were made after a time (ms), oldest first."""
        return commands_at(
            await self._database.find(COMMANDS.name, "by_device", (domain, device), after=after, limit=limit)
        )

    async def outstanding(self, domain: str, device: str, after: str = "", limit: int = 1_000) -> Sequence[Command]:
        """What the device has not acknowledged yet, in order, behind a place in it (``Command.order``).

        Some may have expired: ``claim`` finds out.
        """
        return commands_at(
            await self._database.find(COMMANDS.name, "outstanding", (domain, device, True), after=after, limit=limit)
        )

    async def wait(self, domain: str, command_id: str, seconds: float) -> Command:
        """The command once it is over, or as it is when the time has passed. Raises NotFound, and Conflict."""
        return await self._waits(f"{domain}/{command_id}", lambda: self.get(domain, command_id), seconds)

    @property
    def waiting(self) -> int:
        """How many callers wait here."""
        return self._waits.count

    # -- learning -----------------------------------------------------------------------------------------------------

    async def learn(
        self, domain: str, command_id: str, evidence: str, answer: Mapping[str, Any] | None = None
    ) -> Command:
        """Move a command on by what was learned of it. Repeating is safe. Raises NotFound and Unavailable."""
        stored = await self._database.get(COMMANDS.name, f"{domain}/{command_id}")
        if stored is None:
            raise NotFound
        return await self._move(stored, evidence, answer)

    async def respond(
        self, domain: str, device: str, command_id: str, evidence: str, answer: Mapping[str, Any]
    ) -> Command:
        """What a device answers. Raises MessageRefused: unknown_command, topic_mismatch (another device's command)."""
        stored = await self._database.get(COMMANDS.name, f"{domain}/{command_id}")
        if stored is None:
            raise MessageRefused(f"there is no command {command_id}: it may be too old", code="unknown_command")
        try:
            command = command_at(stored)
        except RequestInvalid as error:
            raise MessageRefused(error.message, code="unknown_command") from error
        if command.device != device:
            raise MessageRefused(f"command {command_id} is not for {device!a}", code="topic_mismatch")
        return await self._move(stored, evidence, answer)

    async def claim(
        self, domain: str, device: str, command_id: str, *, again: bool = False, carrier: str = ""
    ) -> Command | None:
        """Mark a command as sent, and return it if it is the caller's to hand to the device now.

        None: it is for another device, is over, or was handed over before; with ``again``, one that the device has not
        acknowledged is handed over once more. ``carrier``: the session or connection that it is handed to; what is marked
        for it is its own. Raises NotFound and Unavailable.
        """

        def claimed(command: Command, now: int) -> Command | None:
            mine = again or command.state != life.SENT or (carrier != "" and command.carrier == carrier)
            if command.device != device or not command.is_outstanding or not mine:
                return None
            evidence = "expire" if command.state != life.SENT and command.expires_at <= now else "sent"
            moved = life.advance(command, evidence, now)
            return moved if moved.is_final else replace(moved, carrier=carrier)

        moved = await self._change(f"{domain}/{command_id}", claimed)
        return None if moved is None or moved.is_final else moved

    async def give_back(self, domain: str, command_id: str, carrier: str) -> bool:
        """Queue a command again that was marked for a carrier and for sure has not left with it.

        False: it is somebody else's by now, or was answered. What belongs to a rollout that was called off meanwhile is
        cancelled. Repeating is safe. Raises NotFound and Unavailable.
        """

        def queued(command: Command, now: int) -> Command | None:
            mine = command.state == life.SENT and command.carrier == carrier
            return replace(life.advance(command, "unsent", now), carrier="") if mine else None

        given_back = await self._change(f"{domain}/{command_id}", queued)
        if given_back is not None and given_back.rollout:
            rollout = await self._database.get(ROLLOUTS.name, given_back.rollout)
            if rollout is not None and rollout.body.get("state") in CALLED_OFF:
                await self.learn(domain, command_id, "cancel")
        return given_back is not None

    async def _change(self, key: str, change: Callable[[Command, int], Command | None]) -> Command | None:
        """Write what ``change`` (command, now) makes of it; None where that is nothing."""
        for _ in range(ATTEMPTS):
            stored = await self._database.get(COMMANDS.name, key)
            if stored is None:
                raise NotFound
            command = command_at(stored)
            moved = change(command, self._clock.now())
            if moved is None or moved == command or (await self._write(stored, moved)).done:
                return moved
        raise DatabaseUnavailable(f"command {key} is changed by too many at once: repeat it")

    async def tend(self, limit: int = 500) -> int:
        """Do what time asks for: expire, time out, append again. Returns how many commands moved. Raises Unavailable."""
        now = self._clock.now()
        moved = 0
        async with aclosing(due_pages(self._database, COMMANDS.name, (True,), now, limit)) as pages:
            async for page in pages:
                for stored in page:
                    moved += await self._tend(stored, now)
        return moved

    async def _tend(self, stored: Stored, now: int) -> bool:
        try:
            command = command_at(stored)
            evidence = life.timed_evidence(command, now)
            if evidence == "heal":
                await self._queue(stored, command)
            elif evidence is not None:
                await self.learn(command.domain, command.id, evidence)
        except Unavailable:
            raise
        except IotSphereError as error:
            # Somebody else has moved or removed it at this moment, or has written there what is no command.
            log.debug("command_not_tended", command=stored.key, code=error.code, message=error.message)
            return False
        return evidence is not None

    async def _move(
        self, stored: Stored, evidence: str, answer: Mapping[str, Any] | None = None, order: str = ""
    ) -> Command:
        for attempt in range(ATTEMPTS):
            command = command_at(stored)
            moved = life.advance(command, evidence, self._clock.now(), answer)
            if order and not moved.order:
                moved = replace(moved, order=order)
            if moved == command:
                return command
            outcome = await self._write(stored, moved)
            if outcome.done:
                return moved
            if outcome.stands is None:
                raise NotFound
            stored = outcome.stands
            await asyncio.sleep(random.uniform(0, 0.01) * attempt)
        raise Conflict(f"command {stored.key} is changed by too many at once: repeat it")

    async def _write(self, stored: Stored, moved: Command) -> Outcome:
        body = life.body_of(moved)
        if moved.is_final:
            body["removeAt"] = self._clock.now() + REMEMBERED_MS
        (outcome,) = await self._database.write(COMMANDS.name, [Write(stored.key, stored, body)])
        if outcome.done:
            self._waits.moved(stored.key)
        return outcome
