"""Abuse of a running gateway: bombs, bad frames and slow sockets (C07, C09, C10), while others go on being served."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.client.house import values
from tests.client.raw import BINARY, CLOSE, CONTINUATION, PING, TEXT, RawClient
from tests.support.gateway import Credential, Gateway

from .clients import browser, letters, log_lines, mqtt

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {"websocket_compression": "true", "log_level": "info"}
MIB = 1024 * 1024
TOPIC = "iotsphere/devices/dev-c/telemetry/t"
DEFLATE = "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=12; client_max_window_bits=12"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def device(gateway: Gateway) -> Credential:
    (credential,) = await gateway.add_devices(["dev-c"])
    return credential


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def bystander(gateway: Gateway) -> AsyncIterator[None]:
    """A browser that is served during and after each attack; and the gateway logs no error."""
    async with browser(gateway) as page:
        await page.subscribe("iotsphere/system/status")
        yield
        await page.publish({"value": 1}, "iotsphere/system/status")
        assert values(await page.messages(1)) == [1]
    assert [line for line in log_lines(gateway) if line["level"] not in ("debug", "info")] == []


async def websocket(gateway: Gateway, *headers: str) -> RawClient:
    """A WebSocket after its handshake, with the operator's token."""
    host, port = gateway.websocket.rpartition("//")[2].split(":")
    client = await RawClient.open(host, int(port))
    await client.upgrade(gateway.token, *headers)
    return client


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -12)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\x00\x00\xff\xff")


async def test_case_c07_a_compressed_bomb_costs_no_memory(gateway: Gateway) -> None:
    bombs = [deflated(bytes(8 * MIB)), deflated(bytes(64 * MIB)), deflated(b'{"type":"ping","ref":"' + b"x" * 8 * MIB)]
    before = gateway.resident_bytes
    for _ in range(4):
        for bomb in bombs:
            client = await websocket(gateway, DEFLATE)
            await client.send_frame(BINARY, bomb, rsv=4)
            assert await client.close_code() == 1009
            await client.close()
    assert gateway.resident_bytes - before < 8 * MIB


async def test_case_c07_bombs_in_other_wrappings(gateway: Gateway, device: Credential) -> None:
    bomb = gzip.compress(bytes(8 * MIB))
    before = gateway.resident_bytes
    async with gateway.api() as api:
        for encoding in ("gzip", "deflate", "br", "zstd"):
            headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
            answer = await api.post("/api/v1/messages", content=bomb, headers=headers)
            assert answer.status_code == 415
    async with mqtt(gateway, device) as client:
        assert await client.publish(TOPIC, bomb) == 0x99
        assert await client.publish(TOPIC, b"1") == 0
    (letter,) = await letters(gateway, device="dev-c", limit="1")
    assert (letter.reason, letter.facts["size"]) == ("payload_not_utf8", len(bomb))
    assert gateway.resident_bytes - before < 8 * MIB


BAD_FRAMES: dict[str, tuple[int, bytes, dict[str, Any], int]] = {
    "not UTF-8": (TEXT, b"\xff\xfe", {}, 1007),
    "unmasked": (TEXT, b'{"type":"ping","ref":1}', {"masked": False}, 1002),
    "RSV1 without the extension": (TEXT, b'{"type":"ping","ref":1}', {"rsv": 4}, 1002),
    "opcode 3": (0x3, b"", {}, 1002),
    "fragmented ping": (PING, b"", {"fin": False}, 1002),
    "ping of 126 bytes": (PING, b"x" * 126, {}, 1002),
    "orphan continuation": (CONTINUATION, b"x", {}, 1002),
    **{
        f"close {code}": (CLOSE, code.to_bytes(2, "big"), {}, 1002)
        for code in (999, 1004, 1005, 1006, 1015, 2999, 5000)
    },
    "close of one byte": (CLOSE, b"x", {}, 1002),
    "length 2^63-1": (TEXT, b"", {"declared": 2**63 - 1}, 1009),
    "close 3000": (CLOSE, (3_000).to_bytes(2, "big"), {}, 3_000),
    "close 4999": (CLOSE, (4_999).to_bytes(2, "big"), {}, 4_999),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
async def test_case_c10_a_bad_frame_ends_its_own_connection_with_its_code(gateway: Gateway, name: str) -> None:
    opcode, payload, options, code = BAD_FRAMES[name]
    client = await websocket(gateway)
    await client.send_frame(opcode, payload, **options)
    assert await client.close_code() == code
    await client.close()


async def test_case_c10_empty_fragments_without_end_cost_little(gateway: Gateway) -> None:
    before = gateway.resident_bytes
    client = await websocket(gateway)
    await client.send_frame(TEXT, b"", fin=False)
    code = asyncio.ensure_future(client.close_code())
    for _ in range(10_000):
        if code.done():
            break
        await client.send_frame(CONTINUATION, b"", fin=False)
        await asyncio.sleep(0)
    assert await code == 1009
    await client.close()
    assert gateway.resident_bytes - before < 5 * MIB


async def test_case_c10_text_that_is_split_inside_a_character_passes(gateway: Gateway) -> None:
    client = await websocket(gateway)
    await client.send_frame(TEXT, b'{"type":"ping","ref":"\xc3', fin=False)
    await client.send_frame(CONTINUATION, b'\xa9"}')
    opcode, answer = await client.read_frame()
    assert opcode == TEXT
    assert answer.startswith('{"type":"ok","ref":"é"'.encode())
    await client.close()


Speak = Callable[[RawClient], Awaitable[None]]


async def silence(_: RawClient) -> None:
    """Say nothing more."""


async def dribble(client: RawClient) -> None:
    """A header line every half second, for ever."""
    await client.send_lines("GET / HTTP/1.1", "Host: door")
    for number in range(1_000):
        if client.reader.at_eof() or client.reader.exception() is not None or client.writer.is_closing():
            return
        await client.send_lines(f"X-{number}: 1")
        await asyncio.sleep(0.5)


async def half_a_connect(client: RawClient) -> None:
    """The beginning of an MQTT CONNECT, and a byte of it every half second."""
    await client.send_bytes(b"\x10\x7f")
    for byte in b"\x00\x04MQTT\x04\x02\x00\x3c" + b"\x00" * 100:
        if client.reader.at_eof() or client.reader.exception() is not None or client.writer.is_closing():
            return
        await client.send_bytes(bytes((byte,)))
        await asyncio.sleep(0.5)


async def test_case_c09_hundreds_of_slow_sockets_at_every_door_keep_nobody_out(
    gateway: Gateway, device: Credential
) -> None:
    host = "127.0.0.1"
    web, http = (int(url.rpartition(":")[2]) for url in (gateway.websocket, gateway.http))
    mqtt_port = gateway.mqtt[1]
    plan: list[tuple[int, int, Speak]] = [
        (150, web, dribble), (50, web, silence), (60, http, dribble), (20, http, silence), (60, mqtt_port, half_a_connect),
        (20, mqtt_port, silence),
    ]  # fmt: skip

    async def attack(port: int, speak: Speak) -> None:
        client = await RawClient.open(host, port)
        speaking = asyncio.ensure_future(speak(client))
        try:
            await client.ended()
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)
            await client.close()

    async def stay_silent(client: RawClient) -> int | None:
        try:
            return await client.close_code()
        finally:
            await client.close()

    upgraded: list[RawClient] = []
    for _ in range(90):
        upgraded.append(await RawClient.open(host, web))
        await upgraded[-1].upgrade(None)
    attacks = [asyncio.ensure_future(attack(port, speak)) for count, port, speak in plan for _ in range(count)]
    silent = [asyncio.ensure_future(stay_silent(client)) for client in upgraded]

    def under_attack() -> bool:
        return not all(task.done() for task in (*attacks, *silent))

    visits = served = 0
    try:
        while under_attack():
            await be_served(gateway, device, visits)
            visits += 1
            served += under_attack()
        assert all(task.exception() is None for task in attacks)
        assert {task.result() for task in silent} == {4401}
        assert served >= 1, "people came while the attack went on"
    finally:
        for task in (*attacks, *silent):
            task.cancel()
        await asyncio.gather(*attacks, *silent, return_exceptions=True)


async def be_served(gateway: Gateway, device: Credential, number: int) -> None:
    """Come anew at every door: a browser listens, a device publishes, a service asks."""
    async with asyncio.timeout(60), browser(gateway) as page, mqtt(gateway, device) as client, gateway.api() as api:
        await page.subscribe(TOPIC)
        assert await client.publish(TOPIC, b"%d" % number) == 0
        assert values(await page.messages(1)) == [number]
        assert (await api.get("/api/v1/latest", params={"filter": TOPIC})).status_code == 200


async def test_an_id_that_others_use_as_well_costs_nobody_a_message(gateway: Gateway) -> None:
    shared = "6f9c1f63-6f43-4b0e-9f70-0a5c6f1f2b11"
    topics = [
        f"iotsphere/devices/namesake-{number}/telemetry/t" for number in range(9)
    ]  # more than there are partitions
    async with gateway.api() as api:
        for _ in range(2):  # the second time, each is a repetition
            for number, topic in enumerate(topics):
                message = {"metadata": {"messageId": shared, "topic": topic}, "payload": {"value": number}}
                answer = await api.post("/api/v1/messages", json={"topic": topic, "payload": message})
                assert answer.status_code == 200, answer.text
        found = []
        for topic in topics:
            page = (await api.get("/api/v1/messages", params={"filter": topic})).json()
            found.append([message["payload"]["value"] for message in page["messages"]])
    assert found == [[number] for number in range(9)]
