"""Messages on ``shadow/reported``: from entries of the log to reports, folded into the shadows slice by slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from ...entities.errors import IotSphereError, MessageRefused
from ...entities.message import Entry
from ...entities.shadow import ShadowKey, shadow_of_topic
from ...entities.shadow_reports import Place, Report
from ...use_cases.shadow.shadows import Shadows
from .. import envelope
from ..timestamps import CLOCK_UNTRUSTED, TZ_ASSUMED, read_time
from .requests import check_keys, read_patch, read_pointer, schema_violation, version_of

_KNOWN: Final = frozenset(("reported", "refused", "version", "sequence"))
_UNSURE: Final = frozenset((CLOCK_UNTRUSTED, TZ_ASSUMED))


class ShadowFacts:
    """Folds what devices report. Other messages of the channel are not its business."""

    def __init__(self, shadows: Shadows) -> None:
        self._shadows = shadows

    def handles(self, topic: str) -> bool:
        """Tell whether a message on this topic is a report."""
        return topic.endswith("/reported")

    async def __call__(self, entries: Sequence[Entry]) -> list[str | IotSphereError]:
        """Fold entries of one partition, in order. For each ``applied``, ``superseded`` or why it was refused.

        Raises Unavailable; folding the same entries again is safe.
        """
        results: list[str | IotSphereError] = ["applied"] * len(entries)
        reports: list[tuple[ShadowKey, Report]] = []
        places: list[int] = []
        for index, entry in enumerate(entries):
            if not entry.record.body or not self.handles(entry.record.topic):
                continue
            try:
                reports.append(read_report(entry))
            except MessageRefused as error:
                results[index] = error
            else:
                places.append(index)
        for index, answer in zip(places, await self._shadows.fold(reports), strict=True):
            results[index] = answer if isinstance(answer, IotSphereError) else answer.outcome
        return results


def read_report(entry: Entry) -> tuple[ShadowKey, Report]:
    """The shadow and the report of an entry. Raises MessageRefused."""
    record = entry.record
    key, _ = shadow_of_topic(record.topic)
    message = envelope.decode(record.body)
    metadata = message.metadata
    payload = orjson.loads(message.payload)
    check_keys(payload, _KNOWN, '{"reported": {"interval": 5}}')
    refused = payload.get("refused") or {}
    if type(refused) is not dict or not all(type(reason) is str for reason in refused.values()):
        raise schema_violation('"refused" must give a reason for each place, such as {"/interval": "too short"}')
    patch = read_patch(payload, "reported") if not refused or "reported" in payload else {}
    received = None if metadata.received_at is None else read_time(metadata.received_at)
    return key, Report(
        patch=patch,
        at=record.timestamp,
        author=metadata.source,
        stated=received is not None and metadata.quality not in _UNSURE,
        message_id=record.message_id,
        version=version_of(payload),
        refused={read_pointer(place, "refused"): reason for place, reason in refused.items()},
        sequence=version_of(payload, "sequence"),
        place=place_of(entry),
        logged_at=entry.appended_at,
    )


def place_of(entry: Entry) -> Place:
    """Where an entry lies, as a shadow remembers it."""
    partition = entry.record.partition
    return Place(f"{partition.channel}/{partition.number}", *entry.position)
