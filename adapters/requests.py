"""Requests: messages that ask to change something, decided at once instead of being appended. The same at every door."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import orjson

from ..entities.errors import Forbidden, MessageRefused, NotFound, RequestInvalid
from ..entities.message import Message, Record
from ..entities.principal import Principal
from ..entities.shadow import Shadow, ShadowKey, shadow_of_topic
from ..entities.topic import Topic, parse_topic
from ..use_cases.command.commands import Commands
from ..use_cases.command.order import Order
from ..use_cases.ports.clock import Clock
from ..use_cases.users import PreferenceChange, Preferences
from . import envelope
from .alerts import gateway_principal
from .command_messages import CommandMessages, facts_of
from .edge import Edge
from .shadow.messages import delta_payload
from .shadow.requests import ShadowRequests, check_keys, read_patch, version_of
from .timestamps import CLOCK_UNTRUSTED, read_time

ASK_A_GATEWAY: Final = "connect to a running gateway, or name its database"
_PREFERENCES: Final = frozenset(("preferences", "version"))


class RequestHandler(Protocol):
    """Carries out the requests on some topics."""

    def handles(self, topic: Topic) -> bool:
        """Tell whether messages on this topic come here instead of into the log."""
        ...

    async def __call__(self, principal: Principal, record: Record) -> Mapping[str, object]:
        """Carry a request out, durably; returns what was decided. Raises IotSphereError. Repeating it is safe."""
        ...


class Requests:
    """All request handlers behind one. ``known``: whether a device (domain, id) is registered."""

    def __init__(self, known: Callable[[str, str], Awaitable[bool]], *handlers: RequestHandler) -> None:
        self._known = known
        self._handlers = handlers

    def handles(self, topic: Topic) -> bool:
        """Tell whether anybody here carries out messages on this topic."""
        return any(handler.handles(topic) for handler in self._handlers)

    async def __call__(self, principal: Principal, record: Record) -> Mapping[str, object]:
        """Carry a request out; returns what was decided. Raises NotFound for a shadow of no registered device."""
        topic = parse_topic(record.topic)
        if topic.channel == "shadow" and not await self._known(topic.domain, topic.key):
            raise NotFound
        for handler in self._handlers:
            if handler.handles(topic):
                return await handler(principal, record)
        raise AssertionError(f"nobody handles {topic.text}")


class CommandRequests:
    """Messages on ``commands/request`` are accepted as commands under the message's id."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    @staticmethod
    def handles(topic: Topic) -> bool:
        """All of the channel but what devices answer."""
        return topic.channel == "commands" and not topic.text.endswith("/response")

    async def __call__(self, principal: Principal, record: Record) -> Mapping[str, object]:
        """Accept a command. Raises what ``Commands.send`` raises, and Forbidden for what the gateway alone tells."""
        if not record.topic.endswith("/request"):
            raise Forbidden(f"{record.topic!a} is told by the gateway: send commands to commands/request")
        message = envelope.decode(record.body)
        payload = message.json()
        if not isinstance(payload, dict):
            raise MessageRefused('a command is a JSON object such as {"action": "open"}', code="schema_violation")
        levels = record.topic.split("/")
        sent = await self._commands.send(
            Order(
                id=record.message_id,
                domain=levels[0],
                device=levels[2],
                caller=principal.identity,
                payload=payload,
                expires_at=record.expires_at,
                stated_at=_stated_at(message, record),
            )
        )
        return {"command": facts_of(sent.command), "repeated": sent.repeated}


def _stated_at(message: Message, record: Record) -> int:
    """When the sender says that it asked, 0 where it says nothing. A time that nobody believes is none of today."""
    metadata = message.metadata
    if metadata.quality == CLOCK_UNTRUSTED:
        return 1
    if metadata.received_at is None:
        return 0
    reading = read_time(metadata.timestamp)
    return record.timestamp if reading is None else reading.time


class PreferenceRequests:
    """Messages on ``users/{user_id}/preferences`` are merge patches: ``{"preferences": {...}, "version"?: n}``."""

    def __init__(self, preferences: Preferences) -> None:
        self._preferences = preferences

    @staticmethod
    def handles(topic: Topic) -> bool:
        """Preferences of users."""
        return topic.channel == "users" and topic.text.endswith("/preferences")

    async def __call__(self, principal: Principal, record: Record) -> Mapping[str, object]:  # noqa: ARG002  (the handlers' shape)
        """Change them. Raises MessageRefused, VersionConflict and Unavailable."""
        levels = record.topic.split("/")
        payload = orjson.loads(envelope.payload_of(record.body))
        check_keys(payload, _PREFERENCES, '{"preferences": {"theme": "dark"}}')
        change = PreferenceChange(
            levels[0],
            levels[2],
            read_patch(payload, "preferences"),
            version_of(payload),
            "" if record.minted else record.message_id,
        )
        body = await self._preferences.update(change)
        return {"preferences": body["preferences"], "version": body["version"]}


class DecidedElsewhere:
    """Refuses every request: for whoever has the log of gateways, and not their database."""

    def handles(self, topic: Topic) -> bool:
        """Whatever a gateway would decide."""
        return any(handler.handles(topic) for handler in (ShadowRequests, CommandRequests, PreferenceRequests))

    async def __call__(self, principal: Principal, record: Record) -> Mapping[str, object]:  # noqa: ARG002  (the handlers' shape)
        """Raises RequestInvalid."""
        raise RequestInvalid(f"{record.topic!a} is decided in a database, which this log has not: {ASK_A_GATEWAY}")


class CareMessages:
    """What devices get from the gateway's own hand: see ``use_cases.care.device_care.CareRecords``."""

    def __init__(self, edge: Edge, clock: Clock) -> None:
        self._edge = edge
        self._clock = clock
        self._commands = CommandMessages(edge)

    def request(self, command: Any) -> Record:
        """A command, as it lies in the log."""
        return self._commands.request(command, self._clock.now())

    def delta(self, shadow: Shadow) -> Record:
        """What the device has yet to take on."""
        topic = shadow.key.topic("delta")
        route = self._edge.route(gateway_principal(shadow.key.domain), topic)
        return self._edge.admit(route, orjson.dumps(delta_payload(shadow)), self._clock.now())

    def delta_of(self, record: Record) -> tuple[ShadowKey, int]:
        """The shadow and the sequence of a delta; sequence 0 for a payload that is none."""
        key, _ = shadow_of_topic(record.topic)
        payload = orjson.loads(envelope.payload_of(record.body))
        sequence = payload.get("sequence") if isinstance(payload, dict) else None
        return key, sequence if isinstance(sequence, int) else 0
