"""Authenticating: from a password, token or certificate to a principal, and whether that is still valid later."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ...entities.certificate import Certificate
from ...entities.errors import Forbidden, RateLimited, Unauthenticated
from ...entities.principal import Principal
from ..back_off import BackOff
from ..ports.tokens import NOT_BELIEVED, AccessTokens
from .certificate_login import NAMES_ANOTHER, NAMES_NOBODY, CertificateLogin, bound
from .devices import Devices
from .revocations import Revocations

MAX_USERNAME_CHARACTERS: Final = 256
MAX_PASSWORD_CHARACTERS: Final = 8 * 1024


class Authenticate:
    """Devices by their secret or certificate, everybody by a token. ``monotonic``: seconds that never go back."""

    def __init__(
        self,
        devices: Devices,
        tokens: AccessTokens,
        revocations: Revocations,
        monotonic: Callable[[], float] = time.monotonic,
        certificates: CertificateLogin | None = None,
    ) -> None:
        self._devices = devices
        self._tokens = tokens
        self._revocations = revocations
        self._certificates = certificates
        self._monotonic = monotonic
        self._back_off = BackOff()

    async def password(self, username: str, password: str, address: str) -> Principal:
        """The principal of a user name and password; a token as the password is accepted with any user name.

        ``address``: where the caller connects from. Raises Unauthenticated, and RateLimited (``retry_after``: seconds)
        for an address and user name that keep failing.
        """
        caller = f"{address}\n{username[:MAX_USERNAME_CHARACTERS]}"
        wait = self._back_off.wait(caller, self._monotonic())
        if wait > 0:
            raise RateLimited(f"too many failed logins; try again in {wait:.0f} s", retry_after=wait)
        try:
            principal = await self._check(username, password)
        except Unauthenticated:
            self._back_off.failed(caller, self._monotonic())
            raise
        self._back_off.succeeded(caller)
        return principal

    async def _check(self, username: str, password: str) -> Principal:
        fits = len(username) <= MAX_USERNAME_CHARACTERS and len(password) <= MAX_PASSWORD_CHARACTERS
        if not fits or not username.isprintable():  # beside a token too, where the name does not matter
            raise Unauthenticated(NOT_BELIEVED)
        if password.count(".") == 2:  # our secrets hold no dot
            return self.token(password)
        principal = await self._devices.verify(username, password)
        if principal is None or not self._revocations.allows(principal):
            raise Unauthenticated(NOT_BELIEVED)
        return principal

    async def certificate(
        self, certificate: Certificate, username: str | None, password: str | None, address: str
    ) -> Principal:
        """The principal of a connection with a client certificate, which may show a user name and password as well.

        A certificate that names a registered device needs neither; both must be that device's where they are given. Any
        other one proves nothing about its holder: users and services show their token, and devices are refused.
        Raises Forbidden and what ``password`` raises.
        """
        if self._certificates is None:
            raise Forbidden(NAMES_NOBODY)
        holder = await self._certificates.device(certificate, username or "")
        if not password:
            if holder is None or not self._revocations.allows(holder):
                raise Forbidden(NAMES_NOBODY)
            return bound(holder, certificate)
        shown = await self.password(username or "", password, address)
        if shown.identity != holder.identity if holder is not None else shown.kind == "device":
            raise Forbidden(NAMES_ANOTHER)
        return bound(shown, certificate)

    def token(self, text: str) -> Principal:
        """The principal of a token. Raises Unauthenticated, always with the same text."""
        principal = self._tokens.read(text)
        if not self._revocations.allows(principal):
            raise Unauthenticated(NOT_BELIEVED)
        return principal

    def still_valid(self, principal: Principal) -> bool:
        """Tell whether the credential behind a principal still counts: cheap enough to ask for each message."""
        return self._revocations.allows(principal) and (not principal.certificate or self.trusts(principal.certificate))

    def trusts(self, certificate_id: str) -> bool:
        """Tell whether a certificate that was verified when its connection began has not been revoked since."""
        return self._certificates is None or self._certificates.holds(certificate_id)

    async def refresh(self) -> None:
        """Learn of revocations that other processes made."""
        await self._revocations.refresh()
