"""Access tokens, as the use cases see them: a principal as a text that only we (or whom we trust) can have made."""

from __future__ import annotations

from typing import Final, Protocol

from ...entities.principal import Principal

NOT_BELIEVED: Final = "the credential is missing or not accepted; ask the operator for a new one"


class AccessTokens(Protocol):
    """Turns principals into token texts and back.

    Every refusal is Unauthenticated with the one text ``NOT_BELIEVED``, whatever the reason, so that an attacker
    learns nothing from it; the reason is the error's cause. Whether a token was revoked is not decided here.
    """

    def issue(self, principal: Principal) -> str:
        """The token of a principal. Raises RequestInvalid when it has no end, or lives longer than allowed."""
        ...

    def read(self, text: str) -> Principal:
        """The principal that a token speaks for; its ``token_id`` is never empty. Raises Unauthenticated."""
        ...
