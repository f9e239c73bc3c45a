"""What a connection needs of its socket, and a visit of its connection."""

from __future__ import annotations

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
