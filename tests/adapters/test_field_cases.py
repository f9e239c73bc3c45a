"""Field cases of devices' payloads, at the edge; the doors repeat them end to end."""

from __future__ import annotations

from base64 import b64decode

import orjson
import pytest

from iotsphere.adapters import dead_letter
from iotsphere.adapters.edge import Edge
from iotsphere.adapters.envelope import browser_safe, payload_of
from iotsphere.drivers.clock import ManualClock
from iotsphere.entities.errors import MessageRefused, TopicInvalid
from iotsphere.entities.message import Record
from iotsphere.entities.position import Partition
from iotsphere.entities.principal import OPERATOR_GRANTS, Principal, device, parse_grant

NOW = 1_767_225_600_000
EDGE = Edge(ManualClock(NOW), lambda domain, channel: [Partition(domain, channel, 0)])
OPERATOR = Principal(
    "user", "olga", "iotsphere", tuple(parse_grant(text, domain="iotsphere") for text in OPERATOR_GRANTS)
)


def admit(topic: str, payload: bytes) -> Record:
    device_id = topic.split("/")[2]
    sender = OPERATOR if "/commands/request" in topic else device("iotsphere", device_id)
    return EDGE.admit(EDGE.route(sender, topic), payload, NOW)


def value_of(topic: str, payload: bytes) -> object:
    return orjson.loads(payload_of(admit(topic, payload).body))


def reason_of(topic: str, payload: bytes) -> str:
    with pytest.raises(MessageRefused) as caught:
        admit(topic, payload)
    letter = EDGE.dead_letter(OPERATOR, topic, payload, NOW, caught.value)
    kept = dead_letter.decode(payload_of(letter.body))
    assert kept.raw == payload
    assert kept.topic == topic
    return kept.reason


@pytest.mark.parametrize(
    ("payload", "value"), [(b"21.5", 21.5), (b"-085", -85), (b"20.0\n", 20.0), (b" +1 ", 1), (b"7e-06", 7e-06)]
)
def test_a01_bare_numbers_are_one_value(payload: bytes, value: float) -> None:
    record = admit("iotsphere/devices/dev-01/telemetry/rssi", payload)
    stored = orjson.loads(payload_of(record.body))["value"]
    assert (stored, type(stored)) == (value, type(value))
    assert record.timestamp == NOW


@pytest.mark.parametrize("payload", [b"21,5", b"21.5 C"])
def test_a01_other_numbers_are_never_guessed(payload: bytes) -> None:
    assert reason_of("iotsphere/devices/dev-01/telemetry/temperature", payload) == "payload_not_json"


def test_a12_glued_messages_are_kept_exactly_and_never_read_in_part() -> None:
    glued = (
        b'{"Time":"2022-12-27T15:06:08","Switch10\xf4\x02\x00\x1btele/DVES_000000/HASS_STATE'
        b'{"Version":"8.2.0","Uptime":"136T17:56:23","Sa'
    )
    topic = "iotsphere/devices/tas-03/telemetry/sensor"
    assert reason_of(topic, glued) == "payload_not_utf8"
    assert value_of(topic, b'{"Switch1":"ON"}') == {"Switch1": "ON"}


WH = "iotsphere/devices/dev-07/telemetry/wh_delta"


def test_a25_numeric_edges() -> None:
    assert value_of(WH, b'{"ts":1549397060000,"value":7e-06}') == {
        "ts": 1549397060000,
        "value": 7e-06,
        "observedAt": "2019-02-05T20:04:20.000Z",
    }
    assert payload_of(admit(WH, b'{"value":-0.0}').body) == b'{"value":0.0}'
    assert payload_of(admit(WH, b'{"value":-9223372036854775808}').body) == b'{"value":-9223372036854775808}'
    assert reason_of(WH, b'{"value":9223372036854775808}') == "int_out_of_range"
    assert reason_of(WH, b'{"value":18446744073709551616}') == "int_out_of_range"


def test_a25_large_integers_are_exact_in_the_log_and_in_the_browser() -> None:
    body = admit(WH, b'{"value":9007199254740993}').body
    assert payload_of(body) == b'{"value":9007199254740993}'
    assert payload_of(browser_safe(body)) == b'{"value":"9007199254740993"}'


TWIN_COMMAND = b64decode(
    "eyJtZXRhZGF0YSI6eyJtZXNzYWdlSWQiOiIwMDAwMDAwMC0wMDAwLTQwMDAtODAwMC0wMDAwMDAwMDAwYzIiLCJ0aW1lc3RhbXAiOiIyMDI0LTAx"
    "LTAxVDAwOjAwOjAwWiIsInRvcGljIjoiaW90c3BoZXJlL2RldmljZXMvZGV2LWMvY29tbWFuZHMvcmVxdWVzdCIsInNvdXJjZSI6InVpIiwibWVz"
    "c2FnZVR5cGUiOiJjb21tYW5kIiwidmVyc2lvbiI6IjEifSwicGF5bG9hZCI6eyJhY3Rpb24iOiJyZWFkIiwiYWN0aW9uIjoiZmFjdG9yeV9yZXNl"
    "dCJ9fQ=="
)


def test_c02_a_command_with_a_twin_key_is_refused() -> None:
    assert reason_of("iotsphere/devices/dev-c/commands/request", TWIN_COMMAND) == "json_duplicate_key"


def test_c02_an_escaped_twin_is_a_twin() -> None:
    assert reason_of("iotsphere/devices/dev-c/telemetry/t", b'{"a":1,"\\u0061":2}') == "json_duplicate_key"


def test_c02_the_canonical_form_travels_on() -> None:
    body = admit("iotsphere/devices/dev-c/telemetry/t", b'{ "\\u0061" : 1.50, "b":"\\u0041" }').body
    assert payload_of(body) == b'{"a":1.5,"b":"A"}'


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"reported":{"a.b":1,"$set":{"role":"admin"},"x.$[]":1,"":2,"arr.0":3}}', "key_not_allowed"),
        (b'{"reported":{"acl.role":"admin"}}', "key_not_allowed"),
        (b'{"reported":{"p":{"$inc":{"n":1}}}}', "key_not_allowed"),
        (b'{"reported":{"a\\u0000b":1}}', "key_not_allowed"),
        (b'{"reported":{"a":"\\ud800"}}', "invalid_string"),
        (
            b'{"reported":{"__proto__":{"isAdmin":true},"constructor":{"prototype":{"x":1}},"led":true}}',
            "key_not_allowed",
        ),
    ],
)
def test_c05_c06_keys_that_others_would_interpret_are_refused(payload: bytes, reason: str) -> None:
    assert reason_of("iotsphere/devices/dev-c/shadow/reported", payload) == reason


def test_c05_a_field_reference_in_a_value_is_a_literal() -> None:
    payload = b'{"reported":{"name":"$acl.role"}}'
    assert payload_of(admit("iotsphere/devices/dev-c/shadow/reported", payload).body) == payload


def test_c15_control_characters_in_values_are_data_and_stay_escaped() -> None:
    payload = b'{"value":1,"unit":"C\\r\\n2024-01-01 CRITICAL fake line","note":"\\u001b[2J"}'
    body = admit("iotsphere/devices/dev-c/telemetry/t", payload).body
    assert payload_of(body) == payload
    assert not {b"\r", b"\n", b"\x1b"} & {bytes((byte,)) for byte in body}


def test_a22_an_odd_topic_is_never_repaired() -> None:
    with pytest.raises(TopicInvalid) as caught:
        EDGE.route(OPERATOR, "/iotsphere/devices/d1/telemetry/t")
    letter = EDGE.dead_letter(OPERATOR, "/iotsphere/devices/d1/telemetry/t", b"1", NOW, caught.value)
    assert dead_letter.decode(payload_of(letter.body)).reason == "topic_invalid"
    assert letter.topic == "iotsphere/system/dead-letters"
