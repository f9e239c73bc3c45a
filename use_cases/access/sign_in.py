"""Signing in to the console: a code that counts once and for minutes becomes a token for hours.

Whoever can read the gateway's secrets can ask for a code; the token itself is then never part of an address, a log or a
shell's history. Kept is only the code's hash, in the documents, so any process of the gateway takes it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Final

from ...entities.errors import Unauthenticated
from ...entities.principal import OPERATOR
from ..ports.clock import Clock
from ..ports.documents import Documents
from ..ports.tokens import NOT_BELIEVED
from .tokens import HOUR_S, IssuedToken, Tokens, operator, read_subject

COLLECTION: Final = "sign-in-codes"
CODE_BYTES: Final = 24
CODE_MS: Final = 15 * 60 * 1000
SESSION_S: Final = 12 * HOUR_S
MAX_CODE_CHARACTERS: Final = 128


class SignIn:
    """Hands out codes for operators, and redeems each of them once."""

    def __init__(self, documents: Documents, tokens: Tokens, clock: Clock) -> None:
        self._documents = documents
        self._tokens = tokens
        self._clock = clock

    async def invite(self, domain: str, name: str = OPERATOR) -> str:
        """A code with which ``user:name`` becomes an operator of the domain, once, within 15 minutes.

        Raises RequestInvalid for a name that is none. What nobody redeemed in time is removed on the way.
        """
        read_subject(f"user:{name}")
        now = self._clock.now()
        await self._clear(now)
        code = secrets.token_urlsafe(CODE_BYTES)
        value = json.dumps({"domain": domain, "name": name, "until": now + CODE_MS}).encode()
        await self._documents.put(COLLECTION, _key(code), value, expected=0)
        return code

    async def redeem(self, code: str) -> IssuedToken:
        """The token that the code stands for. Raises Unauthenticated; of several who try at once, one gets it."""
        if not code or len(code) > MAX_CODE_CHARACTERS:
            raise Unauthenticated(NOT_BELIEVED)
        key = _key(code)
        stored = await self._documents.get(COLLECTION, key)
        if stored is None or not await self._documents.delete(COLLECTION, key):
            raise Unauthenticated(NOT_BELIEVED)
        wanted = json.loads(stored.value)
        if self._clock.now() >= wanted["until"]:
            raise Unauthenticated(NOT_BELIEVED)
        issuer = operator(wanted["domain"])
        grants = [f"{grant.action}:{grant.filter.text}" for grant in issuer.grants]
        return self._tokens.issue(issuer, f"user:{wanted['name']}", grants, sorted(issuer.roles), SESSION_S)

    async def _clear(self, now: int) -> None:
        stored = await self._documents.scan(COLLECTION)
        over = [document.key for document in stored if now >= json.loads(document.value)["until"]]
        if over:
            await self._documents.put_many(COLLECTION, dict.fromkeys(over))


def _key(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
