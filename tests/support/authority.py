"""A certificate authority for tests: real certificates, keys and lists of revoked ones, in files."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)
LOOPBACK = x509.IPAddress(ip_address("127.0.0.1"))
NO_NAMES: tuple[x509.GeneralName, ...] = ()


class Issued(NamedTuple):
    """A certificate with its key, in one file each."""

    certificate: Path
    key: Path
    serial: int


def subject(*common_names: str, organizations: Iterable[str] = ()) -> x509.Name:
    """A name as it is given, however odd."""
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    parts += [x509.NameAttribute(NameOID.COMMON_NAME, each) for each in common_names]
    return x509.Name(parts)


class Authority:
    """Signs certificates into a folder. ``path``: its own certificate."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self.folder = folder
        self.name = subject(name)
        self.key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(self.name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 365 * DAY)
            .add_extension(x509.BasicConstraints(True, None), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        self.path = folder / f"{name.replace(' ', '-')}.pem"
        self.path.write_bytes(_pem(self.certificate))

    def issue(
        self,
        file: str,
        name: x509.Name,
        alternatives: Sequence[x509.GeneralName] = NO_NAMES,
        *,
        days: tuple[float, float] = (-1, 90),
        purpose: x509.ObjectIdentifier | None = None,
    ) -> Issued:
        """A certificate in ``file``.pem with its key in ``file``.key. ``days``: from now, begin and end."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(serial := x509.random_serial_number())
            .not_valid_before(now + days[0] * DAY)
            .not_valid_after(now + days[1] * DAY)
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        if purpose is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        made = Issued(self.folder / f"{file}.pem", self.folder / f"{file}.key", serial)
        made.certificate.write_bytes(_pem(builder.sign(self.key, hashes.SHA256())))
        secret = serialization.PrivateFormat.PKCS8
        made.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, secret, serialization.NoEncryption()))
        return made

    def server(self, file: str = "gateway", *, days: tuple[float, float] = (-1, 90)) -> Issued:
        """A certificate for a gateway on 127.0.0.1."""
        return self.issue(file, subject(file), [LOOPBACK], days=days, purpose=ExtendedKeyUsageOID.SERVER_AUTH)

    def device(self, common_name: str, *organizations: str, file: str = "device") -> Issued:
        """A certificate for a device."""
        return self.issue(file, subject(common_name, organizations=organizations))

    def revoke(self, *serials: int, file: str = "revoked.pem", days: tuple[float, float] = (-1, 7)) -> Path:
        """Write a list of revoked certificates. ``days``: from now, when it was made and when the next one is due."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.name)
            .last_update(now + days[0] * DAY)
            .next_update(now + days[1] * DAY)
        )
        for serial in serials:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            builder = builder.add_revoked_certificate(entry)
        path = self.folder / file
        path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path

    def client(self, certificate: Issued | None = None) -> ssl.SSLContext:
        """A client's context that believes this authority."""
        context = ssl.create_default_context(cafile=str(self.path))
        if certificate is not None:
            context.load_cert_chain(certificate.certificate, certificate.key)
        return context


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def common_name(told: Any) -> str:
    """The common name in what ``getpeercert`` tells."""
    return str(dict(part[0] for part in told["subject"])["commonName"])


def old_client() -> ssl.SSLContext:
    """A client that speaks TLS 1.1 and nothing newer, to anybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it is old on purpose
        context.minimum_version = ssl.TLSVersion.TLSv1_1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context
