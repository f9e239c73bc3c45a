"""Commands as documents of the database, and how they are found there."""

from __future__ import annotations

from typing import Final

from ...entities.command import Command, command_of
from ...entities.errors import RequestInvalid
from ..ports.database import Collection, Index, Stored

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


def command_at(stored: Stored) -> Command:
    """The command of a document. Raises RequestInvalid for what somebody wrote there and is none."""
    try:
        return command_of(stored.body)
    except ValueError as error:
        raise RequestInvalid(f"the document {stored.key!a} is no command ({error}): mend or remove it") from error
