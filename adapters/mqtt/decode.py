"""One complete MQTT control packet, bytes to value, strictly (MQTT 5 chapter 3, MQTT 3.1.1 chapter 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from . import packets as p
from . import properties as props
from . import reasons
from .primitives import Malformed, protocol_error, read_binary, read_text, read_u16, text_of
from .properties import NONE, Properties, decode_properties
from .reasons import Reason

# The four low bits of the first byte, fixed for all but PUBLISH (MQTT 5 table 2-2).
_FLAGS: Final = {p.PUBREL: 2, p.SUBSCRIBE: 2, p.UNSUBSCRIBE: 2}


def decode(first: int, data: bytes, at: int, end: int, version: int) -> p.Packet:
    """Decode the packet whose first byte is ``first`` and whose body is ``data[at:end]``. Raises Malformed."""
    kind = first >> 4
    if kind == p.PUBLISH:
        return _publish(first & 0x0F, data, at, end, version)
    if first & 0x0F != _FLAGS.get(kind, 0):
        raise Malformed("reserved flags of the fixed header are set")
    if kind in (p.PINGREQ, p.PINGRESP):
        _finish(at, end)
        return p.PingReq() if kind == p.PINGREQ else p.PingResp()
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise Malformed("packet type 0 is reserved")
    return decoder(data, at, end, version)


def check_topic(topic: bytes) -> None:
    """Raise Malformed unless the bytes are a topic name: UTF-8, not empty, no U+0000, no wildcard."""
    if not topic:
        raise protocol_error("an empty topic without a topic alias")
    text = text_of(topic)
    if "+" in text or "#" in text:
        raise Malformed("a topic name holds a wildcard")


def _publish(flags: int, data: bytes, at: int, end: int, version: int) -> p.Publish:
    qos = flags >> 1 & 3
    if qos == 3:
        raise Malformed("QoS 3 does not exist")
    if flags & p.DUP and not qos:
        raise Malformed("DUP is set at QoS 0")
    topic, at = read_binary(data, at, end)
    packet_id = 0
    if qos:
        packet_id, at = _packet_id(data, at, end)
    properties = NONE
    if version == p.MQTT_5:
        properties, at = decode_properties(data, at, end, props.PUBLISH)
        if properties.topic_alias == 0:
            raise Malformed("topic alias 0", Reason.TOPIC_ALIAS_INVALID)
        if properties.response_topic is not None:
            check_topic(properties.response_topic.encode())
    if topic or properties.topic_alias is None:
        check_topic(topic)
    return p.Publish(topic, data[at:end], packet_id, flags, properties)


def _packet_id(data: bytes, at: int, end: int) -> tuple[int, int]:
    packet_id, at = read_u16(data, at, end)
    if not packet_id:
        raise protocol_error("packet identifier 0")
    return packet_id, at


def _connect(data: bytes, at: int, end: int, version: int) -> p.Connect:
    name, at = read_binary(data, at, end)
    if at + 4 > end:
        raise Malformed("CONNECT is cut short")
    version, flags = data[at], data[at + 1]
    keep_alive = data[at + 2] << 8 | data[at + 3]
    at += 4
    if (name, version) not in ((b"MQTT", p.MQTT_3_1_1), (b"MQTT", p.MQTT_5)):
        if name in (b"MQTT", b"MQIsdp"):
            raise Malformed("only MQTT 3.1.1 and 5 are spoken here", Reason.UNSUPPORTED_PROTOCOL_VERSION)
        raise Malformed("the protocol name is not MQTT")
    if flags & 0x01:
        raise Malformed("the reserved flag of CONNECT is set")
    has_will, will_qos, will_retain = flags & 0x04, flags >> 3 & 3, flags & 0x20
    if will_qos == 3 or (not has_will and (will_qos or will_retain)):
        raise Malformed("the will flags contradict each other")
    if version == p.MQTT_3_1_1 and flags & 0xC0 == 0x40:
        raise Malformed("a password without a user name")
    properties = NONE
    if version == p.MQTT_5:
        properties, at = decode_properties(data, at, end, props.CONNECT)
        if properties.authentication_data is not None and properties.authentication_method is None:
            raise protocol_error("authentication data without a method")
    client_id, at = read_text(data, at, end)
    will = None
    if has_will:
        will, at = _will(data, at, end, flags, version)
    username, password = None, None
    if flags & 0x80:
        username, at = read_text(data, at, end)
    if flags & 0x40:
        password, at = read_binary(data, at, end)
    _finish(at, end)
    return p.Connect(version, client_id, bool(flags & 0x02), keep_alive, username, password, will, properties)


def _will(data: bytes, at: int, end: int, flags: int, version: int) -> tuple[p.Will, int]:
    properties = NONE
    if version == p.MQTT_5:
        properties, at = decode_properties(data, at, end, props.WILL)
        if properties.response_topic is not None:
            check_topic(properties.response_topic.encode())
    topic, at = read_binary(data, at, end)
    check_topic(topic)
    payload, at = read_binary(data, at, end)
    return p.Will(topic.decode(), payload, flags >> 3 & 3, bool(flags & 0x20), properties), at


def _connack(data: bytes, at: int, end: int, version: int) -> p.ConnAck:
    if at + 2 > end:
        raise Malformed("CONNACK is cut short")
    flags, reason = data[at], data[at + 1]
    at += 2
    if flags > 1:
        raise Malformed("reserved flags of CONNACK are set")
    properties = NONE
    if version == p.MQTT_5:
        _known(reason, reasons.CONNACK)
        properties, at = decode_properties(data, at, end, props.CONNACK)
    elif reason > 5:
        raise Malformed(f"return code {reason} does not exist")
    if flags and reason:
        raise protocol_error("a refusal cannot have a session")
    _finish(at, end)
    return p.ConnAck(bool(flags), reason, properties)


def _ack(kind: int, allowed: frozenset[int]) -> Callable[[bytes, int, int, int], p.Packet]:
    def decoder(data: bytes, at: int, end: int, version: int) -> p.Ack:
        packet_id, at = _packet_id(data, at, end)
        reason, properties = 0, NONE
        if version == p.MQTT_5:
            reason, properties, at = _reason(data, at, end, kind, allowed)
        _finish(at, end)
        return p.Ack(kind, packet_id, reason, properties)

    return decoder


def _reason(data: bytes, at: int, end: int, kind: int, allowed: frozenset[int]) -> tuple[int, Properties, int]:
    """A reason code and properties, both of which may be left out."""
    if at == end:
        return 0, NONE, at
    reason = data[at]
    _known(reason, allowed)
    at += 1
    if at == end:
        return reason, NONE, at
    properties, at = decode_properties(data, at, end, kind)
    return reason, properties, at


def _known(reason: int, allowed: frozenset[int]) -> None:
    if reason not in allowed:
        raise Malformed(f"reason code 0x{reason:02X} does not belong in this packet")


def _subscribe(data: bytes, at: int, end: int, version: int) -> p.Subscribe:
    packet_id, at = _packet_id(data, at, end)
    properties = NONE
    if version == p.MQTT_5:
        properties, at = decode_properties(data, at, end, props.SUBSCRIBE)
    requests: list[p.Request] = []
    while at < end:
        text, at = read_text(data, at, end)
        if at >= end:
            raise Malformed("a filter without options")
        options = data[at]
        at += 1
        if options & 3 == 3 or options & (0xC0 if version == p.MQTT_5 else 0xFC):
            raise Malformed("reserved subscription options are set")
        handling = options >> 4 & 3
        if handling == 3:
            raise protocol_error("retain handling 3 does not exist")
        if options & 4 and text.startswith("$share/"):
            raise protocol_error("no-local on a shared subscription")
        requests.append(p.Request(text, options & 3, bool(options & 4), bool(options & 8), handling))
    if not requests:
        raise protocol_error("SUBSCRIBE without a filter")
    return p.Subscribe(packet_id, tuple(requests), properties)


def _suback(data: bytes, at: int, end: int, version: int) -> p.SubAck:
    packet_id, at = _packet_id(data, at, end)
    properties = NONE
    if version == p.MQTT_5:
        properties, at = decode_properties(data, at, end, props.SUBACK)
    codes = tuple(data[at:end])
    if not codes:
        raise protocol_error("SUBACK without a reason code")
    allowed = reasons.SUBACK if version == p.MQTT_5 else frozenset((0, 1, 2, reasons.SUBACK_FAILURE_3))
    for code in codes:
        _known(code, allowed)
    return p.SubAck(packet_id, codes, properties)


def _unsubscribe(data: bytes, at: int, end: int, version: int) -> p.Unsubscribe:
    packet_id, at = _packet_id(data, at, end)
    properties = NONE
    if version == p.MQTT_5:
        properties, at = decode_properties(data, at, end, props.UNSUBSCRIBE)
    filters: list[str] = []
    while at < end:
        text, at = read_text(data, at, end)
        filters.append(text)
    if not filters:
        raise protocol_error("UNSUBSCRIBE without a filter")
    return p.Unsubscribe(packet_id, tuple(filters), properties)


def _unsuback(data: bytes, at: int, end: int, version: int) -> p.UnsubAck:
    packet_id, at = _packet_id(data, at, end)
    if version != p.MQTT_5:
        _finish(at, end)
        return p.UnsubAck(packet_id)
    properties, at = decode_properties(data, at, end, props.UNSUBACK)
    codes = tuple(data[at:end])
    if not codes:
        raise protocol_error("UNSUBACK without a reason code")
    for code in codes:
        _known(code, reasons.UNSUBACK)
    return p.UnsubAck(packet_id, codes, properties)


def _disconnect(data: bytes, at: int, end: int, version: int) -> p.Disconnect:
    reason, properties = 0, NONE
    if version == p.MQTT_5:
        reason, properties, at = _reason(data, at, end, props.DISCONNECT, reasons.DISCONNECT)
    _finish(at, end)
    return p.Disconnect(reason, properties)


def _auth(data: bytes, at: int, end: int, version: int) -> p.Auth:
    if version != p.MQTT_5:
        raise Malformed("AUTH does not exist in MQTT 3.1.1")
    reason, properties, at = _reason(data, at, end, props.AUTH, reasons.AUTH)
    _finish(at, end)
    if properties.authentication_method is None and (reason or properties is not NONE):
        raise protocol_error("AUTH without an authentication method")
    return p.Auth(reason, properties)


def _finish(at: int, end: int) -> None:
    if at != end:
        raise Malformed("bytes are left over at the end of the packet")


_DECODERS: Final[dict[int, Callable[[bytes, int, int, int], p.Packet]]] = {
    p.CONNECT: _connect,
    p.CONNACK: _connack,
    p.PUBACK: _ack(p.PUBACK, reasons.PUBACK),
    p.PUBREC: _ack(p.PUBREC, reasons.PUBACK),
    p.PUBREL: _ack(p.PUBREL, reasons.PUBREL),
    p.PUBCOMP: _ack(p.PUBCOMP, reasons.PUBREL),
    p.SUBSCRIBE: _subscribe,
    p.SUBACK: _suback,
    p.UNSUBSCRIBE: _unsubscribe,
    p.UNSUBACK: _unsuback,
    p.DISCONNECT: _disconnect,
    p.AUTH: _auth,
}
