"""TLS: the files behind it, who logs in by a certificate, and which addresses speak it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from ssl import SSLContext
from typing import Any, Final, NamedTuple

from ..adapters.edge import Edge
from ..entities.errors import RequestInvalid
from ..settings import ROLES, Settings
from ..use_cases.access.authenticate import Authenticate
from ..use_cases.access.certificate_login import CertificateLogin
from ..use_cases.access.certificate_watch import CertificateWatch
from ..use_cases.access.devices import Devices
from ..use_cases.access.revocations import Revocations
from ..use_cases.ports.clock import Clock
from ..use_cases.ports.tokens import AccessTokens
from ..use_cases.publish import MessagePublishUseCase

HTTP_PROTOCOLS: Final = ("http/1.1",)
MQTT_PROTOCOLS: Final = ("mqtt",)


def certificates_of(settings: Settings, clock: Clock) -> Any:
    """None without TLS."""
    if settings.tls_certificate is None:
        return None
    from ..drivers.certificates import CertificateFiles
    from ..drivers.tls_contexts import CertificatePaths

    own = settings.tls_certificate
    paths = CertificatePaths(own, settings.tls_key or own, settings.tls_client_ca, settings.tls_client_crl)
    return CertificateFiles(paths, clock)


def login_of(settings: Settings, certificates: Any, devices: Devices, clock: Clock) -> CertificateLogin | None:
    if certificates is None or settings.tls_client_ca is None:
        return None
    return CertificateLogin(devices, certificates, clock, settings.tls_identity)


def authenticate_of(
    devices: Devices, tokens: AccessTokens, revocations: Revocations, login: CertificateLogin | None
) -> Authenticate:
    return Authenticate(devices, tokens, revocations, certificates=login)


def watch_of(
    settings: Settings, certificates: Any, clock: Clock, edge: Edge, publish: MessagePublishUseCase
) -> CertificateWatch | None:
    """Alerts go to the operator's domain."""
    if certificates is None:
        return None
    from ..adapters.alerts import alert

    async def tell(name: str, facts: Mapping[str, object]) -> None:
        await publish([alert(edge, settings.domains[0], name, facts, clock.now())])

    return CertificateWatch(certificates, clock, tell)


class Listener(NamedTuple):
    """An address to listen on. ``name``: of its endpoint. ``form``: how that is shown. ``setting``: what to change."""

    name: str
    address: str
    form: str
    tls: SSLContext | None
    setting: str

    @property
    def is_open_to_readers(self) -> bool:
        """Whether others than this host can reach it, and read what travels to it."""
        host = self.address.rpartition(":")[0].strip("[]")
        try:
            return self.tls is None and not ip_address(host or "127.0.0.1").is_loopback
        except ValueError:
            return self.tls is None and host != "localhost"


def listeners_of(settings: Settings, certificates: Any, role: str) -> Sequence[Listener]:
    """Where a role's door listens. Raises RequestInvalid for an unknown role, and CertificateRejected."""

    def tls(door: str, protocols: Sequence[str]) -> SSLContext | None:
        if certificates is None:
            return None
        context: SSLContext = certificates.context(protocols, demands=door in settings.tls_require_client_certificate)
        return context

    found: list[Listener] = []
    match role:
        case "ingress":
            if settings.mqtt:
                found.append(Listener("mqtt", settings.mqtt, "{}", None, "--mqtt HOST:PORT"))
            if (context := tls("mqtt", MQTT_PROTOCOLS)) is not None:
                found.append(
                    Listener("mqtts", settings.mqtt_tls, "mqtts://{}", context, "IOTSPHERE_MQTT_TLS=HOST:PORT")
                )
        case "websocket":
            context = tls("websocket", HTTP_PROTOCOLS)
            form = "ws://{}" if context is None else "wss://{}"
            found.append(Listener("websocket", settings.websocket, form, context, "--websocket HOST:PORT"))
        case "api":
            context = tls("http", HTTP_PROTOCOLS)
            form = "http://{}" if context is None else "https://{}"
            found.append(Listener("http", settings.http, form, context, "--http HOST:PORT"))
        case _:
            raise RequestInvalid(f"{role!a} is no role: choose from {', '.join(ROLES)}")
    return found
