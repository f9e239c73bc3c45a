"""What a CONNECT may ask for, what it is granted of that, and the words in which it is welcomed (MQTT 5 section 3.1)."""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

from .life import Offer
from .packets import MQTT_5, Connect
from .properties import NONE, Properties
from .reasons import Reason

MAX_CLIENT_ID_BYTES: Final = 256


class Granted(NamedTuple):
    """``keep_alive`` (0: none) and ``expiry`` in seconds; ``expiry`` 0: the session ends with its connection."""

    client_id: str
    keep_alive: int
    expiry: int


def grant(packet: Connect, offer: Offer) -> Granted:
    """What the client gets: its wishes, cut to what the server offers."""
    client_id = packet.client_id or "auto-" + secrets.token_hex(12)
    if packet.version != MQTT_5:
        return Granted(client_id, packet.keep_alive, 0 if packet.clean_start else offer.max_session_expiry)
    keep_alive = packet.keep_alive
    if not 0 < keep_alive <= offer.max_keep_alive:
        keep_alive = offer.max_keep_alive
    return Granted(client_id, keep_alive, min(packet.properties.session_expiry_interval or 0, offer.max_session_expiry))


def welcome(packet: Connect, offer: Offer, granted: Granted) -> Properties:
    """The properties of the CONNACK: the server's limits, and what differs from the client's wishes."""
    if packet.version != MQTT_5:
        return NONE
    asked = packet.properties.session_expiry_interval or 0
    return Properties(
        session_expiry_interval=granted.expiry if granted.expiry != asked else None,
        receive_maximum=offer.receive_maximum,
        maximum_packet_size=offer.limits.stream,
        assigned_client_identifier=None if packet.client_id else granted.client_id,
        topic_alias_maximum=offer.aliases,
        server_keep_alive=granted.keep_alive if granted.keep_alive != packet.keep_alive else None,
    )


def unacceptable(packet: Connect) -> tuple[Reason, str] | None:
    """Why a well-formed CONNECT is turned away before anybody looks at its credential."""
    if packet.properties.authentication_method is not None:
        return Reason.BAD_AUTHENTICATION_METHOD, "use a user name and password, or a token as the password"
    name = packet.client_id
    if len(name.encode()) > MAX_CLIENT_ID_BYTES:
        return Reason.CLIENT_IDENTIFIER_NOT_VALID, f"a client id holds at most {MAX_CLIENT_ID_BYTES} bytes"
    if any(c in "+#/" or not c.isprintable() for c in name):
        return Reason.CLIENT_IDENTIFIER_NOT_VALID, "a client id holds no + # / and no control characters"
    if not name and packet.version != MQTT_5 and not packet.clean_start:
        return Reason.CLIENT_IDENTIFIER_NOT_VALID, "a session that is to be kept needs a client id"
    return None
