"""Signing in to the console: a code that counts once and for minutes becomes a token for hours.

Whoever can read the gateway's secrets can ask for a code; the token itself is then never part of an address, a log or a
shell's history. Kept is only the code's hash, in the documents, so any process of the gateway takes it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable
from typing import Final

from ...entities.errors import RateLimited, Unauthenticated
from ...entities.principal import OPERATOR
from ..back_off import BackOff
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

    def __init__(
        self, documents: Documents, tokens: Tokens, clock: Clock, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._documents = documents
        self._tokens = tokens
        self._clock = clock
        self._monotonic = monotonic
        self._back_off = BackOff()

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

    async def redeem(self, code: str, address: str = "") -> IssuedToken:
        """The token that the code stands for. Raises Unauthenticated; of several who try at once, one gets it.

        ``address``: where the caller connects from. One that keeps failing gets RateLimited (``retry_after``: seconds),
        whatever it shows: a code cannot be guessed, and guessing is not to cost anything either.
        """
        now = self._monotonic()
        wait = self._back_off.wait(address, now)
        if wait > 0:
            raise RateLimited(f"too many codes that count no longer; try again in {wait:.0f} s", retry_after=wait)
        self._back_off.failed(address, now)  # before anything is awaited, so that many at once count as well
        issued = await self._redeem(code)
        self._back_off.succeeded(address)
        return issued

    async def _redeem(self, code: str) -> IssuedToken:
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
