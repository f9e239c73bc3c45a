"""A client's certificate as far as it matters here: what it says about its holder, and the device that this names.

Who signed it, and whether that signer may be believed, was decided in the TLS handshake.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from .topic import DEFAULT_DOMAIN, is_device_id, is_domain

IdentitySource: TypeAlias = Literal["cn", "san"]
SCHEME: Final = "iotsphere://"


class Certificate(NamedTuple):
    """The facts of a verified certificate.

    ``id``: ``x509:ISSUER:SERIAL``, unique for whatever one authority has signed. ``expires_at``: ms since 1970.
    ``common_names`` and ``organizations``: of its subject (CN, O). ``uris``, ``names``: of its subject's alternative
    names (URI, DNS). All texts are as the certificate has them; nothing is trimmed, folded or normalised.
    """

    id: str
    expires_at: int
    common_names: tuple[str, ...] = ()
    organizations: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def device_of(certificate: Certificate, source: IdentitySource) -> tuple[str, str] | None:
    """Domain and device id that a certificate names; None where it names none, or more than one.

    ``cn``: the common name is the device id, the organization its domain. ``san``: the URI
    ``iotsphere://DOMAIN/devices/ID``; without one, the DNS name is the device id and the organization its domain.
    Without an organization it is the default domain. Ids are compared exactly, capitals included.
    """
    if source == "san":
        named = [uri for uri in certificate.uris if uri.startswith(SCHEME)]
        if named:
            return _from_uri(named[0]) if len(named) == 1 else None
    ids = certificate.common_names if source == "cn" else certificate.names
    domains = certificate.organizations or (DEFAULT_DOMAIN,)
    return _checked(domains[0], ids[0]) if len(ids) == len(domains) == 1 else None


def _from_uri(uri: str) -> tuple[str, str] | None:
    parts = uri.removeprefix(SCHEME).split("/")
    return _checked(parts[0], parts[2]) if len(parts) == 3 and parts[1] == "devices" else None


def _checked(domain: str, device_id: str) -> tuple[str, str] | None:
    return (domain, device_id) if is_domain(domain) and is_device_id(device_id) else None
