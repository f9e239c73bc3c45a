"""Hypothesis strategies for every MQTT packet, shared by the codec tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt import properties as props
from iotsphere.adapters.mqtt import reasons
from iotsphere.adapters.mqtt.codec import Item
from iotsphere.adapters.mqtt.properties import NONE, Properties

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=24)
topics = st.text(st.characters(codec="utf-8", exclude_characters="\x00+#"), min_size=1, max_size=40)
blobs = st.binary(max_size=40)
ids = st.integers(1, 0xFFFF)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "byte": st.integers(0, 1),
    "u16": st.integers(1, 0xFFFF),
    "u32": st.integers(1, 0xFFFFFFFF),
    "text": texts,
    "binary": blobs,
}


@st.composite
def properties(draw: st.DrawFn, packet: int) -> Properties:
    values: dict[str, Any] = {}
    for kind in props._KINDS.values():
        if packet not in kind.packets or not draw(st.booleans()):
            continue
        if kind.form == "pair":
            values[kind.name] = tuple(draw(st.lists(st.tuples(texts, texts), max_size=3)))
        elif kind.form == "varint":
            count = 1 if packet == props.SUBSCRIBE else 3
            values[kind.name] = tuple(draw(st.lists(st.integers(1, 268_435_455), max_size=count)))
        elif kind.name == "response_topic":
            values[kind.name] = draw(topics)
        else:
            values[kind.name] = draw(_VALUES[kind.form])
    if values.get("authentication_method") is None:
        values.pop("authentication_data", None)
    made = Properties(**values)
    return NONE if made == NONE else made


def _block(version: int, packet: int) -> st.SearchStrategy[Properties]:
    return properties(packet) if version == p.MQTT_5 else st.just(NONE)


@st.composite
def publishes(draw: st.DrawFn, version: int) -> p.Publish:
    qos = draw(st.integers(0, 2))
    flags = qos << 1 | draw(st.integers(0, 1)) | (draw(st.sampled_from((0, 8))) if qos else 0)
    block = draw(_block(version, props.PUBLISH))
    topic = draw(topics).encode()
    return p.Publish(topic, draw(st.binary(max_size=300)), draw(ids) if qos else 0, flags, block)


@st.composite
def connects(draw: st.DrawFn, version: int) -> p.Connect:
    will = None
    if draw(st.booleans()):
        block = draw(_block(version, props.WILL))
        will = p.Will(draw(topics), draw(blobs), draw(st.integers(0, 2)), draw(st.booleans()), block)
    username = draw(st.none() | texts)
    password = draw(st.none() | blobs) if username is not None or version == p.MQTT_5 else None
    block = draw(_block(version, props.CONNECT))
    keep_alive = draw(st.integers(0, 0xFFFF))
    return p.Connect(version, draw(texts), draw(st.booleans()), keep_alive, username, password, will, block)


def _codes(version: int, five: frozenset[int], three: tuple[int, ...]) -> st.SearchStrategy[int]:
    return st.sampled_from(sorted(five) if version == p.MQTT_5 else three)


@st.composite
def _connacks(draw: st.DrawFn, version: int) -> p.ConnAck:
    code = draw(_codes(version, reasons.CONNACK, (0, 1, 2, 3, 4, 5)))
    return p.ConnAck(draw(st.booleans()) and not code, code, draw(_block(version, props.CONNACK)))


@st.composite
def _requests(draw: st.DrawFn, version: int) -> p.Request:
    text, qos = draw(texts), draw(st.integers(0, 2))
    if version != p.MQTT_5:
        return p.Request(text, qos)
    return p.Request(text, qos, draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 2)))


@st.composite
def _auths(draw: st.DrawFn) -> p.Auth:
    block = draw(properties(props.AUTH))
    if block.authentication_method is None:
        return p.Auth()
    return p.Auth(draw(st.sampled_from(sorted(reasons.AUTH))), block)


def packets(version: int) -> st.SearchStrategy[p.Packet]:
    """Any packet that is sound in the version."""
    ack_codes = {
        p.PUBACK: reasons.PUBACK,
        p.PUBREC: reasons.PUBACK,
        p.PUBREL: reasons.PUBREL,
        p.PUBCOMP: reasons.PUBREL,
    }
    acks = st.one_of(
        [
            st.builds(p.Ack, st.just(kind), ids, _codes(version, codes, (0,)), _block(version, kind))
            for kind, codes in ack_codes.items()
        ]
    )
    subacks = _codes(version, reasons.SUBACK, (0, 1, 2, 0x80))
    unsubacks = (
        st.lists(st.sampled_from(sorted(reasons.UNSUBACK)), min_size=1, max_size=4).map(tuple)
        if version == p.MQTT_5
        else st.just(())
    )
    options: list[st.SearchStrategy[Any]] = [
        publishes(version),
        connects(version),
        _connacks(version),
        acks,
        st.builds(
            p.Subscribe,
            ids,
            st.lists(_requests(version), min_size=1, max_size=4).map(tuple),
            _block(version, props.SUBSCRIBE),
        ),
        st.builds(p.SubAck, ids, st.lists(subacks, min_size=1, max_size=4).map(tuple), _block(version, props.SUBACK)),
        st.builds(
            p.Unsubscribe,
            ids,
            st.lists(texts, min_size=1, max_size=4).map(tuple),
            _block(version, props.UNSUBSCRIBE),
        ),
        st.builds(p.UnsubAck, ids, unsubacks, _block(version, props.UNSUBACK)),
        st.just(p.PingReq()),
        st.just(p.PingResp()),
        st.builds(p.Disconnect, _codes(version, reasons.DISCONNECT, (0,)), _block(version, props.DISCONNECT)),
    ]
    if version == p.MQTT_5:
        options.append(_auths())
    return st.one_of(options)


def flat(items: list[Item]) -> list[Item]:
    """The items with each run written out as single packets."""
    out: list[Item] = []
    for item in items:
        if isinstance(item, p.Burst):
            out.extend(p.Publish(topic, payload, i, first & 15) for topic, payload, i, first in item.messages)
        elif isinstance(item, p.Acks):
            out.extend(p.Ack(p.PUBACK, i) for i in item.packet_ids)
        elif isinstance(item, p.PingReq):
            out.extend([p.PingReq()] * item.times)
        else:
            out.append(item)
    return out
