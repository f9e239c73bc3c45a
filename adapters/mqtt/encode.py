"""MQTT control packets, value to bytes; with short ways for what is sent by the thousand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from . import packets as p
from .primitives import write_binary, write_text, write_varint
from .properties import NONE, Properties, encode_properties

PINGRESP: Final = b"\xd0\x00"
_PUBACK_HEAD: Final = 0x4002


def pubacks(packet_ids: Sequence[int]) -> bytes:
    """The PUBACKs (reason 0, valid in both versions) of a batch, joined."""
    words = [_PUBACK_HEAD] * (2 * len(packet_ids))
    words[1::2] = packet_ids
    return struct.pack(f">{len(words)}H", *words)


def publish_parts(
    topic: bytes, payload: bytes, flags: int, version: int, properties: Properties = NONE
) -> tuple[bytes, bytes]:
    """A PUBLISH at QoS 1 or 2, in two parts between which the packet id belongs: the same parts serve all receivers."""
    block = encode_properties(properties) if version == p.MQTT_5 else b""
    size = 4 + len(topic) + len(block) + len(payload)
    head = bytes((0x30 | flags,)) + write_varint(size) + len(topic).to_bytes(2, "big") + topic
    return head, block + payload


def encode(packet: p.Packet, version: int) -> bytes:
    """Serialise any packet for a version. Raises ValueError where a field does not fit its place on the wire."""
    five = version == p.MQTT_5
    match packet:
        case p.Publish(topic, payload, packet_id, flags, properties):
            identifier = packet_id.to_bytes(2, "big") if packet.qos else b""
            block = encode_properties(properties) if five else b""
            return _frame(p.PUBLISH << 4 | flags, write_binary(topic) + identifier + block + payload)
        case p.Ack(kind, packet_id, reason, properties):
            first = kind << 4 | (2 if kind == p.PUBREL else 0)
            return _frame(first, packet_id.to_bytes(2, "big") + (_tail(reason, properties) if five else b""))
        case p.Connect():
            return _frame(p.CONNECT << 4, _connect(packet, five))
        case p.ConnAck(session_present, reason, properties):
            block = encode_properties(properties) if five else b""
            return _frame(p.CONNACK << 4, bytes((session_present, reason)) + block)
        case p.Subscribe(packet_id, requests, properties):
            block = encode_properties(properties) if five else b""
            wanted = b"".join(write_text(request.filter) + bytes((_options(request),)) for request in requests)
            return _frame(p.SUBSCRIBE << 4 | 2, packet_id.to_bytes(2, "big") + block + wanted)
        case p.SubAck(packet_id, reasons, properties):
            block = encode_properties(properties) if five else b""
            return _frame(p.SUBACK << 4, packet_id.to_bytes(2, "big") + block + bytes(reasons))
        case p.Unsubscribe(packet_id, filters, properties):
            block = encode_properties(properties) if five else b""
            texts = b"".join(write_text(text) for text in filters)
            return _frame(p.UNSUBSCRIBE << 4 | 2, packet_id.to_bytes(2, "big") + block + texts)
        case p.UnsubAck(packet_id, reasons, properties):
            tail = encode_properties(properties) + bytes(reasons) if five else b""
            return _frame(p.UNSUBACK << 4, packet_id.to_bytes(2, "big") + tail)
        case p.PingReq(times):
            return b"\xc0\x00" * times
        case p.PingResp():
            return PINGRESP
        case p.Disconnect(reason, properties):
            return _frame(p.DISCONNECT << 4, _tail(reason, properties) if five else b"")
        case p.Auth(reason, properties):
            return _frame(p.AUTH << 4, _tail(reason, properties))
    raise ValueError(f"{type(packet).__name__} is never sent")


def _frame(first: int, body: bytes) -> bytes:
    return bytes((first,)) + write_varint(len(body)) + body


def _tail(reason: int, properties: Properties) -> bytes:
    if properties is not NONE:
        return bytes((reason,)) + encode_properties(properties)
    return bytes((reason,)) if reason else b""


def _options(request: p.Request) -> int:
    return (
        request.qos | request.no_local << 2 | request.retain_as_published << 3 | request.retain_handling << 4
    )  # MQTT 5 section 3.8.3.1


def _connect(packet: p.Connect, five: bool) -> bytes:
    flags = packet.clean_start << 1
    parts = [write_text(packet.client_id)]
    if packet.will is not None:
        flags |= 0x04 | packet.will.qos << 3 | packet.will.retain << 5
        if five:
            parts.append(encode_properties(packet.will.properties))
        parts += (write_text(packet.will.topic), write_binary(packet.will.payload))
    if packet.username is not None:
        flags |= 0x80
        parts.append(write_text(packet.username))
    if packet.password is not None:
        flags |= 0x40
        parts.append(write_binary(packet.password))
    block = encode_properties(packet.properties) if five else b""
    head = write_text("MQTT") + bytes((packet.version, flags)) + packet.keep_alive.to_bytes(2, "big")
    return head + block + b"".join(parts)
