"""Competing readers with acknowledgement, redelivery and a delivery count that survives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ...entities.message import Entry
from ...entities.position import Partition, Position

NEVER: Final = 1 << 30


class Delivery(NamedTuple):
    """An entry handed to one consumer. ``attempt`` counts from 1, by the store, not by the process."""

    group: str
    partition: Partition
    entry: Entry
    attempt: int


class Backlog(NamedTuple):
    """What a group has still to do in one partition. ``lost``: entries that were trimmed before they were acked.

    ``start``: the offset after which the group began, so that the rest can be proven complete; None where the driver
    does not know it.
    """

    partition: Partition
    waiting: int
    pending: int
    acknowledged: int
    lost: int
    start: int | None = None


class WorkQueue(Protocol):
    """Groups of competing consumers over partitions of the log.

    Order: entries are first handed out in log order; redelivered ones come before new ones. Durability: as the log.
    An entry that was taken and neither acked, nacked nor extended within its visibility comes back to whoever takes
    next, with ``attempt`` + 1. Group names begin with their domain. Retention waits for the oldest unacked entry.
    Errors: LogUnavailable (retry), RequestInvalid for an unknown group. Every call is safe to repeat.
    """

    async def create(self, group: str, start: Sequence[tuple[Partition, Position]]) -> None:
        """Make the group where missing, beginning after the given positions."""
        ...

    async def take(
        self, group: str, consumer: str, limit: int, visibility: int = 30_000, alone: int = NEVER
    ) -> Sequence[Delivery]:
        """Up to ``limit`` deliveries, hidden from others for ``visibility`` ms. Returns at once, maybe with none.

        A delivery whose ``attempt`` is ``alone`` or more comes alone: a consumer that dies of one entry must not wear
        down the attempts of those that it held beside it.
        Entries that vanished (trimmed past the cap) are acknowledged and counted as lost, never handed out.
        """
        ...

    async def ack(self, group: str, deliveries: Sequence[tuple[Partition, Position]]) -> int:
        """Mark entries done. Returns how many were pending."""
        ...

    async def nack(
        self, group: str, delivery: tuple[Partition, Position], delay: int = 0, counted: bool = True
    ) -> None:
        """Give an entry back, to be handed out again after ``delay`` ms; as the same attempt unless ``counted``."""
        ...

    async def extend(self, group: str, consumer: str, delivery: tuple[Partition, Position], visibility: int) -> bool:
        """Keep an entry hidden for ``visibility`` ms from now. False when the consumer no longer holds it."""
        ...

    async def backlog(self, group: str) -> Sequence[Backlog]:
        """What is waiting and pending, per partition; empty when the group is unknown."""
        ...

    async def groups(self, domain: str) -> Sequence[str]:
        """The group names of a domain, sorted."""
        ...

    async def delete(self, group: str) -> None:
        """Remove the group. Unknown groups are no error."""
        ...
