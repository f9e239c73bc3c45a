"""Payloads as devices really send them (A01, A12, A25, C02): over MQTT in, over WebSocket and HTTP out."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode
from typing import Any

import orjson
import pytest
import pytest_asyncio
from paho.mqtt.enums import MQTTProtocolVersion

from tests.client.house import Talker
from tests.support.gateway import Credential, Gateway

from .clients import V5, V311, browser, command_line, history, letters, log_lines, mqtt

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {"log_level": "debug"}
BOTH = pytest.mark.parametrize("version", [V5, V311], ids=["5", "3.1.1"])
PAYLOAD_FORMAT_INVALID = 0x99

Devices = dict[str, Credential]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def devices(gateway: Gateway) -> Devices:
    return {who.device_id: who for who in await gateway.add_devices(["dev-01", "tas-03", "dev-07", "dev-c"])}


async def send(
    gateway: Gateway, device: Credential, topic: str, *payloads: bytes, version: MQTTProtocolVersion = V5
) -> list[int]:
    """Publish as a device; returns the reason of each acknowledgement."""
    async with mqtt(gateway, device, version=version) as client:
        return [await client.publish(topic, payload) for payload in payloads]


async def exchange(
    gateway: Gateway, device: Credential, topic: str, payload: bytes, version: MQTTProtocolVersion = V5, *, exact: bool
) -> dict[str, Any]:
    """The message that a subscribed browser gets when a device publishes."""
    async with browser(gateway, exact=exact) as page:
        await page.subscribe(topic)
        assert await send(gateway, device, topic, payload, version=version) == [0]
        (message,) = await page.messages(1)
        return message


def told(page: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message["payload"] for message in page]


NUMBERS = {
    "plain": ("temperature", b"MjEuNQ==", "21.5"),
    "rssi with leading zero": ("rssi", b"LTA4NQ==", "-85"),
    "trailing newline": ("temperature", b"MjAuMAo=", "20.0"),
}


@BOTH
@pytest.mark.parametrize("name", NUMBERS)
async def test_case_a01_a_bare_number_is_one_sample_at_its_arrival(
    gateway: Gateway, devices: Devices, name: str, version: MQTTProtocolVersion
) -> None:
    metric, encoded, shown = NUMBERS[name]
    topic = f"iotsphere/devices/dev-01/telemetry/{metric}"
    message = await exchange(gateway, devices["dev-01"], topic, b64decode(encoded), version, exact=False)
    assert repr(message["payload"]) == f"{{'value': {shown}}}"
    assert message["metadata"].keys() == {
        "messageId", "timestamp", "topic", "source", "correlationId", "messageType", "version",
    }, "no device time was given, so the time is that of the arrival and nothing is doubted"  # fmt: skip
    assert message["metadata"]["source"] == "dev-01"
    assert (await history(gateway, topic))[-1] == message


@BOTH
@pytest.mark.parametrize("payload", [b64decode("MjEsNQ=="), b64decode("MjEuNSBD"), b"21.5\xc2\xb0C", b"--1", b"1_000"])
async def test_case_a01_what_is_nearly_a_number_is_never_guessed(
    gateway: Gateway, devices: Devices, payload: bytes, version: MQTTProtocolVersion
) -> None:
    topic = "iotsphere/devices/dev-01/telemetry/guess"
    async with browser(gateway) as page:
        await page.subscribe("iotsphere/devices/dev-01/#")
        reasons = await send(gateway, devices["dev-01"], topic, payload, b"7", version=version)
        assert reasons == ([PAYLOAD_FORMAT_INVALID, 0] if version is V5 else [0, 0])
        newest = (await letters(gateway, device="dev-01", limit="1"))[0]
        assert (newest.reason, newest.topic, newest.raw) == ("payload_not_json", topic, payload)
        seen = await up_to(page, topic)
        assert seen[-1]["payload"] == {"value": 7}
        errors = [message["payload"] for message in seen if message["metadata"]["topic"].endswith("/errors")]
        if version is V311:  # which has no reasons: the device is told on its own topic
            assert [(error["error"], error["topic"]) for error in errors] == [("payload_not_json", topic)]
        else:
            assert errors == []


async def up_to(page: Talker, topic: str) -> list[dict[str, Any]]:
    """Messages up to and with the next one on a topic."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["metadata"]["topic"] != topic:
        found += (await page.push("messages"))["messages"]
    return found


GLUED = b64decode(
    "eyJUaW1lIjoiMjAyMi0xMi0yN1QxNTowNjowOCIsIlN3aXRjaDEw9AIAG3RlbGUvRFZFU18wMDAwMDAvSEFTU19TVEFURXsiVmVyc2lvbiI6Ijgu"
    "Mi4wIiwiVXB0aW1lIjoiMTM2VDE3OjU2OjIzIiwiU2E="
)


@BOTH
@pytest.mark.parametrize("tail", [b"", b'","Y":"' + b"remnant-of-memory " * 100], ids=["as it was", "longer"])
async def test_case_a12_two_messages_glued_together_are_kept_exactly_and_read_not_at_all(
    gateway: Gateway, devices: Devices, version: MQTTProtocolVersion, tail: bytes
) -> None:
    topic = "iotsphere/devices/tas-03/telemetry/sensor"
    payload = GLUED + tail
    before = await history(gateway, "iotsphere/#")
    reasons = await send(gateway, devices["tas-03"], topic, payload, b'{"Switch1":"ON"}', version=version)
    assert reasons == ([PAYLOAD_FORMAT_INVALID, 0] if version is V5 else [0, 0])
    newest = (await letters(gateway, device="tas-03", limit="1"))[0]
    assert (newest.reason, newest.topic, newest.raw) == ("payload_not_utf8", topic, payload)
    assert newest.facts["size"] == len(payload)
    assert newest.facts["sha256"] == hashlib.sha256(payload).hexdigest()
    assert newest.facts["complete"]

    known = {message["metadata"]["messageId"] for message in before}
    added = [m for m in await history(gateway, "iotsphere/#") if m["metadata"]["messageId"] not in known]
    on_topics = {message["metadata"]["topic"] for message in added}
    device = "iotsphere/devices/tas-03"
    assert on_topics - {f"{device}/presence", f"{device}/errors"} == {topic, "iotsphere/system/dead-letters"}
    assert [m["payload"] for m in added if m["metadata"]["topic"] == topic] == [{"Switch1": "ON"}]
    assert_logged_at_most(gateway, payload, 200)


def assert_logged_at_most(gateway: Gateway, payload: bytes, most: int) -> None:
    """No log line holds more than ``most`` bytes of a payload in a row, escaped in whatever way."""
    pieces = [piece for piece in re.split(rb"[^ -~]|[\"\\]", payload) if len(piece) > most]
    for line in log_lines(gateway):
        text = json.dumps(line)
        for piece in pieces:
            for start in range(0, len(piece) - most, 16):
                assert piece[start : start + most + 1].decode() not in text


async def test_case_a12_the_command_line_shows_the_exact_bytes(gateway: Gateway, devices: Devices) -> None:
    topic = "iotsphere/devices/tas-03/telemetry/sensor"
    await send(gateway, devices["tas-03"], topic, GLUED)
    newest = (await letters(gateway, device="tas-03", limit="1"))[0]
    shown = json.loads(await command_line(gateway, "dead-letters", "show", newest.facts["id"]))
    assert (shown["reason"], shown["topic"], shown["source"]) == ("payload_not_utf8", topic, "tas-03")
    assert b64decode(shown["raw"]) == GLUED


WH = "iotsphere/devices/dev-07/telemetry/wh_delta"


@BOTH
async def test_case_a25_small_numbers_and_negative_zero(
    gateway: Gateway, devices: Devices, version: MQTTProtocolVersion
) -> None:
    device = devices["dev-07"]
    payload = b64decode("eyJ0cyI6MTU0OTM5NzA2MDAwMCwidmFsdWUiOjdlLTA2fQ==")
    message = await exchange(gateway, device, WH, payload, version, exact=False)
    assert message["payload"] == {"ts": 1549397060000, "value": 7e-06, "observedAt": "2019-02-05T20:04:20.000Z"}
    assert message["metadata"]["quality"] == "clock_untrusted"  # the time was years ago
    message = await exchange(gateway, device, WH, b64decode("eyJ2YWx1ZSI6LTAuMH0="), version, exact=False)
    assert repr(message["payload"]) == "{'value': 0.0}"


INTEGERS = {
    "2^53": b'{"value":9007199254740992}',
    "2^53+1": b64decode("eyJ2YWx1ZSI6OTAwNzE5OTI1NDc0MDk5M30="),
    "int64 max": b'{"value":9223372036854775807}',
    "int64 min": b64decode("eyJ2YWx1ZSI6LTkyMjMzNzIwMzY4NTQ3NzU4MDh9"),
}


@pytest.mark.parametrize("name", INTEGERS)
async def test_case_a25_large_integers_survive_the_way_to_the_browser_and_back(
    gateway: Gateway, devices: Devices, name: str
) -> None:
    payload = INTEGERS[name]
    value = orjson.loads(payload)["value"]
    device = devices["dev-07"]
    shown = (await exchange(gateway, device, WH, payload, exact=False))["payload"]["value"]
    assert shown in (value, str(value))
    if abs(value) > 2**53:
        assert shown == str(value), "a number of a browser could not hold it"
    assert (await exchange(gateway, device, WH, payload, exact=True))["payload"] == {"value": value}
    async with gateway.api() as api:
        answer = await api.get("/api/v1/latest", params={"filter": WH})
        assert payload in answer.content


@BOTH
@pytest.mark.parametrize("value", [b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616"])
async def test_case_a25_integers_beyond_64_bits_are_refused_and_break_nothing(
    gateway: Gateway, devices: Devices, version: MQTTProtocolVersion, value: bytes
) -> None:
    payload = b'{"value":%b}' % value
    reasons = await send(gateway, devices["dev-07"], WH, payload, b'{"value":1}', version=version)
    assert reasons == ([PAYLOAD_FORMAT_INVALID, 0] if version is V5 else [0, 0])
    newest = (await letters(gateway, device="dev-07", limit="1"))[0]
    assert (newest.reason, newest.raw) == ("int_out_of_range", payload)
    assert told(await history(gateway, WH))[-1] == {"value": 1}


TWIN_COMMAND = b64decode(
    "eyJtZXRhZGF0YSI6eyJtZXNzYWdlSWQiOiIwMDAwMDAwMC0wMDAwLTQwMDAtODAwMC0wMDAwMDAwMDAwYzIiLCJ0aW1lc3RhbXAiOiIyMDI0LTAx"
    "LTAxVDAwOjAwOjAwWiIsInRvcGljIjoiaW90c3BoZXJlL2RldmljZXMvZGV2LWMvY29tbWFuZHMvcmVxdWVzdCIsInNvdXJjZSI6InVpIiwibWVz"
    "c2FnZVR5cGUiOiJjb21tYW5kIiwidmVyc2lvbiI6IjEifSwicGF5bG9hZCI6eyJhY3Rpb24iOiJyZWFkIiwiYWN0aW9uIjoiZmFjdG9yeV9yZXNl"
    "dCJ9fQ=="
)
COMMANDS = "iotsphere/devices/dev-c/commands/request"


async def test_case_c02_a_command_with_a_twin_key_reaches_nobody_through_any_door(
    gateway: Gateway, devices: Devices
) -> None:
    assert devices
    async with browser(gateway) as page:
        await page.subscribe(COMMANDS)
        async with mqtt(gateway, gateway.token) as client:
            assert await client.publish(COMMANDS, TWIN_COMMAND) == PAYLOAD_FORMAT_INVALID
        request = b'{"type":"publish","ref":77,"topic":"%b","message":%b}' % (COMMANDS.encode(), TWIN_COMMAND)
        await page.connection.send(request, text=True)
        answer = await page.answer(77)
        assert (answer["type"], answer["code"]) == ("error", "json_duplicate_key")
        async with gateway.api() as api:
            body = b'{"topic":"%b","payload":{"action":"read","action":"factory_reset"}}' % COMMANDS.encode()
            headers = {"Content-Type": "application/json"}
            response = await api.post("/api/v1/messages", content=body, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (422, "json_duplicate_key")
        await page.publish({"action": "read"}, COMMANDS)
        (message,) = await page.messages(1)
        assert message["payload"] == {"action": "read"}
    found = [letter for letter in await letters(gateway, reason="json_duplicate_key") if letter.topic == COMMANDS]
    assert len(found) == 3
    assert TWIN_COMMAND in [letter.raw for letter in found]


@BOTH
@pytest.mark.parametrize(
    "payload",
    [b64decode("eyJhIjoxLCJcdTAwNjEiOjJ9"), b'{"x":[{"y":{"a":1,"b":0,"a":1}}]}', b'[{"a":1},{"a":1,"a":2}]'],
    ids=["escaped twin", "deep inside", "in a sample"],
)
async def test_case_c02_a_twin_key_is_refused_at_any_level(
    gateway: Gateway, devices: Devices, version: MQTTProtocolVersion, payload: bytes
) -> None:
    topic = "iotsphere/devices/dev-c/telemetry/t"
    reasons = await send(gateway, devices["dev-c"], topic, payload, b'{"a":1}', version=version)
    assert reasons == ([PAYLOAD_FORMAT_INVALID, 0] if version is V5 else [0, 0])
    newest = (await letters(gateway, device="dev-c", limit="1"))[0]
    assert (newest.reason, newest.raw) == ("json_duplicate_key", payload)
    assert told(await history(gateway, topic))[-1] == {"a": 1}


async def test_case_c02_the_canonical_form_travels_on_not_the_senders_bytes(gateway: Gateway, devices: Devices) -> None:
    topic = "iotsphere/devices/dev-c/telemetry/canonical"
    async with browser(gateway) as page:
        await page.subscribe(topic)
        await send(gateway, devices["dev-c"], topic, b'{ "\\u0061" : 1.50,\n"b":"\\u0041\\/" }')
        frame = await page.connection.recv(decode=False)
    assert b'"payload":{"a":1.5,"b":"A/"}}' in frame
