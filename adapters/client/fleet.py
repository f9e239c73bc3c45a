"""Fleets as clients reach them: labels of devices, and rollouts of commands and desired changes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

import orjson

from ...entities.errors import NotFound, RequestInvalid
from ...entities.principal import Principal
from ...entities.rollout import KINDS, Rollout
from ...entities.topic import action_on, parse_filter
from ...use_cases.command.rollouts import Rollouts
from ...use_cases.ports.clock import Clock
from ...use_cases.roster import Roster
from ..edge import Edge
from ..message_id import is_message_id
from ..shadow.requests import read_wanted
from ..timestamps import iso

_TOPICS: Final = {"command": "commands/request", "desired": "shadow/desired"}

Facts = Mapping[str, Any]


class ClientFleet:
    """Every method takes who asks first. Whoever rolls something out needs the grant for every device of the domain."""

    def __init__(self, rollouts: Rollouts, roster: Roster, edge: Edge, clock: Clock) -> None:
        self._rollouts = rollouts
        self._roster = roster
        self._edge = edge
        self._clock = clock

    async def label(self, who: Principal, device: str, labels: Mapping[str, str | None]) -> Facts:
        """Change a device's labels; None takes one away."""
        return {"labels": await self._roster.keep(who.domain, device, labels)}

    async def forget(self, who: Principal, device: str) -> None:
        """A device was removed."""
        await self._roster.drop(who.domain, device)

    async def labels(self, who: Principal, device: str) -> Facts:
        """A device's labels. Raises NotFound."""
        found = await self._roster.labels(who.domain, [device])
        if device not in found:
            raise NotFound
        return {"labels": found[device]}

    async def start(self, who: Principal, rollout: Facts) -> Facts:
        """Begin a rollout: ``kind``, ``payload``, ``filter``, ``rate``, ``growth``, ``abort_percent``, ``abort_minimum``,
        ``timeout`` and ``expires_in`` (seconds), and ``id`` (a UUID, with which repeating is safe)."""
        kind, payload = rollout["kind"], rollout["payload"]
        if kind not in KINDS:
            raise RequestInvalid(f"kind: one of {', '.join(KINDS)}")
        self._require(who, kind)
        rollout_id = rollout.get("id") or str(uuid.uuid4())
        if not is_message_id(rollout_id):
            raise RequestInvalid("id: a UUID in lower case")
        probe = f"{who.domain}/devices/any/{_TOPICS[kind]}"
        body = {"desired": payload} if kind == "desired" else payload
        self._edge.admit(
            self._edge.route(who, probe, action_on(probe)),
            orjson.dumps({"metadata": {}, "payload": body}),
            self._clock.now(),
        )
        if kind == "desired":
            read_wanted(body, who.name)
        begun = await self._rollouts.start(
            Rollout(
                id=rollout_id,
                domain=who.domain,
                caller=who.identity,
                kind=kind,
                payload=payload,
                filter=rollout["filter"],
                rate=rollout["rate"],
                growth=rollout.get("growth", 1.0),
                abort_percent=rollout.get("abort_percent", 0.0),
                abort_minimum=rollout.get("abort_minimum", 1),
                timeout=int(rollout.get("timeout", 0) * 1000),
                expires_in=int(rollout.get("expires_in", 0) * 1000),
                created_at=self._clock.now(),
            )
        )
        return await self._facts(begun)

    async def get(self, who: Principal, rollout_id: str) -> Facts:
        """A rollout with its progress. Raises NotFound."""
        return await self._facts(await self._mine(who, rollout_id))

    async def all(self, who: Principal, after: int = 0, limit: int = 100) -> list[Facts]:
        """Rollouts that were begun after a time (ms), oldest first."""
        found = await self._rollouts.of_domain(who.domain, after, limit)
        return [await self._facts(rollout) for rollout in found if self._may(who, rollout.kind)]

    async def steer(self, who: Principal, rollout_id: str, wish: str) -> Facts:
        """``pause``, ``resume`` or ``cancel``. Raises NotFound and Conflict."""
        await self._mine(who, rollout_id)
        return await self._facts(await self._rollouts.steer(who.domain, rollout_id, wish))

    async def _mine(self, who: Principal, rollout_id: str) -> Rollout:
        rollout = await self._rollouts.get(who.domain, rollout_id)
        if not self._may(who, rollout.kind):
            raise NotFound
        return rollout

    def _may(self, who: Principal, kind: str) -> bool:
        wanted = parse_filter(f"{who.domain}/devices/+/{_TOPICS[kind]}")
        return who.may_all("command" if kind == "command" else "publish", wanted)

    def _require(self, who: Principal, kind: str) -> None:
        wanted = parse_filter(f"{who.domain}/devices/+/{_TOPICS[kind]}")
        who.require("command" if kind == "command" else "publish", (wanted,))

    async def _facts(self, rollout: Rollout) -> Facts:
        return {
            "rolloutId": rollout.id,
            "kind": rollout.kind,
            "state": rollout.state,
            "payload": dict(rollout.payload),
            "filter": dict(rollout.filter),
            "ratePerMinute": rollout.rate,
            "growth": rollout.growth,
            "abort": {"percent": rollout.abort_percent, "minimum": rollout.abort_minimum},
            "caller": rollout.caller,
            "createdAt": iso(rollout.created_at),
            "total": rollout.total,
            "issued": rollout.issued,
            "counts": await self._rollouts.counts(rollout),
            "refusals": rollout.refusals,
            "refused": dict(rollout.refused or {}),
        }
