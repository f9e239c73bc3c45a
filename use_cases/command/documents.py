"""Commands and rollouts as documents of the database, and how they are found there."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import structlog

from ...entities.command import Command, command_of
from ...entities.errors import RequestInvalid
from ...entities.rollout import Rollout, rollout_of
from ..ports.database import Collection, Index, Stored

log = structlog.get_logger("iotsphere.commands")

COMMANDS: Final = Collection(
    "commands",
    (
        Index("outstanding", ("domain", "device", "outstanding", "order")),
        Index("by_device", ("domain", "device", "createdAt")),
        Index("due", ("open", "due")),
        Index("rollout", ("rollout", "state", "id")),
    ),
    watched=True,
    expires="removeAt",
)

ROLLOUTS: Final = Collection(
    "rollouts", (Index("open", ("open", "created_at")), Index("of_domain", ("domain", "created_at")))
)
TARGETS: Final = Collection("rollout_targets")

Entity = TypeVar("Entity")


def command_at(stored: Stored) -> Command:
    """The command of a document. Raises RequestInvalid for what somebody wrote there and is none; DocumentNewer."""
    try:
        command = command_of(stored.body)
        if command.key != stored.key:
            raise ValueError(f"its domain and id belong under {command.key[:120]!a}")
    except ValueError as error:
        raise RequestInvalid(f"the document {stored.key!a} is no command ({error}): mend or remove it") from error
    return command


def commands_at(found: Sequence[Stored]) -> list[Command]:
    """The commands of documents, without what is none: an alert told of that when it was written."""
    return list(_those(found, command_at))


def rollout_at(stored: Stored) -> Rollout:
    """The rollout of a document. Raises RequestInvalid for what somebody wrote there and is none; DocumentNewer."""
    try:
        rollout = rollout_of(stored.body)
        uuid.UUID(rollout.id)
        if rollout.key != stored.key:
            raise ValueError(f"its domain and id belong under {rollout.key[:120]!a}")
    except ValueError as error:
        raise RequestInvalid(f"the document {stored.key!a} is no rollout ({error}): mend or remove it") from error
    return rollout


def rollouts_at(found: Sequence[Stored]) -> list[Rollout]:
    """The rollouts of documents, without what is none."""
    return list(_those(found, rollout_at))


def _those(found: Sequence[Stored], read: Callable[[Stored], Entity]) -> Iterator[Entity]:
    for stored in found:
        try:
            yield read(stored)
        except RequestInvalid as error:
            log.warning("document_passed_over", document=stored.key, code=error.code, message=error.message)
