"""What carries the client protocol for the adapter API: frames out, frames back, and word of lost connections."""

from __future__ import annotations

from typing import Protocol

from ...entities.errors import IotSphereError


class WireUser(Protocol):
    """The side that speaks over a wire."""

    def opened(self) -> None:
        """A connection is there, the first one or another one after ``lost``: send again what still matters."""
        ...

    async def received(self, frame: bytes) -> None:
        """Take one frame. Not returning is back pressure: the wire reads on afterwards."""
        ...

    def lost(self, error: IotSphereError | None) -> None:
        """The connection is gone, with all that was sent and not answered. With an ``error`` none will follow."""
        ...


class Wire(Protocol):
    """A way to a client session. Frames arrive in order, or not at all when the connection is lost."""

    async def open(self, user: WireUser) -> None:
        """Connect, and call ``opened`` before it returns. Raises Unauthenticated, Forbidden, Limited, Unavailable."""
        ...

    def send(self, frame: bytes) -> None:
        """Put a request on its way; returns at once. Dropped while there is no connection."""
        ...

    def use_token(self, token: str) -> None:
        """Show this token from the next connection on."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...
