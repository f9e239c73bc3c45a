"""The fleet: which devices a filter selects, page by page."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

import structlog

from ..entities.documents import is_newer, whole
from ..entities.errors import DocumentNewer
from ..entities.fleet import FleetFilter
from .ports.database import Body, Collection, Database, Stored
from .shadow.shadows import Shadows

log = structlog.get_logger("iotsphere.fleet")

DEVICES: Final = Collection("devices")
PAGE: Final = 500
GONE_AFTER_MS: Final = 30_000  # no connection outlives the removal of its device by that


class Fleet:
    """Looks devices up. What is selected is what the database holds while a page is read."""

    def __init__(self, database: Database, shadows: Shadows) -> None:
        self._database = database
        self._shadows = shadows

    async def select(self, domain: str, wanted: FleetFilter, after: str = "") -> AsyncGenerator[Sequence[str], None]:
        """The ids of the selected devices beyond ``after``, ascending, in pages. Close it with ``aclose``.

        Raises Unavailable; go on after the last id then.
        """
        async for page in self._pages(domain, wanted, after):
            found = [device for device, labels in page.items() if wanted.selects(device, labels)]
            if wanted.looks_at_shadows and found:
                shadows = await self._shadows.get_many([wanted.shadow_of(domain, device) for device in found])
                reported = {key.device: shadow.reported for key, shadow in shadows.items()}
                found = [device for device in found if wanted.matches(device, page[device], reported.get(device, {}))]
            if found:
                yield found

    async def _pages(
        self, domain: str, wanted: FleetFilter, after: str
    ) -> AsyncGenerator[Mapping[str, Mapping[str, Any]], None]:
        """The labels of devices by id, page by page: of those named, or of all with the filter's prefix."""
        if wanted.ids:
            ids = sorted(device for device in wanted.ids if device > after)
            for start in range(0, len(ids), PAGE):
                keys = [f"{domain}/{device}" for device in ids[start : start + PAGE]]
                stored = await self._database.get_many(DEVICES.name, keys)
                yield _present([stored[key] for key in keys if key in stored])
            return
        last = f"{domain}/{after}" if after else ""
        while page := await self._database.scan(DEVICES.name, f"{domain}/{wanted.prefix}", last, PAGE):
            last = page[-1].key
            yield _present(page)


def is_leaving(body: Body) -> bool:
    """Whether a device of the roster was removed, and so is no part of any fleet."""
    return "removedAt" in body


def is_present(row: Stored) -> bool:
    """Whether a row of the roster is a device's that may be selected; one that a newer gateway wrote is passed over."""
    if is_newer(row.body):
        log.warning("document_passed_over", document=row.key, code=DocumentNewer.code)
        return False
    return not is_leaving(row.body)


def removed_at(body: Body) -> int:
    """When a device that is leaving was removed (ms since 1970)."""
    return whole(body.get("removedAt")) or 0


def _present(rows: Sequence[Stored]) -> Mapping[str, Mapping[str, Any]]:
    return {row.key.partition("/")[2]: _labels(row.body) for row in rows if is_present(row)}


def _labels(body: Mapping[str, Any]) -> Mapping[str, Any]:
    labels = body.get("labels")
    return labels if type(labels) is dict else {}
