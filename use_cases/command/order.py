"""What a caller asks when it asks for a command, and how long that may wait and take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...entities.command import Command
from ...entities.errors import RequestInvalid

DEFAULT_LIFE_MS: Final = 24 * 3600 * 1000
MAX_LIFE_MS: Final = 30 * DEFAULT_LIFE_MS
DEFAULT_TIMEOUT_MS: Final = 60_000
MAX_TIMEOUT_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a caller asks. ``id``: also the message id. ``stated_at``: when the caller says that it asked, 0: not said.

    ``expires_at``, ms since 1970, and ``timeout``, ms: 0 for the defaults (24 hours, a minute).
    """

    id: str
    domain: str
    device: str
    caller: str
    payload: Mapping[str, Any]
    expires_at: int = 0
    timeout: int = 0
    stated_at: int = 0
    rollout: str = ""

    def check(self, now: int) -> None:
        """Raise RequestInvalid for times that are out of bounds at ``now`` (ms), which says nothing of a repetition."""
        if self.expires_at and not now < self.expires_at <= now + MAX_LIFE_MS:
            raise RequestInvalid("expiresAt: a command lives until a time in the future, 30 days from now at most")
        if self.timeout and not 0 < self.timeout <= MAX_TIMEOUT_MS:
            raise RequestInvalid("timeout: a command waits for its device for more than 0 s and up to 24 hours")

    def command(self, now: int) -> Command:
        """The command that it asks for at ``now`` (ms)."""
        return Command(
            id=self.id,
            domain=self.domain,
            device=self.device,
            caller=self.caller,
            payload=self.payload,
            created_at=now,
            expires_at=self.expires_at or now + DEFAULT_LIFE_MS,
            timeout=self.timeout or DEFAULT_TIMEOUT_MS,
            rollout=self.rollout,
        )
