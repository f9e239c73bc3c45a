"""MQTT 5 properties: every one of section 2.2.2.2, with its type and the packets that may carry it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from .primitives import (
    Malformed,
    protocol_error,
    read_binary,
    read_text,
    read_u16,
    read_u32,
    read_varint,
    write_binary,
    write_text,
    write_varint,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """The properties of one packet; what is absent is None (or empty for the two that may repeat)."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None

    def user_property(self, name: str) -> str | None:
        """The first user property of this name."""
        for key, value in self.user_properties:
            if key == name:
                return value
        return None


NONE: Final = Properties()

# Where properties stand; WILL is the block inside CONNECT.
CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, DISCONNECT, AUTH, WILL = 8, 9, 10, 11, 14, 15, 16
_ACKS: Final = (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)
_ALL: Final = (CONNECT, *_ACKS, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, WILL)


class _Kind(NamedTuple):
    name: str
    form: str
    packets: frozenset[int]
    lowest: int = 0
    highest: int = 0xFFFFFFFF


def _kind(name: str, form: str, *packets: int, lowest: int = 0, highest: int = 0xFFFFFFFF) -> _Kind:
    return _Kind(name, form, frozenset(packets), lowest, highest)


_KINDS: Final[dict[int, _Kind]] = {
    0x01: _kind("payload_format_indicator", "byte", PUBLISH, WILL, highest=1),
    0x02: _kind("message_expiry_interval", "u32", PUBLISH, WILL),
    0x03: _kind("content_type", "text", PUBLISH, WILL),
    0x08: _kind("response_topic", "text", PUBLISH, WILL),
    0x09: _kind("correlation_data", "binary", PUBLISH, WILL),
    0x0B: _kind("subscription_identifiers", "varint", PUBLISH, SUBSCRIBE, lowest=1),
    0x11: _kind("session_expiry_interval", "u32", CONNECT, CONNACK, DISCONNECT),
    0x12: _kind("assigned_client_identifier", "text", CONNACK),
    0x13: _kind("server_keep_alive", "u16", CONNACK),
    0x15: _kind("authentication_method", "text", CONNECT, CONNACK, AUTH),
    0x16: _kind("authentication_data", "binary", CONNECT, CONNACK, AUTH),
    0x17: _kind("request_problem_information", "byte", CONNECT, highest=1),
    0x18: _kind("will_delay_interval", "u32", WILL),
    0x19: _kind("request_response_information", "byte", CONNECT, highest=1),
    0x1A: _kind("response_information", "text", CONNACK),
    0x1C: _kind("server_reference", "text", CONNACK, DISCONNECT),
    0x1F: _kind("reason_string", "text", *_ACKS),
    0x21: _kind("receive_maximum", "u16", CONNECT, CONNACK, lowest=1),
    0x22: _kind("topic_alias_maximum", "u16", CONNECT, CONNACK),
    0x23: _kind("topic_alias", "u16", PUBLISH),
    0x24: _kind("maximum_qos", "byte", CONNACK, highest=1),
    0x25: _kind("retain_available", "byte", CONNACK, highest=1),
    0x26: _kind("user_properties", "pair", *_ALL),
    0x27: _kind("maximum_packet_size", "u32", CONNECT, CONNACK, lowest=1),
    0x28: _kind("wildcard_subscription_available", "byte", CONNACK, highest=1),
    0x29: _kind("subscription_identifier_available", "byte", CONNACK, highest=1),
    0x2A: _kind("shared_subscription_available", "byte", CONNACK, highest=1),
}
_IDS: Final = {kind.name: number for number, kind in _KINDS.items()}
_NAMES: Final = tuple(field.name for field in fields(Properties))


def decode_properties(data: bytes, at: int, end: int, packet: int) -> tuple[Properties, int]:
    """Read the property block at ``at``; returns the properties and the index behind them.

    Raises Malformed: 0x81 for a broken layout or a property that the packet cannot carry, 0x82 for one that repeats or
    is out of its range.
    """
    size, at = read_varint(data, at, end)
    stop = at + size
    if stop > end:
        raise Malformed("the property length exceeds the packet")
    if not size:
        return NONE, at
    values: dict[str, Any] = {}
    pairs: list[tuple[str, str]] = []
    identifiers: list[int] = []
    while at < stop:
        number = data[at]
        kind = _KINDS.get(number)
        if kind is None or packet not in kind.packets:
            raise Malformed(f"property 0x{number:02X} does not belong in this packet")
        value, at = _read(data, at + 1, stop, kind)
        if kind.form == "pair":
            pairs.append(value)
        elif kind.name == "subscription_identifiers":
            if identifiers and packet == SUBSCRIBE:
                raise protocol_error("subscription_identifiers appears twice")
            identifiers.append(value)
        elif kind.name in values:
            raise protocol_error(f"{kind.name} appears twice")
        else:
            values[kind.name] = value
    if pairs:
        values["user_properties"] = tuple(pairs)
    if identifiers:
        values["subscription_identifiers"] = tuple(identifiers)
    return Properties(**values), stop


def _read(data: bytes, at: int, end: int, kind: _Kind) -> tuple[Any, int]:
    form = kind.form
    if form == "text":
        return read_text(data, at, end)
    if form == "binary":
        return read_binary(data, at, end)
    if form == "pair":
        name, at = read_text(data, at, end)
        text, at = read_text(data, at, end)
        return (name, text), at
    if form == "byte":
        if at >= end:
            raise Malformed("a property is cut short")
        value, at = data[at], at + 1
    elif form == "u16":
        value, at = read_u16(data, at, end)
    elif form == "u32":
        value, at = read_u32(data, at, end)
    else:
        value, at = read_varint(data, at, end)
    if not kind.lowest <= value <= kind.highest:
        raise protocol_error(f"{kind.name} cannot be {value}")
    return value, at


def encode_properties(properties: Properties) -> bytes:
    """The property block with its length in front."""
    if properties is NONE:
        return b"\x00"
    parts: list[bytes] = []
    for name in _NAMES:
        value = getattr(properties, name)
        if value is None:
            continue
        number = _IDS[name]
        kind = _KINDS[number]
        head = bytes((number,))
        if kind.form == "pair":
            parts.extend(head + write_text(key) + write_text(text) for key, text in value)
        elif kind.form == "varint":
            parts.extend(head + write_varint(identifier) for identifier in value)
        elif kind.form == "text":
            parts.append(head + write_text(value))
        elif kind.form == "binary":
            parts.append(head + write_binary(value))
        else:
            parts.append(head + value.to_bytes({"byte": 1, "u16": 2, "u32": 4}[kind.form], "big"))
    block = b"".join(parts)
    return write_varint(len(block)) + block
