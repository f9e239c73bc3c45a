"""What becomes of a device's state when it is removed: its shadows are deleted, and its waiting commands cancelled."""

from __future__ import annotations

from ..entities.errors import NotFound
from ..entities.shadow_changes import GATEWAY
from .command.commands import Commands
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
