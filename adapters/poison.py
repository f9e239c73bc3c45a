"""From a delivery that nobody could digest to its dead letter."""

from __future__ import annotations

from collections.abc import Callable

from ..entities.errors import MessageRefused
from ..entities.message import Record
from ..entities.principal import Principal
from ..use_cases.ports.clock import Clock
from ..use_cases.ports.work_queue import Delivery
from .edge import Edge
from .envelope import payload_of


def poison_letters(edge: Edge, clock: Clock) -> Callable[[Delivery, int], Record]:
    """How a work queue makes dead letters: one per group and message, however often it is tried."""

    def bury(delivery: Delivery, attempts: int) -> Record:
        domain, _, group = delivery.group.partition("/")
        record = delivery.entry.record
        error = MessageRefused(
            f"the group {group!a} was handed this message {attempts} times and never acknowledged it; "
            "mend its consumer, then redrive the message",
            code="poison",
            message_id=record.message_id,
        )
        principal = Principal("service", group, domain)
        payload = payload_of(record.body)
        return edge.dead_letter(principal, record.topic, payload, clock.now(), error, stage="queue", attempts=attempts)

    return bury
