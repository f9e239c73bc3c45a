from __future__ import annotations

import hashlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.codec import Fault, Item, Limits, Parser
from iotsphere.adapters.mqtt.decode import decode
from iotsphere.adapters.mqtt.encode import encode, pubacks, publish_parts
from iotsphere.adapters.mqtt.primitives import Malformed, write_binary, write_varint
from iotsphere.adapters.mqtt.properties import NONE, Properties
from iotsphere.adapters.mqtt.reasons import Reason
from tests.support.examples import tried

from .packet_strategies import flat, packets, publishes

VERSIONS = (p.MQTT_3_1_1, p.MQTT_5)
CONNECT_3 = encode(p.Connect(p.MQTT_3_1_1, "c1"), p.MQTT_3_1_1)
CONNECT_5 = encode(p.Connect(p.MQTT_5, "c1"), p.MQTT_5)


def frame(first: int, body: bytes) -> bytes:
    return bytes((first,)) + write_varint(len(body)) + body


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_every_packet_survives_a_round_trip(version: int, data: st.DataObject) -> None:
    packet = data.draw(packets(version))
    wire = encode(packet, version)
    head = 1 + len(write_varint(len(wire)))
    body = next(i for i in range(2, head + 2) if len(wire) - i == decode_length(wire))
    assert decode(wire[0], wire, body, len(wire), version) == packet


def decode_length(wire: bytes) -> int:
    value, shift, at = 0, 0, 1
    while True:
        value |= (wire[at] & 127) << shift
        if wire[at] < 128:
            return value
        at, shift = at + 1, shift + 7


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_packets_come_out_the_same_however_the_bytes_are_cut(version: int, data: st.DataObject) -> None:
    sound = packets(version).filter(lambda packet: not isinstance(packet, p.Connect))
    sent = data.draw(st.lists(sound | publishes(version), max_size=4))
    wire = b"".join(encode(packet, version) for packet in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    parser = Parser(version)
    got: list[Item] = []
    for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        got += flat(parser.feed(wire[start:stop]))
    assert got == sent
    assert parser.pending == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stream_cut_at_every_byte(version: int) -> None:
    block = Properties(user_properties=(("messageId", "m-1"),)) if version == p.MQTT_5 else NONE
    sent: list[p.Packet] = [
        p.Publish(b"iotsphere/devices/d1/telemetry", b"21.5", 1, 2),
        p.Publish(b"iotsphere/devices/d1/telemetry", b"x" * 200, 2, 2),
        p.Publish(b"iotsphere/devices/d1/telemetry", b"x" * 17_000, 3, 2, block),
        p.PingReq(),
        p.Publish(b"iotsphere/devices/d1/telemetry", b"", 0, 1),
        p.Ack(p.PUBACK, 7),
        p.Subscribe(8, (p.Request("iotsphere/#", 1),)),
        p.Disconnect(),
    ]
    wire = b"".join(encode(packet, version) for packet in sent)
    parser = Parser(version)
    assert flat([item for byte in wire for item in parser.feed(bytes((byte,)))]) == sent
    for cut in range(0, len(wire), 1 if len(wire) < 2_000 else 97):
        parser = Parser(version)
        assert flat(parser.feed(wire[:cut]) + parser.feed(wire[cut:])) == sent


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_the_short_way_and_the_long_way_agree(version: int, data: st.DataObject) -> None:
    """Bytes that look like PUBLISH mean the same to the fast loop and to the decoder, valid or not."""
    first = data.draw(st.integers(0x30, 0x3F))
    body = data.draw(
        st.binary(max_size=40)
        | st.builds(
            lambda topic, rest: write_binary(topic) + rest,
            st.sampled_from((b"a/b", b"a", b"", b"a/+", b"\xff", b"a\x00")),
            st.binary(max_size=12) | st.just(b"\x00\x01\x00payload") | st.just(b"\x00\x00\x00payload"),
        )
    )
    wire = frame(first, body)
    got = flat(Parser(version).feed(wire))
    try:
        expected: Item = decode(first, wire, len(wire) - len(body), len(wire), version)
    except Malformed as error:
        expected = Fault(error.reason, str(error), version)
    assert got == [expected]


@given(st.binary(max_size=400), st.sampled_from((0, *VERSIONS)))
@tried(150)
def test_any_bytes_end_in_packets_or_one_fault(noise: bytes, version: int) -> None:
    parser = Parser(version)
    items = parser.feed(noise)
    assert sum(isinstance(item, Fault) for item in items) <= 1
    if items and isinstance(items[-1], Fault):
        assert parser.feed(noise) == []


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_a_flipped_byte_never_breaks_the_parser(version: int, data: st.DataObject) -> None:
    sent = data.draw(st.lists(packets(version), min_size=1, max_size=4))
    wire = bytearray(b"".join(encode(packet, version) for packet in sent))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    items = Parser(version).feed(bytes(wire))
    faults = [item for item in items if isinstance(item, Fault)]
    assert faults == [] or faults == [items[-1]]


def test_noise_leaves_no_memory_behind() -> None:
    wire = b"".join(encode(p.Publish(b"t/%d" % i, b"x" * 50, i, 2), p.MQTT_5) for i in range(1, 2_000))

    def round_of_noise() -> None:
        parser = Parser(p.MQTT_5)
        parser.feed(wire)
        parser.feed(b"\x32\xff\xff\xff\xff\x7f")

    round_of_noise()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(10):
            round_of_noise()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 64 * 1024


BAD_5 = {
    "remaining length of 5 bytes": (b"\x30\xff\xff\xff\xff\x01", Reason.MALFORMED_PACKET),
    "remaining length not in its shortest form": (b"\xc0\x80\x00", Reason.MALFORMED_PACKET),
    "empty topic": (frame(0x30, b"\x00\x00\x00x"), Reason.PROTOCOL_ERROR),
    "packet id 0": (frame(0x32, b"\x00\x01a\x00\x00\x00x"), Reason.PROTOCOL_ERROR),
    "QoS 3": (frame(0x36, b"\x00\x01a\x00\x01\x00x"), Reason.MALFORMED_PACKET),
    "DUP at QoS 0": (frame(0x38, b"\x00\x01a\x00x"), Reason.MALFORMED_PACKET),
    "topic not UTF-8": (frame(0x30, b"\x00\x02\xc3\x28\x00x"), Reason.MALFORMED_PACKET),
    "topic with a surrogate": (frame(0x30, b"\x00\x03\xed\xa0\x80\x00x"), Reason.MALFORMED_PACKET),
    "topic with NUL": (frame(0x30, b"\x00\x03a\x00b\x00x"), Reason.MALFORMED_PACKET),
    "topic with a wildcard": (frame(0x30, b"\x00\x03a/+\x00x"), Reason.MALFORMED_PACKET),
    "topic longer than the packet": (frame(0x30, b"\x00\x09a\x00x"), Reason.MALFORMED_PACKET),
    "topic alias 0": (frame(0x30, b"\x00\x01a\x03\x23\x00\x00x"), Reason.TOPIC_ALIAS_INVALID),
    "second CONNECT": (CONNECT_5, Reason.PROTOCOL_ERROR),
    "packet type 0": (b"\x00\x00", Reason.MALFORMED_PACKET),
    "SUBSCRIBE flags": (frame(0x80, b"\x00\x01\x00\x00\x01a\x00"), Reason.MALFORMED_PACKET),
    "SUBSCRIBE QoS 3": (frame(0x82, b"\x00\x01\x00\x00\x01a\x03"), Reason.MALFORMED_PACKET),
    "SUBSCRIBE reserved option bits": (frame(0x82, b"\x00\x01\x00\x00\x01a\xc0"), Reason.MALFORMED_PACKET),
    "SUBSCRIBE retain handling 3": (frame(0x82, b"\x00\x01\x00\x00\x01a\x30"), Reason.PROTOCOL_ERROR),
    "SUBSCRIBE without filters": (frame(0x82, b"\x00\x01\x00"), Reason.PROTOCOL_ERROR),
    "SUBSCRIBE id 0": (frame(0x82, b"\x00\x00\x00\x00\x01a\x00"), Reason.PROTOCOL_ERROR),
    "subscription identifier 0": (frame(0x82, b"\x00\x01\x02\x0b\x00\x00\x01a\x00"), Reason.PROTOCOL_ERROR),
    "no-local on a shared subscription": (
        frame(0x82, b"\x00\x01\x00" + write_binary(b"$share/g/a") + b"\x04"),
        Reason.PROTOCOL_ERROR,
    ),
    "UNSUBSCRIBE without filters": (frame(0xA2, b"\x00\x01\x00"), Reason.PROTOCOL_ERROR),
    "PINGREQ with a body": (b"\xc0\x01a", Reason.MALFORMED_PACKET),
    "PUBACK with a reason of another packet": (frame(0x40, b"\x00\x01\x8b"), Reason.MALFORMED_PACKET),
    "PUBACK with a tail": (frame(0x40, b"\x00\x01\x00\x00a"), Reason.MALFORMED_PACKET),
    "property of another packet": (frame(0x30, b"\x00\x01a\x03\x13\x00\x05"), Reason.MALFORMED_PACKET),
    "unknown property": (frame(0x30, b"\x00\x01a\x02\x7e\x00"), Reason.MALFORMED_PACKET),
    "property twice": (frame(0x30, b"\x00\x01a\x04\x01\x00\x01\x00"), Reason.PROTOCOL_ERROR),
    "property out of range": (frame(0x30, b"\x00\x01a\x02\x01\x02"), Reason.PROTOCOL_ERROR),
    "properties longer than the packet": (frame(0x30, b"\x00\x01a\x09"), Reason.MALFORMED_PACKET),
    "AUTH without a method": (frame(0xF0, b"\x18"), Reason.PROTOCOL_ERROR),
    "256 MiB declared": (b"\x32\xff\xff\xff\x7f", Reason.PACKET_TOO_LARGE),
    "large SUBSCRIBE declared": (b"\x82\x80\x80\x80\x01", Reason.PACKET_TOO_LARGE),
}


@pytest.mark.parametrize("name", BAD_5)
def test_d11_what_breaks_the_rules_is_a_fault_behind_what_was_sound(name: str) -> None:
    bad, reason = BAD_5[name]
    good = encode(p.Publish(b"a/b", b"1", 9, 2), p.MQTT_5)
    parser = Parser(p.MQTT_5)
    items = flat(parser.feed(good + bad + good))
    assert items[0] == p.Publish(b"a/b", b"1", 9, 2)
    assert isinstance(items[1], Fault), items
    assert items[1].reason == reason
    assert items[1].version == p.MQTT_5
    assert items[2:] == []
    assert parser.feed(good) == []


BAD_CONNECT = {
    "not a CONNECT": (b"\xc0\x00", Reason.PROTOCOL_ERROR, 0),
    "other protocol": (frame(0x10, write_binary(b"HTTP") + b"\x04\x02\x00\x00\x00\x00"), Reason.MALFORMED_PACKET, 0),
    "MQTT 3.1": (
        frame(0x10, write_binary(b"MQIsdp") + b"\x03\x02\x00\x00\x00\x01a"),
        Reason.UNSUPPORTED_PROTOCOL_VERSION,
        0,
    ),
    "MQTT 6": (
        frame(0x10, write_binary(b"MQTT") + b"\x06\x02\x00\x00\x00\x00\x00"),
        Reason.UNSUPPORTED_PROTOCOL_VERSION,
        0,
    ),
    "reserved flag": (frame(0x10, write_binary(b"MQTT") + b"\x05\x03\x00\x00\x00\x00\x00"), Reason.MALFORMED_PACKET, 5),
    "will QoS without will": (
        frame(0x10, write_binary(b"MQTT") + b"\x04\x0a\x00\x00\x00\x01a"),
        Reason.MALFORMED_PACKET,
        4,
    ),
    "password alone in 3.1.1": (
        frame(0x10, write_binary(b"MQTT") + b"\x04\x42\x00\x00\x00\x01a\x00\x01p"),
        Reason.MALFORMED_PACKET,
        4,
    ),
    "receive maximum 0": (
        frame(0x10, write_binary(b"MQTT") + b"\x05\x02\x00\x00\x03\x21\x00\x00\x00\x00"),
        Reason.PROTOCOL_ERROR,
        5,
    ),
    "client id not UTF-8": (
        frame(0x10, write_binary(b"MQTT") + b"\x05\x02\x00\x00\x00\x00\x01\xff"),
        Reason.MALFORMED_PACKET,
        5,
    ),
    "bytes left over": (
        frame(0x10, write_binary(b"MQTT") + b"\x05\x02\x00\x00\x00\x00\x01ax"),
        Reason.MALFORMED_PACKET,
        5,
    ),
    "1 MiB declared": (b"\x10\x80\x80\x40", Reason.PACKET_TOO_LARGE, 0),
    "remaining length of 5 bytes": (b"\x10\xff\xff\xff\xff\x01", Reason.MALFORMED_PACKET, 0),
}


@pytest.mark.parametrize("name", BAD_CONNECT)
def test_d11_a_bad_connect_is_a_fault(name: str) -> None:
    bad, reason, version = BAD_CONNECT[name]
    (fault,) = Parser().feed(bad)
    assert isinstance(fault, Fault)
    assert (fault.reason, fault.version) == (reason, version)


@pytest.mark.parametrize(("connect", "version"), [(CONNECT_3, 4), (CONNECT_5, 5)])
def test_nothing_behind_connect_is_decoded_before_resume(connect: bytes, version: int) -> None:
    parser = Parser()
    behind = encode(p.Publish(b"a", b"1", 1, 2), version)
    items = parser.feed(connect + behind[:3])
    assert [type(item) for item in items] == [p.Connect]
    assert parser.version == version
    assert parser.feed(behind[3:]) == []
    assert flat(parser.resume()) == [p.Publish(b"a", b"1", 1, 2)]
    assert parser.feed(b"\xc0\x00") == [p.PingReq()]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("step", [1_000, 65_536, 10_000_000])
def test_a_large_payload_streams_past_and_leaves_head_and_hash(version: int, step: int) -> None:
    payload = bytes(range(256)) * 2_000
    limits = Limits(packet=20_000, stream=1_000_000)
    large = p.Publish(b"iotsphere/devices/cam/telemetry/image", payload, 5, 2)
    small = p.Publish(b"a/b", b"1", 6, 2)
    wire = encode(small, version) + encode(large, version) + encode(small, version)
    parser = Parser(version, limits)
    items: list[Item] = []
    most = 0
    for start in range(0, len(wire), step):
        items += flat(parser.feed(wire[start : start + step]))
        most = max(most, parser.pending)
    digest = hashlib.sha256(payload).hexdigest()
    passed = p.Oversized(large.topic, payload[:4096], 5, 2, NONE, len(payload), digest)
    assert items == [small, passed, small]
    assert most < 20_000


def test_a_large_payload_above_the_stream_limit_is_refused_by_its_header() -> None:
    parser = Parser(p.MQTT_5, Limits(packet=20_000, stream=100_000))
    (fault,) = parser.feed(b"\x32" + write_varint(100_000))
    assert isinstance(fault, Fault)
    assert fault.reason == Reason.PACKET_TOO_LARGE
    assert parser.pending == 0


def test_a_large_packet_whose_head_is_all_properties_is_refused() -> None:
    block = Properties(user_properties=tuple((f"k{i}", "v" * 500) for i in range(60)))
    wire = encode(p.Publish(b"a", b"x" * 100, 1, 2, block), p.MQTT_5)
    items = Parser(p.MQTT_5, Limits(packet=20_000)).feed(wire)
    assert [item.reason for item in items if isinstance(item, Fault)] == [Reason.PACKET_TOO_LARGE]


@given(st.lists(st.integers(1, 0xFFFF), max_size=50))
def test_joined_pubacks_are_single_pubacks(packet_ids: list[int]) -> None:
    joined = pubacks(packet_ids)
    for version in VERSIONS:
        assert joined == b"".join(encode(p.Ack(p.PUBACK, i), version) for i in packet_ids)


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_publish_parts_with_an_id_between_are_the_packet(version: int, data: st.DataObject) -> None:
    packet = data.draw(publishes(version).filter(lambda packet: packet.qos > 0))
    head, tail = publish_parts(packet.topic, packet.payload, packet.flags, version, packet.properties)
    assert head + packet.packet_id.to_bytes(2, "big") + tail == encode(packet, version)
