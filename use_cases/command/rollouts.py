"""Rollouts: giving a command or a desired change to a fleet, device by device, across restarts.

The devices are selected once and written down. What each is given has an id that follows from the rollout and the
device, so a step that is repeated after a crash, or done by two processes at once, gives nothing twice.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

import structlog

from ...entities import rollout as life
from ...entities.command import FINAL
from ...entities.errors import Conflict, IotSphereError, NotFound, RequestInvalid, Unavailable
from ...entities.fleet import parse_fleet_filter
from ...entities.rollout import Rollout
from ...entities.shadow import ShadowKey
from ...entities.shadow_changes import Wanted
from ..fleet import Fleet
from ..ports.clock import Clock
from ..ports.database import Database, Stored, Write
from ..shadow.shadows import Shadows
from .commands import Commands
from .documents import COMMANDS, ROLLOUTS, TARGETS, rollout_at, rollouts_at
from .order import Order

log = structlog.get_logger("iotsphere.rollouts")

MAX_TARGETS: Final = 100_000
AT_ONCE: Final = 500
PARALLEL: Final = 50
PAGE: Final = 1_000
COUNT_EVERY_MS: Final = 2_000
ATTEMPTS: Final = 10
OPEN_PAGE: Final = 100
RECALL_FOR_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Reach:
    """What a rollout works with."""

    fleet: Fleet
    commands: Commands
    shadows: Shadows


class Rollouts:
    """Starts, steers and carries out rollouts."""

    def __init__(self, database: Database, reach: Reach, clock: Clock) -> None:
        self._database = database
        self._reach = reach
        self._clock = clock
        self._counted_at: dict[str, int] = {}
        self._said: set[tuple[str, str]] = set()  # which waits, and why, so that it is said once

    # -- asking -------------------------------------------------------------------------------------------------------

    async def start(self, rollout: Rollout) -> Rollout:
        """Begin a rollout; the same id again is the same rollout. Raises MessageRefused (filter), RequestInvalid, Conflict."""
        parse_fleet_filter(rollout.filter)
        if not 0 < rollout.rate <= life.MAX_RATE or not 1 <= rollout.growth <= 10:
            raise RequestInvalid(f"rate: more than 0 and up to {life.MAX_RATE:.0f} a minute; growth: 1 to 10")
        if not 0 <= rollout.abort_percent <= 100:
            raise RequestInvalid("abort: a percentage from 0 (never) to 100")
        begun = replace(rollout, state=life.RESOLVING, created_at=self._clock.now())
        (outcome,) = await self._database.write(ROLLOUTS.name, [Write(begun.key, None, life.body_of(begun))])
        if outcome.stands is None:
            raise Conflict(f"rollout {rollout.id} was removed at this moment: start it again")
        known = rollout_at(outcome.stands)
        if (known.kind, known.payload, known.filter) != (begun.kind, begun.payload, begun.filter):
            raise Conflict(f"{rollout.id} is the id of another rollout: choose a new one")
        return known

    async def get(self, domain: str, rollout_id: str) -> Rollout:
        """A rollout. Raises NotFound."""
        return rollout_at(await self._stored(domain, rollout_id))

    async def of_domain(self, domain: str, after: int = 0, limit: int = 100) -> Sequence[Rollout]:
        """Rollouts that were begun after a time (ms), oldest first."""
        return rollouts_at(await self._database.find(ROLLOUTS.name, "of_domain", (domain,), after=after, limit=limit))

    async def steer(self, domain: str, rollout_id: str, wish: str) -> Rollout:
        """``pause``, ``resume`` or ``cancel``; what a device was sent stays sent. Raises NotFound and Conflict."""
        for _ in range(ATTEMPTS):
            stored = await self._stored(domain, rollout_id)
            rollout = rollout_at(stored)
            state = life.LIFE.get((rollout.state, wish))
            if state is None:
                raise Conflict(f"rollout {rollout_id} is {rollout.state}: it cannot {wish}", state=rollout.state)
            recalling = state == "cancelled" and rollout.kind == "command"
            now = self._clock.now()
            over_at = now if state == "cancelled" else 0
            steered = replace(rollout, state=state, earned_at=now, over_at=over_at, recalling=recalling)
            if moved := await self._put(stored, steered):
                if recalling:
                    await self._take_back(moved)
                return moved
        raise Conflict(f"rollout {rollout_id} is changed by too many at once: repeat it")

    async def counts(self, rollout: Rollout) -> dict[str, int]:
        """How many of its commands are in which state; for desired changes how many were accepted."""
        if rollout.kind != "command":
            return {"accepted": rollout.issued - rollout.refusals}
        counts: dict[str, int] = {}
        for state in ("accepted", "queued", "sent", "acknowledged", "running", *FINAL):
            after: str | None = ""
            while after is not None:
                page = await self._database.find(
                    COMMANDS.name, "rollout", (rollout.key, state), after=after, limit=PAGE
                )
                if page:
                    counts[state] = counts.get(state, 0) + len(page)
                after = page[-1].body["id"] if len(page) == PAGE else None
        return counts

    # -- carrying out -------------------------------------------------------------------------------------------------

    async def tend(self) -> int:
        """Take each open rollout one step further. Returns how many devices were given something. Raises Unavailable."""
        given = 0
        after: int | Stored = 0
        while page := await self._database.find(ROLLOUTS.name, "open", (True,), after=after, limit=OPEN_PAGE):
            for stored in page:
                given += await self._tend_one(stored)
            after = page[-1]
            if len(page) < OPEN_PAGE or type(after.body.get("created_at")) is not int:  # those behind it are no numbers
                break
        return given

    async def _tend_one(self, stored: Stored) -> int:
        try:
            return await self._tend(stored, rollout_at(stored))
        except Unavailable:
            raise
        except (IotSphereError, LookupError, TypeError, ValueError) as error:
            # It goes on next time, unless somebody has written there what is no rollout, or are no devices of one.
            why = stored.key, str(error)
            if why not in self._said:
                log.warning("rollout_waits", rollout=stored.key, message=str(error))
            self._said = {*self._said, why} if len(self._said) < OPEN_PAGE else {why}
            return 0

    async def _tend(self, stored: Stored, rollout: Rollout) -> int:
        if rollout.state == life.RESOLVING:
            await self._resolve(stored, rollout)
        elif rollout.state == life.RUNNING:
            return await self._go_on(stored, rollout)
        elif rollout.recalling:
            await self._recall(stored, rollout)
        return 0

    async def _resolve(self, stored: Stored, rollout: Rollout) -> None:
        """Write down which devices it is for, in chunks; a crash in between goes on behind the last one."""
        wanted = parse_fleet_filter(rollout.filter)
        chunks = await self._database.scan(TARGETS.name, f"{rollout.key}@", limit=MAX_TARGETS)
        total = sum(len(chunk.body["devices"]) for chunk in chunks)
        last = chunks[-1].body["devices"][-1] if chunks else ""
        number = len(chunks)
        async with aclosing(self._reach.fleet.select(rollout.domain, wanted, last)) as pages:
            async for page in pages:
                devices = list(page)[: MAX_TARGETS - total]
                if not devices:
                    break
                body = {"schema": 1, "first": total, "devices": devices}
                await self._database.write(TARGETS.name, [Write(f"{rollout.key}@{number:06d}", None, body)])
                total += len(devices)
                number += 1
        now = self._clock.now()
        await self._put(stored, replace(rollout, state=life.RUNNING, total=total, earned=1.0, earned_at=now))

    async def _go_on(self, stored: Stored, rollout: Rollout) -> int:
        now = self._clock.now()
        earned, minutes = life.earn(rollout, now)
        devices = await self._next(rollout, min(int(earned), AT_ONCE))
        refused = await self._give(rollout, devices)
        known = dict(rollout.refused or {})
        known.update(list(refused.items())[: max(0, life.MAX_REFUSALS - len(known))])
        moved = replace(
            rollout,
            issued=rollout.issued + len(devices),
            earned=earned - len(devices),
            earned_at=now,
            minutes=minutes,
            refusals=rollout.refusals + len(refused),
            refused=known,
        )
        due = now - self._counted_at.get(rollout.key, 0) >= COUNT_EVERY_MS
        if due:
            self._counted_at[rollout.key] = now
            moved = await self._judged(moved, now)
        if not devices and moved.state == rollout.state and not due:
            return 0
        if await self._put(stored, moved) is not None and not moved.is_open:
            self._counted_at.pop(rollout.key, None)
            if moved.recalling:
                await self._take_back(moved)
        return len(devices)

    async def _judged(self, rollout: Rollout, now: int) -> Rollout:
        counts = await self.counts(rollout)
        over = {state: count for state, count in counts.items() if state in FINAL}
        if life.goes_wrong(rollout, over):
            return replace(rollout, state="aborted", over_at=now, recalling=rollout.kind == "command")
        done = rollout.issued >= rollout.total
        if done and (rollout.kind != "command" or sum(over.values()) == sum(counts.values())):
            return replace(rollout, state="finished", over_at=now)
        return rollout

    async def _next(self, rollout: Rollout, count: int) -> Sequence[str]:
        """The next devices in their order."""
        found: list[str] = []
        chunks = await self._database.scan(TARGETS.name, f"{rollout.key}@", limit=MAX_TARGETS) if count else ()
        for chunk in chunks:
            first, devices = chunk.body["first"], chunk.body["devices"]
            if first + len(devices) > rollout.issued:
                found += devices[max(0, rollout.issued - first) :]
            if len(found) >= count:
                break
        return found[:count]

    async def _give(self, rollout: Rollout, devices: Sequence[str]) -> Mapping[str, str]:
        """Give it to devices; returns why some could not be given it. Raises Unavailable."""
        refused: dict[str, str] = {}
        if rollout.kind == "desired":
            wishes = [(ShadowKey(rollout.domain, device), self._wanted(rollout, device)) for device in devices]
            for device, answer in zip(devices, await self._reach.shadows.desire_many(wishes), strict=True):
                _note(refused, device, answer if isinstance(answer, IotSphereError) else None)
            return refused
        for start in range(0, len(devices), PARALLEL):
            part = devices[start : start + PARALLEL]
            sends = (self._reach.commands.send(self._order(rollout, device)) for device in part)
            for device, sent in zip(part, await asyncio.gather(*sends, return_exceptions=True), strict=True):
                if isinstance(sent, BaseException) and not isinstance(sent, IotSphereError):
                    raise sent
                _note(refused, device, sent if isinstance(sent, IotSphereError) else None)
        return refused

    def _order(self, rollout: Rollout, device: str) -> Order:
        return Order(
            id=_id_for(rollout, device),
            domain=rollout.domain,
            device=device,
            caller=rollout.caller,
            payload=rollout.payload,
            expires_at=self._clock.now() + rollout.expires_in if rollout.expires_in else 0,
            timeout=rollout.timeout,
            rollout=rollout.key,
        )

    def _wanted(self, rollout: Rollout, device: str) -> Wanted:
        expires = self._clock.now() + rollout.expires_in if rollout.expires_in else 0
        author = rollout.caller.rpartition("/")[2]
        return Wanted(patch=rollout.payload, author=author, message_id=_id_for(rollout, device), expires_at=expires)

    async def _recall(self, stored: Stored, rollout: Rollout) -> None:
        """Cancel once more, after a crash, and for the sake of a process that was giving at that moment."""
        await self._take_back(rollout)
        if self._clock.now() - rollout.over_at >= RECALL_FOR_MS:
            await self._put(stored, replace(rollout, recalling=False))

    async def _take_back(self, rollout: Rollout) -> None:
        """Cancel what its devices have not been sent yet."""
        for state in ("accepted", "queued"):
            while page := await self._database.find(
                COMMANDS.name, "rollout", (rollout.key, state), after="", limit=AT_ONCE
            ):
                cancels = (self._reach.commands.learn(rollout.domain, each.body["id"], "cancel") for each in page)
                for answer in await asyncio.gather(*cancels, return_exceptions=True):
                    if isinstance(answer, BaseException) and not isinstance(answer, NotFound):
                        raise answer

    async def _stored(self, domain: str, rollout_id: str) -> Stored:
        stored = await self._database.get(ROLLOUTS.name, f"{domain}/{rollout_id}")
        if stored is None:
            raise NotFound
        return stored

    async def _put(self, stored: Stored, rollout: Rollout) -> Rollout | None:
        """Write it, unless another process was quicker: what that one did counts, and giving twice gives once."""
        (outcome,) = await self._database.write(ROLLOUTS.name, [Write(stored.key, stored, life.body_of(rollout))])
        return rollout if outcome.done else None


def _id_for(rollout: Rollout, device: str) -> str:
    return str(uuid.uuid5(uuid.UUID(rollout.id), device))


def _note(refused: dict[str, str], device: str, error: IotSphereError | None) -> None:
    if error is not None:
        if isinstance(error, Unavailable) or error.retry:
            raise error
        refused[device] = str(error)[:200]
