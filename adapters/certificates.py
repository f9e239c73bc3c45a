"""Certificates and lists of revoked ones as their encodings have them: what we need to know of them, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from ..entities.certificate import Certificate

ISSUER_DIGITS: Final = 32


def read_certificate(encoded: bytes) -> Certificate:
    """The facts of a certificate in DER (RFC 5280), exactly as they stand there. Raises ValueError for anything else."""
    parsed = x509.load_der_x509_certificate(encoded)
    return Certificate(
        certificate_id(parsed.issuer, parsed.serial_number),
        int(parsed.not_valid_after_utc.timestamp() * 1000),
        _texts(parsed.subject, NameOID.COMMON_NAME),
        _texts(parsed.subject, NameOID.ORGANIZATION_NAME),
        *_alternative_names(parsed),
    )


def certificate_id(issuer: x509.Name, serial: int) -> str:
    """The name of a certificate by which a list of its issuer revokes it."""
    return f"x509:{sha256(issuer.public_bytes()).hexdigest()[:ISSUER_DIGITS]}:{serial:x}"


def revoked_ids(lists: Sequence[x509.CertificateRevocationList]) -> Iterator[str]:
    """The names of all certificates that the lists revoke."""
    for each in lists:
        prefix = certificate_id(each.issuer, 0)[:-1]
        for entry in each:
            yield f"{prefix}{entry.serial_number:x}"


def _texts(name: x509.Name, kind: x509.ObjectIdentifier) -> tuple[str, ...]:
    return tuple(_text(attribute.value) for attribute in name.get_attributes_for_oid(kind))


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else ""  # a bit string is nobody's name


def _alternative_names(parsed: x509.Certificate) -> tuple[tuple[str, ...], tuple[str, ...]]:
    try:
        found = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return (), ()
    uris = found.get_values_for_type(x509.UniformResourceIdentifier)
    return tuple(uris), tuple(found.get_values_for_type(x509.DNSName))
