"""Port: the certificates that a gateway shows, and those that it believes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Validity(NamedTuple):
    """How long something counts. ``name``: ``certificate``, ``client_ca`` or ``client_crl``. ``id``: which one it is.

    ``since`` and ``until``: ms since 1970. Nobody is let in by a list of revoked certificates past its ``until``.
    """

    name: str
    id: str
    since: int
    until: int


class CertificateTrust(Protocol):
    """Tells, without waiting, whether a certificate still counts that was verified when its connection began."""

    def holds(self, certificate_id: str) -> bool:
        """False once the certificate is on the newest list of revoked ones that was read."""
        ...


class Certificates(CertificateTrust, Protocol):
    """Certificates that are renewed while the gateway runs."""

    async def refresh(self) -> bool:
        """Take what has changed since the last look; tells whether something has. Repeating is safe.

        New connections meet the new certificates, open ones are not touched. Raises CertificateRejected for what cannot
        be used, once per change: until the next change the old certificates go on to count.
        """
        ...

    def validities(self) -> Sequence[Validity]:
        """What is in use, and how long it counts."""
        ...
