from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.envelope import decode, encode
from iotsphere.adapters.extras import Extras, encode_extras, read_extras
from iotsphere.entities.errors import MessageRefused
from iotsphere.entities.message import Message, Metadata

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def members(extras: Extras) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(b'{"a":1' + encode_extras(extras) + b"}")
    return found


@given(
    st.builds(
        Extras,
        st.none() | texts,
        st.none() | st.binary(max_size=40),
        st.lists(st.tuples(texts, texts), max_size=8).map(tuple),
    )
)
def test_what_is_written_is_read_again(extras: Extras) -> None:
    assert read_extras(members(extras)) == extras


def test_a_name_may_come_twice_and_keeps_its_order() -> None:
    extras = Extras(properties=(("b", "1"), ("a", "2"), ("b", "3")))
    assert members(extras) == {"a": 1, "properties": [["b", "1"], ["a", "2"], ["b", "3"]]}


@pytest.mark.parametrize(
    "extras",
    [
        Extras(properties=(("a", ""),) * 33),
        Extras(properties=(("a", "x" * 4_096),)),
        Extras(response_topic="x" * 513),
        Extras(correlation_data=b"x" * 513),
    ],
    ids=["33 properties", "4,097 bytes", "response topic", "correlation data"],
)
def test_what_is_too_much_is_refused(extras: Extras) -> None:
    with pytest.raises(MessageRefused, match="put it into the payload") as caught:
        encode_extras(extras)
    assert caught.value.code == "payload_too_large"


def test_the_limits_themselves_are_allowed() -> None:
    assert encode_extras(Extras("x" * 512, b"x" * 512, (("a", "x" * 4_095),)))
    assert encode_extras(Extras(properties=(("a", ""),) * 32))


@pytest.mark.parametrize(
    "metadata",
    [
        {"responseTopic": 1},
        {"correlationData": 1},
        {"correlationData": "no base64"},
        {"properties": {"a": "b"}},
        {"properties": [["a"]]},
        {"properties": [["a", 1]]},
        {"properties": ["ab"]},
    ],
)
def test_what_is_no_extra_is_said(metadata: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(metadata))):
        read_extras(metadata)


def test_services_see_them() -> None:
    metadata = Metadata(
        message_id="0191b0a0-0000-7000-8000-000000000001",
        timestamp="2026-01-01T00:00:00.000Z",
        topic="iotsphere/system/status",
        source="s",
        response_topic="iotsphere/system/metrics",
        correlation_data="AQI=",
        properties=(("a", "1"), ("a", "2")),
    )
    message = Message(metadata, b"{}")
    assert decode(encode(message)) == message
