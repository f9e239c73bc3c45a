"""Envelopes: round trips byte for byte, and integers that survive a browser."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iotsphere.adapters.envelope import browser_safe, decode, encode, payload_of
from iotsphere.adapters.payload import read_json
from iotsphere.entities.errors import MessageRefused
from iotsphere.entities.message import Message, Metadata
from tests.support.examples import tried

from .json_texts import CLEAN_TEXTS, has_twin

texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=12) | st.sampled_from(('},"payload":', '"', "\\", "\n"))
maybe = st.none() | texts
metadatas = st.builds(
    Metadata,
    message_id=texts,
    timestamp=texts,
    topic=texts,
    source=texts,
    correlation_id=maybe,
    message_type=texts,
    version=texts,
    received_at=maybe,
    content_type=maybe,
    expires_at=maybe,
    traceparent=maybe,
    quality=maybe,
)
payloads = CLEAN_TEXTS.filter(lambda text: not has_twin(text)).map(lambda text: read_json(text.encode()).canonical)
messages = st.builds(Message, metadatas, payloads)


@tried(100)
@given(messages)
def test_an_envelope_comes_back_byte_for_byte(message: Message) -> None:
    body = encode(message)
    assert decode(body) == message
    assert encode(decode(body)) == body
    assert payload_of(body) == message.payload


@given(messages)
def test_an_envelope_is_the_json_of_the_design(message: Message) -> None:
    document = json.loads(encode(message))
    assert list(document) == ["metadata", "payload"]
    keys = list(document["metadata"])
    required = ["messageId", "timestamp", "topic", "source", "correlationId", "messageType", "version"]
    optional = ["receivedAt", "contentType", "expiresAt", "traceparent", "quality"]
    assert keys[:7] == required
    assert keys[7:] == [key for key in optional if document["metadata"].get(key) is not None]
    assert document["metadata"]["correlationId"] == message.metadata.correlation_id
    assert document["payload"] == json.loads(message.payload)


@given(metadatas, st.binary(max_size=40))
def test_the_payload_is_never_looked_into(metadata: Metadata, payload: bytes) -> None:
    assert decode(encode(Message(metadata, payload))).payload == payload


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"metadata":{},"payload":{}}',
        b'{"metadata":{"messageId":1},"payload":{}}',
        b'{"metadata":{"unknown":"x"},"payload":{}}',
        b'{"metadata":{nonsense},"payload":{}}',
        b'{"metadata":{"a":"b"}',
        b'{"metadata":{"messageId":"m","timestamp":"t","topic":"t","source":null,"messageType":"e","version":"1.0"},"payload":{}}',
        b'{"payload":{},"metadata":{}}',
    ],
)
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(MessageRefused) as caught:
        decode(body)
    assert caught.value.code == "schema_violation"


def test_a_payload_cannot_be_cut_out_of_something_else() -> None:
    with pytest.raises(MessageRefused):
        payload_of(b'{"value":1}')


def _as_a_browser_should_see(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) > 2**53:
        return str(value)
    if isinstance(value, dict):
        return {key: _as_a_browser_should_see(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_a_browser_should_see(item) for item in value]
    return value


numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(2**53 - 2, 2**53 + 2),
    st.integers(-(2**53) - 2, -(2**53) + 2),
    st.floats(allow_nan=False, allow_infinity=False),
)
digits = st.text(alphabet='0123456789-.,:"\\e{}[] ', max_size=40)
values = st.recursive(
    numbers | digits | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(digits, inner, max_size=4),
    max_leaves=8,
)


@tried(100)
@example(
    [10**17, '1":9007199254740993', "9007199254740993", 1.9876543210987654, 9876543210987654.0, 1.5e-300, -(2**63)]
)
@given(values)
def test_browsers_get_large_integers_as_texts_and_all_else_unchanged(value: Any) -> None:
    metadata = Metadata(message_id="m", timestamp="t", topic="9007199254740993", source="12345678901234567890")
    payload = orjson.dumps({"value": value})
    body = encode(Message(metadata, payload))
    safe = browser_safe(body)
    wanted = {"value": _as_a_browser_should_see(value)}
    assert json.loads(payload_of(safe)) == wanted
    assert safe[: body.find(b'"payload":')] == body[: body.find(b'"payload":')]
    if wanted == {"value": value}:
        assert payload_of(safe) == payload


def test_what_needs_no_change_is_the_same_object() -> None:
    metadata = Metadata(message_id="m", timestamp="t", topic="9007199254740993", source="s")
    body = encode(Message(metadata, b'{"value":900719925474099}'))
    assert browser_safe(body) is body
