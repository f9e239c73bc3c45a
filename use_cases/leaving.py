"""What becomes of a device's state when it is removed: its shadows are deleted, and its waiting commands cancelled."""

from __future__ import annotations

from collections.abc import Sequence

from ..entities.errors import NotFound
from ..entities.shadow import ShadowKey
from ..entities.shadow_changes import GATEWAY
from .access.devices import Devices
from .command.commands import Commands
from .fleet import DEVICES, is_leaving
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
    """Which shadows belong to devices that were removed, as long as the roster remembers the removal.

    That is longer than a connection outlives it. A device that was never registered, such as one behind a bridge, and
    one that was registered anew are none of these.
    """

    def __init__(self, database: Database, devices: Devices) -> None:
        self._database = database
        self._devices = devices

    async def __call__(self, keys: Sequence[ShadowKey]) -> frozenset[ShadowKey]:
        """Those of the keys. Raises Unavailable."""
        rows = {f"{key.domain}/{key.device}": key for key in keys}
        stored = await self._database.get_many(DEVICES.name, list(rows))
        leaving = [rows[name] for name, row in stored.items() if is_leaving(row.body)]
        gone = {
            (key.domain, key.device) for key in leaving if await self._devices.known(key.domain, key.device) is None
        }
        return frozenset(key for key in keys if (key.domain, key.device) in gone)
