"""TLS contexts whose certificates can change under a listening socket, and why handshakes fail, counted by reason.

A server keeps the context that it was started with, and a list of revoked certificates that is loaded into a context in
use is not looked at. So each handshake is led over to the newest context by its first message (the callback for the
server name, which runs without a name too).
"""

from __future__ import annotations

import ssl
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# For TLS 1.2: forward secrecy and authenticated encryption only (RFC 9325 section 4.2). TLS 1.3 has no others.
CIPHERS_1_2: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"

# X509_V_ERR_* of OpenSSL: what was wrong with a client's certificate.
_VERIFY: Final = {
    3: "no_revocation_list",
    9: "certificate_not_yet_valid",
    10: "certificate_expired",
    12: "revocation_list_expired",
    23: "certificate_revoked",
    26: "certificate_for_another_purpose",
}
_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "certificate_missing",
    "UNSUPPORTED_PROTOCOL": "protocol_version",
    "VERSION_TOO_LOW": "protocol_version",
    "NO_SHARED_CIPHER": "no_shared_cipher",
    "HTTP_REQUEST": "no_tls",
    "WRONG_VERSION_NUMBER": "no_tls",
    "TLSV1_ALERT_UNKNOWN_CA": "refused_by_client",
    "SSLV3_ALERT_BAD_CERTIFICATE": "refused_by_client",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "refused_by_client",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "refused_by_client",
}
OUTDATED: Final = "session_outdated"


@dataclass(frozen=True, slots=True)
class CertificatePaths:
    """Files in PEM. ``key`` may be the same file as ``certificate``, which holds its chain as well.

    ``client_ca``: authorities whose client certificates are believed. ``client_crl``: their lists of revoked ones.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_crl: Path | None = None

    def all(self) -> tuple[Path, ...]:
        """The files that there are."""
        return tuple(path for path in (self.certificate, self.key, self.client_ca, self.client_crl) if path is not None)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a door wants. ``protocols``: its names for ALPN. ``demands``: nobody gets in without a certificate."""

    protocols: tuple[str, ...]
    demands: bool = False


def make_context(paths: CertificatePaths, profile: Profile) -> ssl.SSLContext:
    """A server's context. Raises OSError (with ssl.SSLError among them) and ValueError for files that do not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS_1_2)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(list(profile.protocols))
    context.load_cert_chain(paths.certificate, paths.key, password=lambda: "")  # rather fails than asks at the terminal
    if paths.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED if profile.demands else ssl.CERT_OPTIONAL
        context.load_verify_locations(paths.client_ca)
        # A resumed session is not verified again. TLS 1.2 resumes without tickets too: see Contexts.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        if paths.client_crl is not None:
            context.load_verify_locations(paths.client_crl)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


class Contexts:
    """One context per profile that servers keep, each with the newest one behind it.

    ``counts``: ``accepted``, and the handshakes that failed, by reason from a fixed set.
    """

    def __init__(self, paths: CertificatePaths) -> None:
        self.counts: Counter[str] = Counter()
        self._paths = paths
        self._newest: dict[Profile, ssl.SSLContext] = {}
        self._served: dict[Profile, ssl.SSLContext] = {}
        self._trusted_since = 0.0
        self._handshake = _counted(self)

    def of(self, profile: Profile) -> ssl.SSLContext:
        """The context for a server, the same each time."""
        served = self._served.get(profile)
        if served is None:
            self._newest[profile] = make_context(self._paths, profile)
            served = self._served[profile] = make_context(self._paths, profile)
            served.sslobject_class = self._handshake
            served.sni_callback = lambda connection, _name, _context: self._lead_over(connection, profile)
        return served

    def renew(self) -> dict[Profile, ssl.SSLContext]:
        """Fresh contexts for all profiles, not in use before ``use``. Raises as ``make_context``."""
        return {profile: make_context(self._paths, profile) for profile in self._served}

    def use(self, fresh: dict[Profile, ssl.SSLContext], *, trust_changed: bool) -> None:
        """Let new handshakes have these contexts. ``trust_changed``: sessions from before must not be resumed."""
        self._newest.update(fresh)
        if trust_changed:
            self._trusted_since = time.time()

    def outdated(self, connection: ssl.SSLObject) -> bool:
        """Whether a handshake resumed a session that was verified by authorities which may be gone."""
        session = connection.session
        return bool(connection.session_reused) and session is not None and session.time <= self._trusted_since

    def _lead_over(self, connection: ssl.SSLSocket | ssl.SSLObject, profile: Profile) -> None:
        connection.context = self._newest[profile]


def _counted(contexts: Contexts) -> type[ssl.SSLObject]:
    class Handshake(ssl.SSLObject):
        """A connection that tells how its handshake went."""

        def do_handshake(self) -> None:
            counts = contexts.counts
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                counts[reason_of(error)] += 1
                raise
            if contexts.outdated(self):
                counts[OUTDATED] += 1
                raise ssl.SSLError(OUTDATED)
            counts["accepted"] += 1

    return Handshake


def reason_of(error: ssl.SSLError) -> str:
    """Why a handshake failed, as one of a fixed set of words."""
    code: Any = getattr(error, "verify_code", None)
    if code is not None:
        return _VERIFY.get(code, "certificate_untrusted")
    return _REASONS.get(error.reason or "", "other")
