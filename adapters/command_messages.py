"""Commands as messages: the request to a device, its response, and each step of a command's life."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from ..entities.command import ANSWERS, Command
from ..entities.errors import MessageRefused
from ..entities.message import MAX_PAYLOAD_BYTES, Message, Record
from ..entities.shadow import json_size
from ..entities.topic import parse_topic
from .alerts import gateway_principal
from .edge import Edge
from .message_id import is_message_id
from .timestamps import iso

# Room for the rest of a message, and for numbers that grow when they are written anew.
TOLD_BYTES: Final = MAX_PAYLOAD_BYTES - 16 * 1024
_LARGE: Final = ("late", "payload", "result", "reason")  # in the order in which they are left out
_KNOWN: Final = frozenset(("status", "progress", "result", "reason", "reported", "correlationId"))


class Response(NamedTuple):
    """What a device answered. ``evidence``: a word of ``entities.command.LIFE``. ``reported``: a shadow patch."""

    domain: str
    device: str
    command_id: str
    evidence: str
    answer: Mapping[str, Any]
    reported: Mapping[str, Any] | None


class CommandMessages:
    """Composes requests and reads responses."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def request(self, command: Command, now: int) -> Record:
        """The message on ``commands/request``: the caller's payload, under the id of the command."""
        name = command.caller.rpartition("/")[2] or "gateway"
        sender = replace(gateway_principal(command.domain), name=name)
        route = self._edge.route(sender, f"{command.domain}/devices/{command.device}/commands/request")
        payload = orjson.dumps({"metadata": {"messageType": "command"}, "payload": command.payload})
        return self._edge.admit(
            route,
            payload,
            now,
            message_id=command.id,
            correlation_id=command.id,
            expires_at=command.expires_at,
        )

    def response(self, message: Message) -> Response:
        """Read a message on ``commands/response``.

        Raises MessageRefused: unknown_command for an answer to nothing, schema_violation for one that cannot be read.
        """
        place = parse_topic(message.topic)
        payload = message.json()
        if not isinstance(payload, dict):
            payload = {"result": payload}
        command_id = message.metadata.correlation_id or payload.get("correlationId")
        if not isinstance(command_id, str) or not is_message_id(command_id):
            raise MessageRefused(
                "a response names its command: send the request's messageId back as correlationId",
                code="unknown_command",
            )
        evidence, answer = _answer(payload)
        reported = payload.get("reported") if "status" in payload else None
        if reported is not None and not isinstance(reported, dict):
            raise _violation("reported must be an object: what the shadow's reported state changes to")
        return Response(place.domain, place.device_id or "", command_id, evidence, answer, reported)


def _answer(payload: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    status = payload.get("status")
    if "status" not in payload:
        rest = {name: value for name, value in payload.items() if name != "correlationId"}
        return "succeed", {"result": rest["result"] if rest.keys() == {"result"} else rest}
    evidence = ANSWERS.get(status) if isinstance(status, str) else None
    if evidence is None:
        raise _violation(f"status must be one of {', '.join(ANSWERS)}")
    unknown = payload.keys() - _KNOWN
    if unknown:
        raise _violation(f"{min(unknown)[:40]!a} is not known beside status: put it into result")
    answer = {name: payload[name] for name in ("progress", "result", "reason") if name in payload}
    progress = answer.get("progress")
    if progress is not None and (type(progress) not in (int, float) or not 0 <= progress <= 100):
        raise _violation("progress must be a number from 0 to 100")
    if not isinstance(answer.get("reason", ""), str):
        raise _violation("reason must be a text")
    return evidence, answer


def _violation(text: str) -> MessageRefused:
    return MessageRefused(text, code="schema_violation")


def facts_of(command: Command) -> dict[str, Any]:
    """A command as callers see it, times as ISO-8601 texts."""
    facts: dict[str, Any] = {
        "commandId": command.id,
        "device": command.device,
        "state": command.state,
        "final": command.is_final,
        "payload": dict(command.payload),
        "caller": command.caller,
        "createdAt": iso(command.created_at),
        "expiresAt": iso(command.expires_at),
        "timeoutSeconds": command.timeout / 1000,
        "steps": [{"state": step.state, "at": iso(step.at)} for step in command.steps],
    }
    facts.update(command.answer or {})
    if command.rollout:
        facts["rollout"] = command.rollout
    if command.late:
        facts["late"] = list(command.late)
    return facts


def status_of(command: Command) -> dict[str, Any]:
    """A step in a command's life as it is told: what a message could not hold is named in ``leftOut`` and can be read."""
    facts = facts_of(command)
    sizes = {name: json_size(facts[name]) for name in _LARGE if name in facts}
    room = TOLD_BYTES - json_size({name: value for name, value in facts.items() if name not in sizes})
    left_out = []
    for name, size in sizes.items():
        if sum(sizes.values()) > room:
            room += size
            left_out.append(name)
            del facts[name]
    return {**facts, "leftOut": left_out} if left_out else facts
