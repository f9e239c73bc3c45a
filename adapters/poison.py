"""From a message that nobody could digest to its dead letter: deliveries of work queues, facts that processors refuse."""

from __future__ import annotations

from collections.abc import Callable

from ..entities.errors import IotSphereError, MessageRefused
from ..entities.message import Entry, Record
from ..entities.principal import Principal
from ..use_cases.ports.clock import Clock
from ..use_cases.ports.work_queue import Delivery
from .dead_letter import reason_of
from .edge import Edge
from .envelope import payload_of

POISON = "poison"


def poison_letters(edge: Edge, clock: Clock) -> Callable[[Delivery, int], Record]:
    """How a work queue makes dead letters: one per group and message, however often it is tried."""

    def bury(delivery: Delivery, attempts: int) -> Record:
        domain, _, group = delivery.group.partition("/")
        record = delivery.entry.record
        error = MessageRefused(
            f"the group {group!a} was handed this message {attempts} times and never acknowledged it; "
            "mend its consumer, then redrive the message",
            code=POISON,
            message_id=record.message_id,
        )
        principal = Principal("service", group, domain)
        payload = payload_of(record.body)
        return edge.dead_letter(principal, record.topic, payload, clock.now(), error, stage="queue", attempts=attempts)

    return bury


def fact_letters(edge: Edge, clock: Clock) -> Callable[[str, Entry, IotSphereError | None, int], Record]:
    """How a processor makes dead letters: one per reader and message. No refusal is a fault when it is poison."""

    def bury(reader: str, entry: Entry, refusal: IotSphereError | None, attempts: int) -> Record:
        domain, _, name = reader.partition("/")
        record = entry.record
        reason, detail = (
            POISON,
            (f"the processor {name!a} failed {attempts} times at this message; see its log, then redrive the message"),
        )
        if refusal is not None:
            detail = refusal.message
            try:
                reason = reason_of(refusal)
            except ValueError:  # a refusal that is no reason of its own
                detail = f"{refusal.code}: {detail}"
        error = MessageRefused(detail, code=reason, message_id=record.message_id)
        try:
            payload = payload_of(record.body)
        except MessageRefused:  # whatever lies there, it is shown as it is
            payload = record.body
        principal = Principal("service", name, domain)
        return edge.dead_letter(
            principal, record.topic, payload, clock.now(), error, stage="processor", attempts=attempts
        )  # fmt: skip

    return bury
