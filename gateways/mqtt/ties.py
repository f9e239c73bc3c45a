"""What a connection needs of its socket, a visit of its connection, and the door of both."""

from __future__ import annotations

import asyncio
from typing import Protocol

from ...adapters.mqtt.reasons import Reason


class Wire(Protocol):
    """The socket below a connection, as an asyncio transport has it."""

    def write(self, data: bytes) -> None:
        """Send, or keep until it can be sent."""
        ...

    def pause_reading(self) -> None:
        """Take no more from the client."""
        ...

    def resume_reading(self) -> None:
        """Go on."""
        ...

    def close(self) -> None:
        """End it once everything is sent."""
        ...

    def abort(self) -> None:
        """End it now."""
        ...


class Ties(Protocol):
    """What a visit needs of its connection."""

    def flush(self) -> None:
        """Send what the session has to say."""
        ...

    def answered(self) -> None:
        """Answers lie in the session, and nothing else has changed but that less is under way."""
        ...

    def moved(self) -> None:
        """Answers lie in the session, or the way in has failed."""
        ...

    def close(self, reason: Reason, text: str) -> None:
        """End the connection."""
        ...

    def pause(self, why: str) -> None:
        """Read no further, for one more cause."""
        ...

    def resume(self, why: str) -> None:
        """A cause is gone."""
        ...


class Connected(Protocol):
    """A connection as the door sees it. ``since`` and ``due``: times of the event loop; ``tick`` is wanted from ``due`` on."""

    address: str
    since: float
    due: float
    farewell: asyncio.Task[None] | None

    def tick(self, now: float) -> None:
        """Look whether the client is still there."""
        ...

    def revalidate(self) -> None:
        """Look whether its credentials still hold."""
        ...

    async def leave(self) -> None:
        """Answer what is on its way into the log, and say goodbye."""
        ...

    def cut(self) -> None:
        """End it now."""
        ...


class Present(Protocol):
    """A client that has logged in, as those see it who have to do with its session."""

    @property
    def keeps_place(self) -> bool:
        """Whether its session outlives the connection."""
        ...

    async def checkpoint(self) -> None:
        """Commit its place. Raises IotSphereError."""
        ...

    def make_way(self) -> None:
        """Another connection takes the session over."""
        ...

    async def saved(self) -> None:
        """Wait until its session is stored."""
        ...
