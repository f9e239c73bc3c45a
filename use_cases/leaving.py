"""What becomes of a device's state when it is removed: its shadows are deleted, and its waiting commands cancelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..entities.errors import NotFound
from ..entities.shadow import ShadowKey
from ..entities.shadow_changes import GATEWAY
from .access.devices import Devices
from .command.commands import Commands
from .fleet import DEVICES, GONE_AFTER_MS, is_leaving, removed_at
from .ports.database import Database
from .shadow.shadows import Shadows


class Leaving:
    """Called with a device (domain, id) that is registered no more. Repeating it is safe. Raises Unavailable.

    A command that was sent already lives on until it is answered or its time is over, for only that is evidence.
    """

    def __init__(self, shadows: Shadows, commands: Commands) -> None:
        self._shadows = shadows
        self._commands = commands

    async def __call__(self, domain: str, device: str) -> None:
        """End what is kept of it."""
        await self._shadows.delete_all(domain, device, GATEWAY)
        after = ""
        while page := await self._commands.outstanding(domain, device, after):
            for command in page:
                try:
                    await self._commands.learn(domain, command.id, "cancel")
                except NotFound:
                    continue  # it has gone at this moment
            after = page[-1].order


class Removed:
    """Which shadows belong to devices that were removed, and until when (ms) these may have sent something.

    A connection outlives the removal by less than that, while what it sent may be folded in much later: the roster
    remembers a removal for longer than the log keeps anything. A device that was never registered, such as one behind a
    bridge, and one that was registered anew are none of these.
    """

    def __init__(self, database: Database, devices: Devices) -> None:
        self._database = database
        self._devices = devices

    async def __call__(self, keys: Sequence[ShadowKey]) -> Mapping[ShadowKey, int]:
        """Those of the keys. Raises Unavailable."""
        names = {f"{key.domain}/{key.device}": key for key in keys}
        stored = await self._database.get_many(DEVICES.name, list(names))
        gone = {
            name: removed_at(row.body) + GONE_AFTER_MS
            for name, row in stored.items()
            if is_leaving(row.body) and await self._devices.known(names[name].domain, names[name].device) is None
        }
        return {key: gone[name] for key in keys if (name := f"{key.domain}/{key.device}") in gone}
