"""The overview of a fleet: each device with its labels, its presence, and when it was last heard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ..entities.errors import NotFound
from ..entities.message import Entry
from ..entities.principal import Principal
from .access.devices import Device, Devices
from .last_values import LastValues
from .roster import Roster

PAGE: Final = 500
MAX_LOOKED_AT: Final = 5_000
PRESENCE: Final = "presence"
PARTS: Final = (PRESENCE, "telemetry", "shadow/document", "commands/status")


class Standing(NamedTuple):
    """How a device stands. ``presence``, ``newest``: the last entries about it, and of its telemetry; None before any."""

    device: Device
    labels: Mapping[str, str]
    presence: Entry | None
    newest: Entry | None


class OverviewPage(NamedTuple):
    """Devices in the order of their ids. ``after``: the id to go on after; None at the end."""

    devices: Sequence[Standing]
    after: str | None


class Overview:
    """Looks at registered devices. What is read is a view that follows the log, so it costs the log nothing."""

    def __init__(self, devices: Devices, roster: Roster, last_values: LastValues) -> None:
        self._devices = devices
        self._roster = roster
        self._last_values = last_values

    async def page(self, principal: Principal, after: str = "", limit: int = 100) -> OverviewPage:
        """The next devices whose presence the principal may listen to; may be none, with an ``after``, among many."""
        domain = principal.domain
        found: list[Standing] = []
        looked_at = 0
        while looked_at < MAX_LOOKED_AT:
            devices = await self._devices.list(domain, after, PAGE)
            mine = [
                one for one in devices if principal.may("subscribe", f"{domain}/devices/{one.device_id}/{PRESENCE}")
            ]
            mine = mine[: limit - len(found)]
            labels = await self._roster.labels(domain, [one.device_id for one in mine]) if mine else {}
            found += [self._standing(one, labels.get(one.device_id, {})) for one in mine]
            if len(found) == limit:
                return OverviewPage(found, found[-1].device.device_id)
            if len(devices) < PAGE:
                return OverviewPage(found, None)
            looked_at += len(devices)
            after = devices[-1].device_id
        return OverviewPage(found, after)

    async def one(self, principal: Principal, device_id: str) -> OverviewPage:
        """A page of that device alone; of none where it is not registered, or the principal may listen to nothing of it.

        Who may not listen to its presence learns that it is there, and no more.
        """
        domain = principal.domain
        open_to = [part for part in PARTS if principal.may("subscribe", f"{domain}/devices/{device_id}/{part}")]
        try:
            device = await self._devices.get(domain, device_id) if open_to else None
        except NotFound:
            device = None
        if device is None:
            return OverviewPage((), None)
        if PRESENCE not in open_to:
            return OverviewPage((Standing(device, {}, None, None),), None)
        labels = await self._roster.labels(domain, [device_id])
        return OverviewPage((self._standing(device, labels.get(device_id, {})),), None)

    def _standing(self, device: Device, labels: Mapping[str, str]) -> Standing:
        presence: Entry | None = None
        newest: Entry | None = None
        for entry in self._last_values.below(f"{device.domain}/devices/{device.device_id}"):
            topic = entry.record.topic
            if entry.record.partition.channel == "telemetry" and entry.record.body and _is_newer(entry, newest):
                newest = entry
            elif topic.endswith("/presence"):
                presence = entry
        return Standing(device, labels, presence, newest)


def _is_newer(entry: Entry, than: Entry | None) -> bool:
    return than is None or entry.appended_at >= than.appended_at
