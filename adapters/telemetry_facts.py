"""Telemetry from the log as readings of a database: one for each metric that a message holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ..entities.errors import IotSphereError
from ..entities.message import Entry
from ..entities.topic import parse_topic
from ..use_cases.ports.telemetry import Reading, TelemetryStore
from . import envelope
from .edge import TIME_KEYS

APPLIED: Final = "applied"
_BESIDE: Final = frozenset((*TIME_KEYS, "unit", "quality", "observedAt", "deviceTime"))


class TelemetryFacts:
    """Keeps readings. A payload on a metric's topic is one reading; one on ``telemetry`` has a metric per member."""

    def __init__(self, store: TelemetryStore) -> None:
        self._store = store

    def handles(self, topic: str) -> bool:
        """All of the channel."""
        return parse_topic(topic).channel == "telemetry"

    async def __call__(self, entries: Sequence[Entry]) -> list[str | IotSphereError]:
        """Keep what they hold. Raises Unavailable; repeating is safe."""
        readings = [reading for entry in entries if entry.record.body for reading in readings_of(entry)]
        if readings:
            await self._store.save(readings)
        return [APPLIED] * len(entries)


def readings_of(entry: Entry) -> Iterator[Reading]:
    """The readings of an entry; a metric whose value is null has none."""
    message = envelope.decode(entry.record.body)
    metadata = message.metadata
    levels = message.topic.split("/")
    payload = message.json()
    position = entry.position
    order = f"{entry.record.partition.number:04d}-{position.epoch:010d}-{position.offset:016d}"
    said: Mapping[str, Any] = payload if isinstance(payload, dict) else {"value": payload}
    if len(levels) > 4:
        values = {levels[4]: said.get("value", payload)}
    else:
        values = {name: value for name, value in said.items() if name not in _BESIDE}
    unit = said.get("unit")
    for metric, value in values.items():
        if value is not None:
            yield Reading(
                domain=levels[0],
                device=levels[2],
                metric=metric,
                value=value,
                at=entry.record.timestamp,
                received=entry.appended_at,
                message_id=metadata.message_id,
                order=order,
                unit=unit if isinstance(unit, str) else None,
                quality=metadata.quality,
            )
