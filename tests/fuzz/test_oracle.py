"""The codec beside another implementation of MQTT 5, the package ``mqtt5`` (in Rust): what both take, both read alike."""

from __future__ import annotations

from typing import Any

import mqtt5
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.codec import Fault, Parser
from iotsphere.adapters.mqtt.encode import encode
from iotsphere.adapters.mqtt.properties import Properties
from tests.adapters.mqtt.packet_strategies import packets
from tests.support.examples import tried

from .target import fed, flat

_ACKS = {p.PUBACK: "PubAck", p.PUBREC: "PubRec", p.PUBREL: "PubRel", p.PUBCOMP: "PubComp"}


def ours(packet: Any) -> tuple[Any, ...] | None:
    """A packet of a client in plain words; None for one that only a server sends."""
    match packet:
        case p.Publish(topic, payload, number, flags, block):
            head = ("Publish", topic.decode(), payload, number or None, flags >> 1 & 3, flags & 1, flags >> 3 & 1)
            indicator = block.payload_format_indicator or 0
            more = (block.message_expiry_interval, block.content_type, block.response_topic, block.correlation_data)
            return (*head, indicator, *more, list(block.subscription_identifiers), block.topic_alias, _pairs(block))
        case p.Ack(kind, number, reason, block):
            return (_ACKS[kind], number, reason, block.reason_string, _pairs(block))
        case p.Subscribe(number, requests, block):
            asked = [(r.filter, r.qos, r.no_local, r.retain_as_published, r.retain_handling) for r in requests]
            identifier = next(iter(block.subscription_identifiers), None)
            return ("Subscribe", number, asked, identifier, _pairs(block))
        case p.Unsubscribe(number, filters, block):
            return ("Unsubscribe", number, list(filters), _pairs(block))
        case p.Connect():
            block, will = packet.properties, packet.will
            said = (packet.client_id, packet.clean_start, packet.keep_alive, packet.username, packet.password)
            last: tuple[Any, ...] | None = None
            if will is not None:
                w = will.properties
                last = (will.topic, will.payload, will.qos, will.retain, w.payload_format_indicator or 0)
                last += (w.message_expiry_interval, w.content_type, w.response_topic, w.correlation_data)
                last += (w.will_delay_interval or 0, _pairs(w))
            most = (block.receive_maximum or 65_535, block.topic_alias_maximum or 0, block.maximum_packet_size)
            login = (block.authentication_method, block.authentication_data)
            return ("Connect", *said, last, block.session_expiry_interval or 0, *login, *most, _pairs(block))
        case p.Disconnect(reason, block):
            return ("Disconnect", reason, block.session_expiry_interval, block.reason_string, _pairs(block))
        case p.PingReq():
            return ("PingReq",)
    return None


def theirs(packet: Any) -> tuple[Any, ...] | None:
    """The same words for the other implementation's packet."""
    name = type(packet).__name__.removesuffix("Packet")

    def get(*names: str) -> tuple[Any, ...]:
        return tuple(getattr(packet, each) for each in names)

    match name:
        case "Publish":
            head = (name, *get("topic", "payload", "packet_id", "qos", "retain", "duplicate"))
            more = get("payload_format_indicator", "message_expiry_interval", "content_type", "response_topic")
            return (*head, *more, *get("correlation_data", "subscription_ids", "topic_alias", "user_properties"))
        case "PubAck" | "PubRec" | "PubRel" | "PubComp":
            return (name, *get("packet_id", "reason_code", "reason_str", "user_properties"))
        case "Subscribe":
            filters = packet.topic_filters
            asked = [(f.pattern, f.max_qos, f.no_local, f.retain_as_published, f.retain_handling) for f in filters]
            return (name, packet.packet_id, asked, packet.subscription_id, packet.user_properties)
        case "Unsubscribe":
            return (name, *get("packet_id", "patterns", "user_properties"))
        case "Connect":
            last: tuple[Any, ...] | None = None
            if (w := packet.will) is not None:
                last = (w.topic, w.payload or b"", w.qos, w.retain, w.payload_format_indicator)
                last += (w.message_expiry_interval, w.content_type, w.response_topic, w.correlation_data)
                last += (w.will_delay_interval, w.user_properties)
            said = get("client_id", "clean_start", "keep_alive", "username", "password")
            more = get("session_expiry_interval", "authentication_method", "authentication_data")
            most = get("receive_max", "topic_alias_max", "max_packet_size", "user_properties")
            return (name, *said, last, *more, *most)
        case "Disconnect":
            return (name, *get("reason_code", "session_expiry_interval", "reason_str", "user_properties"))
        case "PingReq":
            return (name,)
    return None


def _pairs(block: Properties) -> list[tuple[str, str]]:
    return list(block.user_properties)


def read_by_us(data: bytes) -> tuple[Any, ...] | None:
    """The only packet of the bytes, in plain words; None when we do not take it."""
    items = flat(fed(Parser(0 if data[0] >> 4 == p.CONNECT else p.MQTT_5), data))
    return ours(items[0]) if len(items) == 1 and not isinstance(items[0], Fault) else None


def read_by_them(data: bytes) -> tuple[Any, ...] | None:
    """The only packet of the bytes as the other implementation reads it; None when it does not take it."""
    try:
        packet, size = mqtt5.read(data)  # type: ignore[arg-type]  # any buffer will do
    except (ValueError, IndexError):
        return None
    return theirs(packet) if size == len(data) else None


@tried(100)
@given(packets(p.MQTT_5))
def test_what_we_write_they_read(packet: p.Packet) -> None:
    expected = ours(packet)
    if expected is not None:
        assert read_by_them(encode(packet, p.MQTT_5)) == expected


@tried(150)
@given(packets(p.MQTT_5), st.integers(0, 1 << 16), st.integers(0, 255))
def test_what_both_take_both_read_alike(packet: p.Packet, at: int, byte: int) -> None:
    data = bytearray(encode(packet, p.MQTT_5))
    data[at % len(data)] = byte
    # Only what we take: at texts that are no UTF-8 the other implementation panics.
    mine = read_by_us(bytes(data))
    if mine is not None:
        assert read_by_them(bytes(data)) in (None, mine)
