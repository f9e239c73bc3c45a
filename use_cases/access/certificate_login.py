"""Logging in by a certificate: it must name a registered device, and it must not have been revoked meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...entities.certificate import Certificate, IdentitySource, device_of
from ...entities.errors import Forbidden, Unauthenticated
from ...entities.principal import Principal
from ..ports.certificates import CertificateTrust
from ..ports.clock import Clock
from .devices import Devices, split_username

NAMES_NOBODY: Final = (
    "the certificate names no registered device; register the device, or issue a certificate that names it"
)
NAMES_ANOTHER: Final = "the user name, password or token belongs to somebody else than the certificate"
OVER: Final = "the certificate has expired or was revoked; connect with a new one"


class CertificateLogin:
    """Finds the device behind a certificate. The certificate's chain was verified in the TLS handshake."""

    def __init__(self, devices: Devices, trust: CertificateTrust, clock: Clock, source: IdentitySource = "cn") -> None:
        self._devices = devices
        self._trust = trust
        self._clock = clock
        self._source = source

    def holds(self, certificate_id: str) -> bool:
        """Whether the certificate still counts, as far as revocation goes."""
        return self._trust.holds(certificate_id)

    async def device(self, certificate: Certificate, username: str) -> Principal | None:
        """The registered device that the certificate names; None when there is none.

        Raises Unauthenticated for a certificate that is over (a resumed TLS session does not look again), and Forbidden
        when ``username`` is not empty and names another device.
        """
        if certificate.expires_at <= self._clock.now() or not self.holds(certificate.id):
            raise Unauthenticated(OVER)
        named = device_of(certificate, self._source)
        found = await self._devices.known(*named) if named is not None else None
        if found is not None and username and split_username(username) != named:
            raise Forbidden(NAMES_ANOTHER)
        return found


def bound(principal: Principal, certificate: Certificate) -> Principal:
    """The principal, for no longer than the certificate counts."""
    ends = min(principal.expires_at or certificate.expires_at, certificate.expires_at)
    return replace(principal, certificate=certificate.id, expires_at=ends)
