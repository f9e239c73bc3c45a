"""Telemetry from the log as readings of a database: one for each metric of each sample that a message holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ..entities.errors import IotSphereError
from ..entities.message import Entry
from ..entities.topic import parse_topic
from ..use_cases.ports.telemetry import Reading, TelemetryStore
from . import envelope
from .samples import Measured, measured, samples_of, values_of

APPLIED: Final = "applied"


class TelemetryFacts:
    """Keeps readings. A value on a metric's topic is one reading; a sample of several metrics has one for each."""

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
    whole = Measured(entry.record.timestamp, None, () if metadata.quality is None else (metadata.quality,))
    samples = samples_of(said)
    if samples is None:
        found = [(said, whole, order)]
    else:
        times = [measured(sample, entry.appended_at, whole) for sample in samples]
        found = [
            (sample, time, f"{order}-{place:04d}")
            for sample, time, place in zip(samples, times, _places(times), strict=True)
        ]
    for index, (sample, (at, _, marks), place) in enumerate(found):
        own = sample.get("unit") if isinstance(sample, dict) else None
        unit = own if isinstance(own, str) else said.get("unit")
        for metric, value in values_of(levels[4] if len(levels) > 4 else None, sample):
            if value is not None:
                yield Reading(
                    domain=levels[0],
                    device=levels[2],
                    metric=metric,
                    value=value,
                    at=at,
                    received=entry.appended_at,
                    message_id=metadata.message_id,
                    order=place,
                    unit=unit if isinstance(unit, str) else None,
                    quality=marks[-1] if marks else None,
                    sample=index,
                )


def _places(times: Sequence[Measured]) -> list[int]:
    """The place of each sample in the order of time; by the device's own clock where that is not believed."""
    order = sorted(range(len(times)), key=lambda index: (times[index].event, times[index].skew or 0))
    places = [0] * len(times)
    for place, index in enumerate(order):
        places[index] = place
    return places
