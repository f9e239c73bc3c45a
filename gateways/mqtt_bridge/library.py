"""A client of the library for one connection, with credentials and certificates read anew, and its words in ours."""

from __future__ import annotations

import ssl
from typing import Any, cast

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.reasoncodes import ReasonCode

from ...adapters.bridge.file import BrokerSpec
from ...adapters.bridge.messages import Outgoing, user_properties
from ...adapters.mqtt.properties import NONE, Properties
from .options import MAX_PACKET_BYTES, BridgeOptions


def password_of(broker: BrokerSpec) -> str | None:
    """The password, read anew for each connection, so that it can be changed without a restart. Raises OSError."""
    if broker.password_file is None:
        return None
    with open(broker.password_file, encoding="utf-8") as file:
        return file.read().rstrip("\r\n")


class Context(ssl.SSLContext):
    """A TLS context that remembers its socket: paho forgets to close the one whose handshake failed."""

    last: ssl.SSLSocket | None = None

    def wrap_socket(self, *given: Any, **named: Any) -> ssl.SSLSocket:
        """As the original does."""
        self.last = super().wrap_socket(*given, **named)
        return self.last


def context_of(broker: BrokerSpec) -> Context:
    """TLS 1.2 or newer, checked against the given authority or the system's; certificates are read anew, too."""
    context = Context(ssl.PROTOCOL_TLS_CLIENT)  # which checks the certificate and the name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if broker.ca_file is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(broker.ca_file)
    if broker.certificate_file is not None:
        context.load_cert_chain(broker.certificate_file, broker.key_file)
    return context


def client_of(
    broker: BrokerSpec, client_id: str, options: BridgeOptions, context: ssl.SSLContext | None
) -> aiomqtt.Client:
    """A client that asks for its old session. Raises OSError when the password cannot be read."""
    wanted: Any = PahoProperties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho's own lack
    wanted.SessionExpiryInterval = broker.session_seconds
    wanted.ReceiveMaximum = broker.receive_maximum
    wanted.MaximumPacketSize = MAX_PACKET_BYTES
    return aiomqtt.Client(
        broker.host,
        broker.port,
        identifier=client_id,
        username=broker.username,
        password=password_of(broker),
        protocol=aiomqtt.ProtocolVersion.V5,
        clean_start=False,
        properties=wanted,
        # paho pings after one keep alive and gives up after two, each a second late at most.
        keepalive=max(1, int(broker.keep_alive * 0.75) - 1),
        timeout=options.connect,
        max_inflight_messages=options.window,
        tls_context=context,
    )


def publish_properties(outgoing: Outgoing, origin: str) -> PahoProperties:
    """What travels beside a payload on its way out."""
    properties: Any = PahoProperties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho's own lack
    properties.UserProperty = user_properties(outgoing, origin)
    if outgoing.correlation_id is not None:
        properties.CorrelationData = outgoing.correlation_id.encode()
    if outgoing.expires_in is not None:
        properties.MessageExpiryInterval = outgoing.expires_in
    return cast(PahoProperties, properties)


def properties_of(given: Any) -> Properties:
    """The properties of a PUBLISH that concern a bridge."""
    found = vars(given)
    if len(found) == 4:  # what every object of paho's has; no property is set
        return NONE
    return Properties(
        message_expiry_interval=found.get("MessageExpiryInterval"),
        content_type=found.get("ContentType"),
        correlation_data=found.get("CorrelationData"),
        user_properties=tuple(found.get("UserProperty", ())),
    )


def code_of(reason: object) -> int | None:
    """The number of a reason code, None where there is none."""
    if isinstance(reason, ReasonCode):
        return int(reason.value)
    return reason if isinstance(reason, int) else None
