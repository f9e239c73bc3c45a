"""MQTT control packets as values: one tuple type for each of the fifteen kinds, for versions 3.1.1 and 5."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from .properties import NONE, Properties

MQTT_3_1_1: Final = 4
MQTT_5: Final = 5

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

NAMES: Final = (
    "reserved", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBSCRIBE", "SUBACK",
    "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
)  # fmt: skip
MAX_PACKET_BYTES: Final = 268_435_455 + 5
DUP: Final = 0x08
RETAIN: Final = 0x01


class Will(NamedTuple):
    """What is to be published when the connection ends without a goodbye."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NONE


class Connect(NamedTuple):
    """The first packet of a client. ``clean_start`` is 3.1.1's clean session."""

    version: int
    client_id: str
    clean_start: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = NONE


class ConnAck(NamedTuple):
    """The answer to Connect. ``reason`` is the return code in 3.1.1."""

    session_present: bool
    reason: int
    properties: Properties = NONE


class Publish(NamedTuple):
    """A message. ``topic``: the checked UTF-8 bytes. ``flags``: DUP 8, QoS 6, RETAIN 1. ``packet_id``: 0 at QoS 0."""

    topic: bytes
    payload: bytes
    packet_id: int
    flags: int
    properties: Properties = NONE

    @property
    def qos(self) -> int:
        """The quality of service, 0 to 2."""
        return self.flags >> 1 & 3

    @property
    def retain(self) -> bool:
        """Whether it is to be its topic's retained value."""
        return bool(self.flags & RETAIN)


class Burst(NamedTuple):
    """Simple messages in a row: (topic, payload, packet id, first byte), QoS 0 or 1, without DUP and properties.

    It exists for speed: a plain tuple costs half of what a named one does.
    """

    messages: list[tuple[bytes, bytes, int, int]]

    def first(self, answered: int) -> Burst:
        """What comes before the message that is one answered message too many."""
        for index, message in enumerate(self.messages):
            if message[2]:
                if not answered:
                    return Burst(self.messages[:index])
                answered -= 1
        return self


class Oversized(NamedTuple):
    """A message whose payload was too large to be kept: it streamed past, and this is what is known of it.

    ``head``: its first 4 KiB. ``sha256``: hex, of the whole payload of ``size`` bytes.
    """

    topic: bytes
    head: bytes
    packet_id: int
    flags: int
    properties: Properties
    size: int
    sha256: str


class Ack(NamedTuple):
    """PUBACK, PUBREC, PUBREL or PUBCOMP, by ``kind``."""

    kind: int
    packet_id: int
    reason: int = 0
    properties: Properties = NONE


class Request(NamedTuple):
    """One filter of a Subscribe. ``retain_handling``: 0 send retained values, 1 only if new, 2 do not."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(NamedTuple):
    """A request for one or more filters."""

    packet_id: int
    requests: tuple[Request, ...]
    properties: Properties = NONE


class SubAck(NamedTuple):
    """The answer to Subscribe, a reason per filter."""

    packet_id: int
    reasons: tuple[int, ...]
    properties: Properties = NONE


class Unsubscribe(NamedTuple):
    """The end of one or more filters."""

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NONE


class UnsubAck(NamedTuple):
    """The answer to Unsubscribe, a reason per filter (none in 3.1.1)."""

    packet_id: int
    reasons: tuple[int, ...] = ()
    properties: Properties = NONE


class Acks(NamedTuple):
    """PUBACKs without a reason, in a row. As Burst, it exists for speed."""

    packet_ids: tuple[int, ...]


class PingReq(NamedTuple):
    """Is anybody there? ``times``: asked so often in a row."""

    times: int = 1


class PingResp(NamedTuple):
    """Somebody is."""


class Disconnect(NamedTuple):
    """The last packet of a connection."""

    reason: int = 0
    properties: Properties = NONE


class Auth(NamedTuple):
    """A step of an extended authentication (MQTT 5 only)."""

    reason: int = 0
    properties: Properties = NONE


Packet: TypeAlias = (
    Connect
    | ConnAck
    | Publish
    | Oversized
    | Ack
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)

_KINDS: Final[dict[type, int]] = {
    Connect: CONNECT,
    ConnAck: CONNACK,
    Publish: PUBLISH,
    Burst: PUBLISH,
    Acks: PUBACK,
    Oversized: PUBLISH,
    Subscribe: SUBSCRIBE,
    SubAck: SUBACK,
    Unsubscribe: UNSUBSCRIBE,
    UnsubAck: UNSUBACK,
    PingReq: PINGREQ,
    PingResp: PINGRESP,
    Disconnect: DISCONNECT,
    Auth: AUTH,
}


def name_of(packet: Packet | Burst | Acks) -> str:
    """The packet's name in the specification."""
    return NAMES[packet.kind if isinstance(packet, Ack) else _KINDS[type(packet)]]
