"""Telemetry for those who ask a database for it: the latest value of each metric, and the readings of late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class Reading(NamedTuple):
    """One value of one metric of one device.

    ``at``: when it was measured, ms since 1970; ``received``: when the gateway took it, likewise. ``order``: its
    message's place in the log, and its sample's in the message, as a sortable text, which decides between readings of the
    same time. ``value``: JSON. ``sample``: the index of the sample within the message.
    """

    domain: str
    device: str
    metric: str
    value: Any
    at: int
    received: int
    message_id: str
    order: str
    unit: str | None = None
    quality: str | None = None
    sample: int = 0


class TelemetryStore(Protocol):
    """Keeps readings. What was saved survives what the store is set up for (MongoDB: majority and journal)."""

    async def ensure(self) -> None:
        """Make collections and indexes where missing. Idempotent; to be called before ``save``. Raises Unavailable."""
        ...

    async def save(self, readings: Sequence[Reading]) -> None:
        """Keep readings, in any order.

        The latest value of a metric is the one with the greatest time, then the greatest order: an older one that comes
        late goes into the history only. Repeating is harmless: a reading is known by message id, metric, time and sample.
        Raises Unavailable: some may have been kept, and all are to be saved again.
        """
        ...
