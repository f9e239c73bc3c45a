"""Tracing: where a message is, who has read it, and whether it was refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..entities.errors import NotFound
from ..entities.message import Entry
from ..entities.principal import OPERATOR, Principal
from .dead_letters import DeadLetters, Letter
from .ports.message_log import MessageLog


@dataclass(frozen=True, slots=True)
class Passage:
    """A registered reader of the message's partition, and whether it is past the message."""

    reader: str
    passed: bool


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """What is known of one message id. At least one of ``entry`` and ``dead_letter`` is there."""

    message_id: str
    entry: Entry | None
    dead_letter: Letter | None
    readers: Sequence[Passage]


class Trace:
    """Looks a message up in the log and the dead letters of the caller's domain. May scan: for people, not programs."""

    def __init__(self, log: MessageLog, dead_letters: DeadLetters) -> None:
        self._log = log
        self._dead_letters = dead_letters

    async def __call__(self, principal: Principal, message_id: str) -> MessageTrace:
        """Follow one message id. Raises NotFound when nothing is known of it, or the caller is no operator."""
        principal.require_role(OPERATOR)
        entry = await self._log.find(principal.domain, message_id)
        letter = await self._dead_letters.about(principal.domain, message_id)
        if entry is None and letter is None:
            raise NotFound
        return MessageTrace(message_id, entry, letter, await self._passages(entry) if entry is not None else ())

    async def _passages(self, entry: Entry) -> list[Passage]:
        partition = entry.record.partition
        passages = []
        for reader in await self._log.readers(partition.domain):
            progress = (await self._log.committed(reader)).get(partition)
            if progress is not None:
                passages.append(Passage(reader, progress.position >= entry.position))
        return passages
