"""Tokens: issuing them within the issuer's own rights, and revoking them by id or by subject."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ...entities.errors import Forbidden, RequestInvalid
from ...entities.principal import DEVICE_GRANTS, KINDS, OPERATOR, OPERATOR_GRANTS, Principal, parse_grant
from ...entities.topic import is_device_id, is_user_id
from ..ports.clock import Clock
from ..ports.tokens import AccessTokens
from .revocations import Revocations

HOUR_S: Final = 3600
_TOKEN_ID: Final = re.compile(r"[\x21-\x7e]{1,128}\Z")


class IssuedToken(NamedTuple):
    """A token, shown once. ``expires_at``: ms."""

    token: str
    token_id: str
    subject: str
    expires_at: int


def operator(domain: str, name: str = OPERATOR) -> Principal:
    """The principal that may do everything inside one domain; what the command line acts as."""
    grants = tuple(parse_grant(text, domain=domain) for text in OPERATOR_GRANTS)
    return Principal("service", name, domain, grants, frozenset((OPERATOR,)))


def read_subject(text: str) -> tuple[str, str]:
    """Kind and name of ``device:ID``, ``user:ID`` or ``service:NAME``. Raises RequestInvalid."""
    kind, _, name = text.partition(":")
    if kind not in KINDS or not (is_device_id(name) if kind == "device" else is_user_id(name)):
        raise RequestInvalid(f"{text[:80]!a} is no subject: write device:ID, user:ID or service:NAME")
    return kind, name


class Tokens:
    """Issue and revoke, for principals with the role ``operator``, inside their own domain."""

    def __init__(self, tokens: AccessTokens, revocations: Revocations, clock: Clock) -> None:
        self._tokens = tokens
        self._revocations = revocations
        self._clock = clock

    def issue(
        self,
        issuer: Principal,
        subject: str,
        grants: Sequence[str] = (),
        roles: Sequence[str] = (),
        lifetime: int = 24 * HOUR_S,
    ) -> IssuedToken:
        """A token for a subject of the issuer's domain, ``lifetime`` in seconds.

        A device without grants gets those of every device. Raises RequestInvalid, Forbidden (a grant or role that the
        issuer does not hold) and NotFound (the issuer is no operator).
        """
        issuer.require_role(OPERATOR)
        kind, name = read_subject(subject)
        texts = grants or (DEVICE_GRANTS if kind == "device" else ())
        wanted = tuple(parse_grant(text, domain=issuer.domain, name=name) for text in texts)
        for grant in wanted:
            if not issuer.may_all(grant.action, grant.filter):
                raise Forbidden(f"{grant.action}:{grant.filter.text} is beyond your own grants; ask for less")
        if not issuer.roles.issuperset(roles):
            raise Forbidden("a role that you do not hold cannot be given; ask for less")
        now = self._clock.now()
        since = max(now, self._revocations.earliest(issuer.domain, kind, name))
        principal = Principal(kind, name, issuer.domain, wanted, frozenset(roles), now + lifetime * 1000, since=since)
        principal = replace(principal, token_id=secrets.token_urlsafe(16))
        return IssuedToken(self._tokens.issue(principal), principal.token_id, subject, principal.expires_at)

    async def revoke(self, issuer: Principal, token_id: str) -> None:
        """Let one token of the issuer's domain count no longer, at once. Unknown ids are noted all the same."""
        issuer.require_role(OPERATOR)
        if not _TOKEN_ID.match(token_id):
            raise RequestInvalid("a token id is 1 to 128 printable characters")
        await self._revocations.revoke_token(issuer.domain, token_id)

    async def end(self, principal: Principal) -> None:
        """Let the token that the principal itself shows count no longer: signing out. Raises RequestInvalid."""
        if not _TOKEN_ID.match(principal.token_id):
            raise RequestInvalid("this token carries no id of its own (`jti`), so it cannot be ended alone")
        await self._revocations.revoke_token(principal.domain, principal.token_id)

    async def revoke_subject(self, issuer: Principal, subject: str) -> None:
        """Let no token or login that this subject has by now count any longer."""
        issuer.require_role(OPERATOR)
        kind, name = read_subject(subject)
        await self._revocations.revoke_subject(issuer.domain, kind, name)
