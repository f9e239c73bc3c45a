"""Line breaks, escape sequences and endless names from clients (C15): data where they may be, refused where not."""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode

import pytest
import pytest_asyncio
from paho.mqtt.enums import MQTTProtocolVersion
from prometheus_client.parser import text_string_to_metric_families

from tests.support.device import packet, read_packet
from tests.support.gateway import Credential, Gateway
from tests.support.raw_http import RawConnection, open_raw

from .clients import V5, V311, Refused, browser, command_line, history, letters, log_lines, mqtt

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {"log_level": "debug", "messages_per_second": 1_000_000}
BOTH = pytest.mark.parametrize("version", [V5, V311], ids=["5", "3.1.1"])
DEVICE = "iotsphere/devices/dev-c"
CLIENT_IDENTIFIER_NOT_VALID, BAD_USER_NAME_OR_PASSWORD, TOPIC_NAME_INVALID = 0x85, 0x86, 0x90
HOSTILE = {
    "line break": "a\r\n2024-01-01 CRITICAL fake line",
    "escape sequence": "a\x1b[2J",
    "delete": "a\x7f",
    "C1 control": "a\x9b2J",
    "bell": "\x07a",
}
EACH = pytest.mark.parametrize("name", HOSTILE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def device(gateway: Gateway) -> Credential:
    (credential,) = await gateway.add_devices(["dev-c"])
    return credential


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def logs_stay_sound(gateway: Gateway) -> None:
    """Before each test, of all before it: log_lines() raises for a line that is no JSON or holds a control character."""
    log_lines(gateway)


def assert_logged_nothing_fake(gateway: Gateway) -> None:
    for line in log_lines(gateway):
        assert line.get("level") in {"debug", "info", "warning", "error", "critical"}, line
        assert line.get("timestamp"), line


PAYLOAD = b64decode(
    "eyJ2YWx1ZSI6MSwidW5pdCI6IkNcclxuMjAyNC0wMS0wMSBDUklUSUNBTCBmYWtlIGxpbmUiLCJub3RlIjoiXHUwMDFiWzJKIn0="
)


@BOTH
async def test_case_c15_control_characters_in_a_payload_are_data_and_stay_escaped(
    gateway: Gateway, device: Credential, version: MQTTProtocolVersion
) -> None:
    topic = f"{DEVICE}/telemetry/t"
    async with browser(gateway) as page:
        await page.subscribe(topic)
        async with mqtt(gateway, device, version=version) as client:
            assert await client.publish(topic, PAYLOAD) == 0
        frame = await page.connection.recv(decode=False)
    assert isinstance(frame, bytes)
    assert PAYLOAD in frame
    assert not re.search(rb"[\x00-\x1f\x7f]", frame)
    assert (await history(gateway, topic))[-1]["payload"]["unit"] == "C\r\n2024-01-01 CRITICAL fake line"
    assert_logged_nothing_fake(gateway)


@EACH
@BOTH
async def test_case_c15_client_ids_with_control_characters_are_refused(
    gateway: Gateway, device: Credential, version: MQTTProtocolVersion, name: str
) -> None:
    with pytest.raises(Refused) as refused:
        async with mqtt(gateway, device, client_id=HOSTILE[name], version=version):
            pass
    assert refused.value.code == CLIENT_IDENTIFIER_NOT_VALID
    assert_logged_nothing_fake(gateway)


@EACH
@BOTH
@pytest.mark.parametrize("secret", ["wrong", "a good token"])
async def test_case_c15_user_names_with_control_characters_are_refused(
    gateway: Gateway, version: MQTTProtocolVersion, name: str, secret: str
) -> None:
    password = gateway.token if secret == "a good token" else secret
    with pytest.raises(Refused) as refused:
        async with mqtt(gateway, Credential("", HOSTILE[name], password), version=version):
            pass
    assert refused.value.code == BAD_USER_NAME_OR_PASSWORD
    assert_logged_nothing_fake(gateway)


@EACH
@BOTH
async def test_case_c15_topics_with_control_characters_are_refused_and_shown_escaped(
    gateway: Gateway, device: Credential, version: MQTTProtocolVersion, name: str
) -> None:
    topic = f"{DEVICE}/telemetry/{HOSTILE[name]}"
    async with mqtt(gateway, device, version=version) as client:
        reason = await client.publish(topic, b"1")
        assert reason == (TOPIC_NAME_INVALID if version is V5 else 0)
        assert await client.publish(f"{DEVICE}/telemetry/t", b"1") == 0
    newest = (await letters(gateway, device="dev-c", limit="1"))[0]
    assert (newest.reason, newest.topic) == ("topic_invalid", topic)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", newest.facts["detail"])
    assert_logged_nothing_fake(gateway)


async def test_case_c15_a_terminal_shows_what_devices_sent_without_obeying_it(
    gateway: Gateway, device: Credential
) -> None:
    async with mqtt(gateway, device) as client:
        for hostile in HOSTILE.values():
            await client.publish(f"{DEVICE}/telemetry/{hostile}", b"1")
        await client.publish(f"{DEVICE}/telemetry/t", '{"note":"a\\u001b[2J\\u009b2J\u009b2J\u007f"}'.encode())
    listed = await command_line(gateway, "dead-letters", "list", "--reason", "topic_invalid")
    shown = await command_line(gateway, "tail", f"{DEVICE}/telemetry/t", "--from", "latest", "--count", "1")
    for text in (listed, shown):
        assert not re.search(r"[^\n -~]", text), repr(text)
    assert "fake line" in listed
    assert listed.count("\n") == 1 + len(await letters(gateway, reason="topic_invalid", limit="50"))
    assert "[2J" in shown


@EACH
async def test_case_c15_names_with_control_characters_cannot_be_registered(gateway: Gateway, name: str) -> None:
    async with gateway.api() as api:
        answer = await api.post("/api/v1/devices", json={"device_id": HOSTILE[name]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "request_invalid")
        answer = await api.post("/api/v1/tokens", json={"subject": f"user:{HOSTILE[name]}", "grants": []})
        assert answer.status_code == 422
    assert_logged_nothing_fake(gateway)


HUNG_UP = 0
STANDARD = {
    "cache-control", "connection", "content-length", "content-type", "date", "server", "upgrade", "www-authenticate",
    "sec-websocket-accept", "sec-websocket-protocol", "x-content-type-options", "allow", "content-security-policy",
    "cross-origin-resource-policy", "referrer-policy", "x-frame-options", "retry-after",
}  # fmt: skip


async def answer_of(connection: RawConnection) -> tuple[int, dict[str, str], bytes]:
    """The answer to what was sent; its status is HUNG_UP when there is none."""
    try:
        return await connection.answer()
    except asyncio.IncompleteReadError as cut:
        if cut.partial:
            raise
        return HUNG_UP, {}, b""


@pytest.mark.parametrize(
    "line",
    [
        b"GET /%0d%0aX-Evil:%20yes HTTP/1.1",
        b"GET /api/v1/messages/a%0d%0aX-Evil:%20yes/trace HTTP/1.1",
        b"GET /api/v1/messages?filter=a%1b%5b2J%0aX-Evil:yes HTTP/1.1",
        b"GET /\x1b[2J HTTP/1.1",
        b"GET /\xc2\x9b2J HTTP/1.1",
        b"E\x1b[2J / HTTP/1.1",
    ],
)
@pytest.mark.parametrize("header", [b"X-Request-Id: a\x1b[2Jb", b"X-Request-Id: a\x9bb", b"Host: a\rX-Evil: yes"])
async def test_case_c15_nothing_of_a_request_comes_back_in_a_header(
    gateway: Gateway, line: bytes, header: bytes
) -> None:
    for url in (gateway.http, gateway.websocket):
        host, port = url.rpartition("//")[2].split(":")
        async with open_raw(host, int(port)) as connection:
            authorization = b"Authorization: Bearer " + gateway.token.encode()
            await connection.send(b"\r\n".join((line, b"Host: door", authorization, header, b"", b"")))
            status, headers, body = await answer_of(connection)
        assert status == HUNG_UP or 400 <= status < 500
        assert headers.keys() <= STANDARD
        assert not [value for value in headers.values() if re.search(r"evil|2J", value, re.IGNORECASE)]
        assert "json" not in headers.get("content-type", "") or not re.search(rb"[\x00-\x1f\x7f]", body)
    assert_logged_nothing_fake(gateway)


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ("evil", None),
        ("iotsphere.v1.json\x1b", None),
        ("a\x1b[2J, iotsphere.v1.json", None),
        ("evil, iotsphere.v1.json", "iotsphere.v1.json"),
        ("IOTSPHERE.V1.JSON", None),
        ("x" * 4_000 + ", iotsphere.v1.json", "iotsphere.v1.json"),
    ],
)
async def test_case_c15_subprotocol_names_come_from_a_fixed_set(
    gateway: Gateway, offered: str, chosen: str | None
) -> None:
    host, port = gateway.websocket.rpartition("//")[2].split(":")
    async with open_raw(host, int(port)) as connection:
        lines = (
            *("GET / HTTP/1.1", "Host: door", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
            *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", f"Sec-WebSocket-Protocol: {offered}", "", ""),
        )
        await connection.send("\r\n".join(lines).encode())
        status, headers, _ = await answer_of(connection)
    assert status in ((101,) if chosen else (101, 400, HUNG_UP))
    assert headers.get("sec-websocket-protocol") == chosen
    assert headers.keys() <= STANDARD
    assert_logged_nothing_fake(gateway)


async def figures(gateway: Gateway) -> dict[str, float]:
    async with gateway.api() as api:
        text = (await api.get("/metrics")).text
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def publish_names(gateway: Gateway, device: Credential, count: int) -> None:
    """One value under each of so many metric names, over one connection by hand, which is faster than any library."""

    def text(value: str) -> bytes:
        return len(value).to_bytes(2, "big") + value.encode()

    reader, writer = await asyncio.open_connection(*gateway.mqtt)
    login = text("many-names") + text(device.username) + text(device.password)
    writer.write(packet(0x10, text("MQTT") + bytes((4, 0b11000010, 0, 60)) + login))
    assert await read_packet(reader) == (0x20, b"\x00\x00")
    for start in range(0, count, 500):
        numbers = range(start, min(start + 500, count))
        for number in numbers:
            topic = text(f"{DEVICE}/telemetry/m{number:04x}")
            writer.write(packet(0x32, topic + (number + 1).to_bytes(2, "big") + b'{"value":1}'))
        for number in numbers:
            assert await read_packet(reader) == (0x40, (number + 1).to_bytes(2, "big"))
    writer.close()
    await writer.wait_closed()


async def test_case_c15_ten_thousand_metric_names_add_no_series(gateway: Gateway, device: Credential) -> None:
    async with mqtt(gateway, device, client_id="another"):
        await publish_names(
            gateway, device, 1
        )  # what such a client does is counted by names of ours, once it has done it
        before = await figures(gateway)
        # Its own route is one, and answers may be a second old.
        while not any("'/metrics'" in name for name in before) or not any("'closed_" in name for name in before):
            await asyncio.sleep(0.1)
            before = await figures(gateway)
        await publish_names(gateway, device, 10_000)
        after = await figures(gateway)
        while after["iotsphere_accepted_total[]"] < before["iotsphere_accepted_total[]"] + 10_000:
            await asyncio.sleep(0.1)
            after = await figures(gateway)
    assert after.keys() == before.keys()
    assert not re.search("dev-c|telemetry/", " ".join(after))
