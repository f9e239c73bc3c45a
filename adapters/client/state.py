"""Shadows, commands and what users have, as clients ask for them: grants are checked here, and answers are facts.

The WebSocket door, the HTTP door and the Python API all come through here, so the same rules hold for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from ...entities.command import Command, derived_id
from ...entities.errors import MessageRefused, NotFound, RequestInvalid
from ...entities.principal import Principal
from ...entities.shadow import Shadow, ShadowKey
from ...entities.topic import action_on, is_device_id, is_shadow_name, is_user_id
from ...use_cases.command.commands import Commands
from ...use_cases.command.order import Order
from ...use_cases.ports.clock import Clock
from ...use_cases.shadow.history import ShadowHistory
from ...use_cases.shadow.shadows import Shadows
from ...use_cases.users import Notifications, Preferences
from ..command_messages import facts_of
from ..edge import Edge
from ..message_id import MessageIds, is_message_id
from ..requests import Requests
from ..shadow.messages import document_payload
from ..strict_json import survey, too_deep
from ..timestamps import iso

MAX_WAIT_S: Final = 300.0
MAX_PAGE: Final = 1_000

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StateUseCases:
    """What clients reach beside messages."""

    requests: Requests
    shadows: Shadows
    history: ShadowHistory
    commands: Commands
    notifications: Notifications
    preferences: Preferences


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A command as a client asks for it. Times in seconds; ``expires_at`` in ms since 1970; 0 for the defaults."""

    device: str
    payload: object
    id: str | None = None
    idempotency_key: str | None = None
    expires_at: int = 0
    timeout: float = 0.0
    wait: float = 0.0


class ClientState:
    """Every method takes who asks first. They raise Forbidden, NotFound, RequestInvalid and what the use cases raise."""

    def __init__(self, use_cases: StateUseCases, edge: Edge, clock: Clock) -> None:
        self.use = use_cases
        self._edge = edge
        self._clock = clock
        self._mint = MessageIds().mint

    # -- shadows ------------------------------------------------------------------------------------------------------

    async def shadow(
        self, who: Principal, device: str, name: str = "", *, as_of: int | None = None, version: int | None = None
    ) -> Facts:
        """A shadow as it is, as it was at a time (ms), or at a version."""
        key = _shadow_key(who, device, name)
        _require(who, "subscribe", key.topic("document"))
        if as_of is not None and version is not None:
            raise RequestInvalid("ask for a time or for a version, not for both")
        if as_of is not None:
            return _shadow_facts(await self.use.history.at_time(key, as_of))
        if version is not None:
            return _shadow_facts(await self.use.history.at_version(key, version))
        return _shadow_facts(await self.use.shadows.get(key))

    async def shadows_of(self, who: Principal, device: str) -> list[Facts]:
        """All shadows of a device, the main one first."""
        found = await self.use.shadows.of_device(who.domain, _device(device))
        return [_shadow_facts(each) for each in found if who.may("subscribe", each.key.topic("document"))]

    async def shadow_versions(
        self, who: Principal, device: str, name: str = "", after: int = 0, limit: int = 100
    ) -> list[Facts]:
        """The versions after one, in order."""
        key = _shadow_key(who, device, name)
        _require(who, "subscribe", key.topic("document"))
        found = await self.use.history.versions(key, after, min(limit, MAX_PAGE))
        return [_shadow_facts(each) for each in found]

    async def change_shadow(
        self, who: Principal, device: str, name: str, request: Facts, message_id: str | None = None
    ) -> Facts:
        """Change what is desired (``{"desired": patch, "version"?, "expires"?, "expiresAt"?}``) or delete it."""
        return await self._ask(who, _shadow_key(who, device, name).topic("desired"), request, message_id)

    async def _ask(self, who: Principal, topic: str, payload: Facts, message_id: str | None) -> Facts:
        """Send a request through the edge, as if it had been published, and have it decided."""
        route = self._edge.route(who, topic, action_on(topic))
        record = self._edge.admit(route, _encoded(payload), self._clock.now(), message_id=message_id)
        decided = await self.use.requests(who, record)
        return {"messageId": record.message_id, **decided}

    # -- commands -----------------------------------------------------------------------------------------------------

    async def command(self, who: Principal, ask: Ask) -> Facts:
        """Send a command; with ``wait``, answer when it is over or the time has passed."""
        topic = f"{who.domain}/devices/{_device(ask.device)}/commands/request"
        now = self._clock.now()
        command_id = ask.id or self._mint(now)
        if ask.idempotency_key:
            if ask.id:
                raise RequestInvalid("send an id or an idempotency key, not both")
            command_id = derived_id(who.domain, who.identity, ask.idempotency_key)
        if not is_message_id(command_id):
            raise RequestInvalid("id: a command's id is a UUID in lower case")
        if not isinstance(ask.payload, dict):
            raise RequestInvalid('payload: a command is a JSON object such as {"action": "open"}')
        route = self._edge.route(who, topic, action_on(topic))
        self._edge.admit(route, _encoded({"metadata": {}, "payload": ask.payload}), now)  # the rules for keys hold
        sent = await self.use.commands.send(
            Order(
                id=command_id,
                domain=who.domain,
                device=ask.device,
                caller=who.identity,
                payload=ask.payload,
                expires_at=ask.expires_at,
                timeout=int(ask.timeout * 1000),
            )
        )
        command = sent.command
        if ask.wait and not command.is_final:
            command = await self.use.commands.wait(who.domain, command.id, min(ask.wait, MAX_WAIT_S))
        return {**facts_of(command), "repeated": sent.repeated}

    async def command_state(self, who: Principal, command_id: str, wait: float = 0.0) -> Facts:
        """A command as it is now; with ``wait``, once it is over or the time has passed."""
        command = await self._command(who, command_id, "subscribe", "status")
        if wait and not command.is_final:
            command = await self.use.commands.wait(who.domain, command_id, min(wait, MAX_WAIT_S))
        return facts_of(command)

    async def cancel(self, who: Principal, command_id: str) -> Facts:
        """Take a command back that its device has not been sent. Raises Conflict when it is too late."""
        await self._command(who, command_id, "command", "request")
        return facts_of(await self.use.commands.cancel(who.domain, command_id))

    async def commands_of(self, who: Principal, device: str, after: int = 0, limit: int = 100) -> list[Facts]:
        """A device's commands that were made after a time (ms), oldest first."""
        _require(who, "subscribe", f"{who.domain}/devices/{_device(device)}/commands/status")
        found = await self.use.commands.of_device(who.domain, device, after, min(limit, MAX_PAGE))
        return [facts_of(command) for command in found]

    async def _command(self, who: Principal, command_id: str, action: str, kind: str) -> Command:
        command = await self.use.commands.get(who.domain, command_id)
        if not who.may(action, f"{who.domain}/devices/{command.device}/commands/{kind}"):
            raise NotFound
        return command

    # -- users --------------------------------------------------------------------------------------------------------

    async def notifications(
        self, who: Principal, user: str, *, unread: bool = True, after: int = 0, limit: int = 100
    ) -> list[Facts]:
        """A user's notifications, oldest first."""
        _require(who, "subscribe", f"{who.domain}/users/{_user(user)}/notifications")
        look = self.use.notifications.unread if unread else self.use.notifications.all
        return [_notification_facts(body) for body in await look(who.domain, user, after, min(limit, MAX_PAGE))]

    async def read_notification(self, who: Principal, user: str, notification_id: str) -> Facts:
        """Mark a notification as read."""
        _require(who, "subscribe", f"{who.domain}/users/{_user(user)}/notifications")
        return _notification_facts(await self.use.notifications.read(who.domain, user, notification_id))

    async def preferences(self, who: Principal, user: str) -> Facts:
        """A user's preferences with their version."""
        _require(who, "subscribe", f"{who.domain}/users/{_user(user)}/preferences")
        body = await self.use.preferences.get(who.domain, user)
        return {"preferences": body["preferences"], "version": body["version"]}

    async def change_preferences(
        self, who: Principal, user: str, request: Facts, message_id: str | None = None
    ) -> Facts:
        """Merge a patch in: ``{"preferences": patch, "version"?: n}``."""
        return await self._ask(who, f"{who.domain}/users/{_user(user)}/preferences", request, message_id)


def _encoded(payload: Facts) -> bytes:
    """The payload as JSON. Raises MessageRefused for what JSON cannot carry: half a surrogate pair, or nesting too deep."""
    try:
        return orjson.dumps(payload)
    except TypeError as error:
        if survey(payload)[0]:
            raise too_deep() from error
        raise MessageRefused(
            f"the payload cannot be written as JSON ({error}): send whole characters", code="invalid_string"
        ) from error


def _require(who: Principal, action: str, topic: str) -> None:
    """Asked before anything is looked up, so a refusal tells nothing of what is there."""
    if not who.may(action, topic):
        raise who.refusal(action, topic)


def _device(text: str) -> str:
    if not is_device_id(text):
        raise RequestInvalid(f"{text[:80]!a} is no device id")
    return text


def _user(text: str) -> str:
    if not is_user_id(text):
        raise RequestInvalid(f"{text[:80]!a} is no user id")
    return text


def _shadow_key(who: Principal, device: str, name: str) -> ShadowKey:
    if name and not is_shadow_name(name):
        raise RequestInvalid(f"{name[:80]!a} is no name for a shadow: letters, digits and _.:- are, 64 at most")
    return ShadowKey(who.domain, _device(device), name)


def _shadow_facts(shadow: Shadow) -> Facts:
    return {"device": shadow.key.device, "name": shadow.key.name, **document_payload(shadow)}


def _notification_facts(body: Facts) -> Facts:
    return {
        "id": body["id"],
        "at": iso(body["at"]),
        "source": body.get("source"),
        "content": body.get("content"),
        "read": not body.get("unread", False),
    }
