"""Certificates in files: read, checked before they are used, and taken anew whenever the files change."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from ..adapters.certificates import certificate_id, revoked_ids
from ..entities.errors import CertificateRejected
from ..use_cases.ports.certificates import Validity
from ..use_cases.ports.clock import Clock
from .tls_contexts import CertificatePaths, Contexts, Profile

logger = structlog.get_logger("iotsphere.tls")

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
_LIST: Final = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)

T = TypeVar("T")
Signature: TypeAlias = tuple[tuple[int, ...] | None, ...]


class _Read(NamedTuple):
    """What the files hold. ``trust``: the authorities, as bytes."""

    validities: tuple[Validity, ...]
    revoked: frozenset[str]
    trust: bytes


class CertificateFiles:
    """Answers the port ``Certificates`` from files, and gives the doors their TLS contexts.

    A change counts once the files have stayed the same from one look to the next, so that a certificate and its key may
    be replaced one after the other. Links are followed, so swapped folders of mounted secrets are noticed.
    """

    def __init__(self, paths: CertificatePaths, clock: Clock) -> None:
        """Read them for the first time. Raises CertificateRejected."""
        self._paths = paths
        self._clock = clock
        self._contexts = Contexts(paths)
        self._seen = self._used = self._signature()
        self._read = self._checked(lambda: _read(paths))
        self._reported = dict(self._contexts.counts)

    @property
    def handshakes(self) -> dict[str, int]:
        """Handshakes so far: ``accepted``, and those that failed, by reason."""
        return dict(self._contexts.counts)

    def context(self, protocols: Sequence[str], *, demands: bool = False) -> ssl.SSLContext:
        """The context for a server, good for all its life. ``protocols``: for ALPN (RFC 7301).

        ``demands``: only clients with a certificate get in. Raises CertificateRejected.
        """
        return self._checked(lambda: self._contexts.of(Profile(tuple(protocols), demands)))

    # -- the port -----------------------------------------------------------------------------------------------------

    def holds(self, certificate_id: str) -> bool:
        """False once the certificate is on the newest list that was read."""
        return certificate_id not in self._read.revoked

    def validities(self) -> Sequence[Validity]:
        """What is in use, and how long it counts."""
        return self._read.validities

    async def refresh(self) -> bool:
        """Take what has changed and settled. Raises CertificateRejected, once per change."""
        self._report()
        now = await asyncio.to_thread(self._signature)
        settled = now == self._seen
        self._seen = now
        if now == self._used or not settled:
            return False
        read, fresh = await asyncio.to_thread(self._prepare, now)
        if await asyncio.to_thread(self._signature) != now:
            return False  # it changed while it was read
        self._used = now
        self._contexts.use(fresh, trust_changed=read.trust != self._read.trust)
        self._read = read
        return True

    def _prepare(self, signature: Signature) -> tuple[_Read, dict[Profile, ssl.SSLContext]]:
        try:
            read = self._checked(lambda: _read(self._paths))
            fresh = self._checked(self._contexts.renew)
            before, now = dict(_ends(self._read)), self._clock.now()
            for name, until in _ends(read):
                if until <= now < before.get(name, 0):
                    raise CertificateRejected(f"the new {name} has expired already; put a current one in its place")
        except CertificateRejected:
            self._used = signature  # so that it is said once
            raise
        return read, fresh

    def _checked(self, make: Callable[[], T]) -> T:
        try:
            return make()
        except ssl.SSLError as error:
            raise CertificateRejected(
                f"{self._paths.certificate} and its key cannot be used ({error.reason or 'not PEM'}); "
                "they must be PEM, belong together, and the key must have no passphrase"
            ) from error
        except OSError as error:
            raise CertificateRejected(f"cannot read {error.filename}: {error.strerror}") from error

    def _signature(self) -> Signature:
        return tuple(_stat(path) for path in self._paths.all())

    def _report(self) -> None:
        """Say once per look why handshakes failed: the clients see no more than a closed connection."""
        counts = self.handshakes
        failed = {why: count - self._reported.get(why, 0) for why, count in counts.items() if why != "accepted"}
        self._reported = counts
        failed = {why: count for why, count in failed.items() if count}
        if failed:
            logger.info("tls_handshakes_failed", **failed)


def _stat(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _ends(read: _Read) -> list[tuple[str, int]]:
    return [(each.name, each.until) for each in read.validities]


def _read(paths: CertificatePaths) -> _Read:
    """Parse all files but the key, which only has to be there. Raises CertificateRejected and OSError."""
    paths.key.open("rb").close()
    chain = _certificates(paths.certificate)
    validities = [_validity("certificate", chain)]
    revoked: frozenset[str] = frozenset()
    authorities = _certificates(paths.client_ca) if paths.client_ca is not None else []
    if authorities:
        validities.append(_validity("client_ca", authorities))
    if paths.client_crl is not None:
        lists = _lists(paths.client_crl, authorities)
        revoked = frozenset(revoked_ids(lists))
        ending = [each for each in lists if each.next_update_utc is not None]
        if ending:
            first = min(ending, key=_next_update)
            since, until = _ms(first.last_update_utc), _ms(_next_update(first))
            validities.append(Validity("client_crl", f"{first.issuer.rfc4514_string()} {since}", since, until))
    return _Read(tuple(validities), revoked, b"".join(sorted(each.public_bytes(Encoding.DER) for each in authorities)))


def _contents(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise CertificateRejected(f"{path} is larger than {MAX_FILE_BYTES} bytes; is it the right file?")
    return data


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_contents(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificateRejected(f"{path} holds no certificates in PEM; check the file") from error


def _lists(path: Path, authorities: Sequence[x509.Certificate]) -> list[x509.CertificateRevocationList]:
    """The lists of a file, each signed by one of the authorities: any other would be trusted by nobody."""
    try:
        lists = [x509.load_pem_x509_crl(block) for block in _LIST.findall(_contents(path))]
        signed = all(any(_has_signed(each, crl) for each in authorities) for crl in lists)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateRejected(f"{path} holds no lists of revoked certificates in PEM; check the file") from error
    if not lists:
        raise CertificateRejected(f"{path} holds no list of revoked certificates; an empty list is a signed one, too")
    if not signed:
        raise CertificateRejected(f"{path} holds a list that none of the client authorities has signed")
    return lists


def _has_signed(authority: x509.Certificate, crl: x509.CertificateRevocationList) -> bool:
    key = authority.public_key()
    return authority.subject == crl.issuer and crl.is_signature_valid(key)  # type: ignore[arg-type]  # TypeError else


def _validity(name: str, certificates: Sequence[x509.Certificate]) -> Validity:
    first = min(certificates, key=lambda each: each.not_valid_after_utc)
    identity = certificate_id(first.issuer, first.serial_number)
    return Validity(name, identity, _ms(first.not_valid_before_utc), _ms(first.not_valid_after_utc))


def _next_update(crl: x509.CertificateRevocationList) -> datetime:
    moment = crl.next_update_utc
    assert moment is not None
    return moment


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
