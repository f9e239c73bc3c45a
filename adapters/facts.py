"""Facts from the log, folded into the database: what devices answer to commands, and what users are notified of."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ..entities.errors import IotSphereError, MessageRefused, Unavailable
from ..entities.message import Entry, Message
from ..entities.shadow import ShadowKey, check_depth
from ..entities.shadow_reports import Report
from ..use_cases.command.commands import Commands
from ..use_cases.shadow.shadows import Shadows
from ..use_cases.users import Fact, Notifications
from . import envelope
from .command_messages import CommandMessages, Response
from .database.changes import OWN_NOTIFICATIONS
from .shadow.facts import place_of

APPLIED: Final = "applied"
Outcomes = list[str | IotSphereError]


class CommandFacts:
    """Moves commands on by what devices answer; a ``reported`` patch beside the answer goes into the main shadow."""

    def __init__(self, commands: Commands, messages: CommandMessages, shadows: Shadows) -> None:
        self._commands = commands
        self._messages = messages
        self._shadows = shadows

    def handles(self, topic: str) -> bool:
        """Tell whether a message on this topic is an answer."""
        return topic.endswith("/commands/response")

    async def __call__(self, entries: Sequence[Entry]) -> Outcomes:
        """Fold answers of one partition, those to one command in their order. Raises Unavailable; repeating is safe."""
        outcomes: Outcomes = [APPLIED] * len(entries)
        threads: dict[str, list[tuple[int, Response, Entry]]] = {}
        for index, entry in enumerate(entries):
            if not entry.record.body or not self.handles(entry.record.topic):
                continue
            try:
                response = self._messages.response(envelope.decode(entry.record.body))
            except MessageRefused as error:
                outcomes[index] = error
            else:
                threads.setdefault(response.command_id, []).append((index, response, entry))
        await asyncio.gather(*(self._fold(thread, outcomes) for thread in threads.values()))
        said = sorted((item for thread in threads.values() for item in thread), key=lambda item: item[0])
        told = [item for item in said if item[1].reported and outcomes[item[0]] == APPLIED and _fits(item, outcomes)]
        # In the order of the log, for a shadow passes over what lies before the last place that it has seen.
        answers = await self._shadows.fold([_report(response, entry) for _, response, entry in told])
        for (index, _, _), answer in zip(told, answers, strict=True):
            if isinstance(answer, IotSphereError):
                outcomes[index] = answer
        return outcomes

    async def _fold(self, thread: Sequence[tuple[int, Response, Entry]], outcomes: Outcomes) -> None:
        for index, response, _ in thread:
            try:
                await self._commands.respond(
                    response.domain, response.device, response.command_id, response.evidence, response.answer
                )
            except Unavailable:
                raise
            except IotSphereError as error:
                outcomes[index] = error


def _fits(item: tuple[int, Response, Entry], outcomes: Outcomes) -> bool:
    """Whether a shadow may nest so deep; the answer counts for its command all the same."""
    index, response, _ = item
    try:
        check_depth(response.reported)
    except MessageRefused as error:
        outcomes[index] = error
        return False
    return True


def _report(response: Response, entry: Entry) -> tuple[ShadowKey, Report]:
    report = Report(
        patch=response.reported or {},
        at=entry.record.timestamp,
        author=response.device,
        message_id=entry.record.message_id,
        place=place_of(entry),
    )
    return ShadowKey(response.domain, response.device), report


class NotificationFacts:
    """Keeps notifications that services publish until their user has read them."""

    def __init__(self, notifications: Notifications) -> None:
        self._notifications = notifications

    def handles(self, topic: str) -> bool:
        """Tell whether a message on this topic is a notification."""
        return topic.endswith("/notifications")

    async def __call__(self, entries: Sequence[Entry]) -> Outcomes:
        """Keep them. Raises Unavailable; repeating is safe."""
        facts = []
        for entry in entries:
            if not entry.record.body or not self.handles(entry.record.topic):
                continue
            message = envelope.decode(entry.record.body)
            if not _is_own(message):
                facts.append(_fact(message, entry))
        if facts:
            await self._notifications.keep(facts)
        return [APPLIED] * len(entries)


def _is_own(message: Message) -> bool:
    """Whether the gateway tells it of a notification that is in the database already."""
    return message.metadata.source == OWN_NOTIFICATIONS


def _fact(message: Message, entry: Entry) -> Fact:
    levels = message.topic.split("/")
    content = message.json()
    return Fact(
        levels[0],
        levels[2],
        message.metadata.message_id,
        message.metadata.source,
        entry.record.timestamp,
        content if isinstance(content, dict) else {"text": content},
    )
