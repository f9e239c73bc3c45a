"""Forged tokens (C11) at every door of a running gateway: all refused, all alike, and nothing of them in the log."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import NamedTuple

import pytest
import pytest_asyncio
from paho.mqtt.enums import MQTTProtocolVersion
from websockets.asyncio.client import connect

from iotsphere.adapters.client.protocol import MAX_REQUEST_BYTES
from iotsphere.use_cases.ports.tokens import NOT_BELIEVED
from tests.client.house import Talker
from tests.support import forgery
from tests.support.gateway import Credential, Gateway
from tests.support.raw_http import open_raw
from tests.support.waiting import until

from .clients import V5, V311, Refused, browser, log_lines, mqtt

pytestmark = pytest.mark.asyncio(loop_scope="module")
HEADER_BYTES = 8_000
MESSAGE_BYTES = MAX_REQUEST_BYTES - 100
MQTT_BYTES = 65_000
BAD_USER_NAME_OR_PASSWORD = 0x86


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """A gateway whose token secret is known, and that trusts another issuer's RSA key."""
    folder = tmp_path_factory.mktemp("tokens")
    data = folder / "data"
    data.mkdir(mode=0o700)
    own = data / "secrets.json"
    own.touch(0o600)
    own.write_text(json.dumps({"token": forgery.SECRET.hex(), "cursor": "c" * 64, "device": "d" * 64}))
    keys = folder / "trusted.json"
    keys.write_text(
        json.dumps({kid: {"algorithm": how, "key": _text(key)} for kid, (how, key) in forgery.trusted().items()})
    )
    async with Gateway(data, settings={"log_level": "debug", "trusted_keys": keys}) as running:
        yield running


def _text(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode()


def now() -> int:
    return time.time_ns() // 1_000_000


class Answer(NamedTuple):
    """What a caller is told: the door's code, and the words."""

    code: int
    text: str


ADMITTED = Answer(0, "")


async def over_http(gateway: Gateway, token: str) -> Answer:
    return await request(gateway.http, "GET /api/v1/devices HTTP/1.1", token)


async def over_the_upgrade(gateway: Gateway, token: str) -> Answer:
    return await request(gateway.websocket, "GET / HTTP/1.1", token)


async def request(url: str, first: str, token: str | None) -> Answer:
    host, _, port = url.rpartition("//")[2].rpartition(":")
    async with open_raw(host, int(port)) as connection:
        lines = [first, "Host: door", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
        lines += ["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
        lines += [] if token is None else [f"Authorization: Bearer {token}"]
        await connection.send("\r\n".join([*lines, "", ""]).encode())
        status, headers, body = await connection.answer()
        if status in (101, 200):
            return ADMITTED
        if "json" not in headers.get("content-type", ""):
            return Answer(status, "")
        told = json.loads(body)
        return Answer(status, told.get("error", told)["message"])


async def over_the_first_message(gateway: Gateway, token: str) -> Answer:
    async with browser(gateway, token=None) as page:
        await page.say("auth", token=token)
        if len(token) > MESSAGE_BYTES:
            return Answer((await page.closed())[0] or 0, "")
        answer = await page.answer(1)
        if answer["type"] == "ok":
            return ADMITTED
        return Answer((await page.closed())[0] or 0, answer["message"])


async def over_mqtt(version: MQTTProtocolVersion, gateway: Gateway, token: str) -> Answer:
    # Each time another user name, since one that keeps failing has to wait.
    who = Credential("", f"user-{secrets.token_hex(4)}", token[:MQTT_BYTES])
    try:
        async with mqtt(gateway, who, version=version):
            return ADMITTED
    except Refused as refused:
        return Answer(refused.code, refused.text)


Door = Callable[[Gateway, str], Awaitable[Answer]]
DOORS: dict[str, tuple[Door, Answer]] = {
    "HTTP": (over_http, Answer(401, NOT_BELIEVED)),
    "WebSocket upgrade": (over_the_upgrade, Answer(401, NOT_BELIEVED)),
    "WebSocket message": (over_the_first_message, Answer(4401, NOT_BELIEVED)),
    "MQTT 5": (partial(over_mqtt, V5), Answer(BAD_USER_NAME_OR_PASSWORD, NOT_BELIEVED)),
    "MQTT 3.1.1": (partial(over_mqtt, V311), Answer(BAD_USER_NAME_OR_PASSWORD, "")),
}
EVERY_DOOR = pytest.mark.parametrize("door", DOORS)


def foreign(**more: object) -> str:
    """A token of the other issuer."""
    return forgery.foreign(now(), forgery.rsa(), {"typ": "JWT", "alg": "RS256", "kid": forgery.RSA_KID}, **more)


@EVERY_DOOR
async def test_case_c11_good_tokens_are_admitted(gateway: Gateway, door: str) -> None:
    enter, _ = DOORS[door]
    own = forgery.sign(forgery.own_header(), forgery.good_claims(now()))
    ahead = now() // 1000 + 4
    for token in (gateway.token, own, foreign(), foreign(iat=ahead, exp=ahead + 24 * 3600)):
        assert await enter(gateway, token) == ADMITTED


@EVERY_DOOR
async def test_case_c11_every_forged_token_is_refused_with_the_same_words(gateway: Gateway, door: str) -> None:
    enter, refusal = DOORS[door]
    in_a_header = door in ("HTTP", "WebSocket upgrade")
    for name, token in forgery.attacks(now()).items():
        if in_a_header and name == "white space":
            continue  # there it is the header's, not the token's (RFC 9110 section 11.4)
        answer = await enter(gateway, token)
        if in_a_header and len(token) > HEADER_BYTES:
            assert answer.code in (401, 431), name
        elif door == "WebSocket message" and len(token) > MESSAGE_BYTES:
            assert answer.code == 1009, name
        else:
            assert answer == refusal, name
    assert await enter(gateway, gateway.token) == ADMITTED


async def test_case_c11_no_address_in_a_token_is_ever_asked(gateway: Gateway) -> None:
    asked = []

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(writer.get_extra_info("peername"))
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
        claims = forgery.good_claims(now(), iss=url)
        for enter, refusal in DOORS.values():
            for header in ({"jku": url}, {"x5u": url}, {"kid": url}, {"jku": url, "kid": "unknown"}):
                assert await enter(gateway, forgery.sign(forgery.own_header(**header), claims)) == refusal
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())  # so that the trap is known to work
        writer.close()
        await writer.wait_closed()
        await until(lambda: asked, "the trap closes")
    assert len(asked) == 1


@pytest.mark.parametrize("name", ["token", "access_token", "authorization", "jwt", "password"])
async def test_case_c11_a_token_in_the_address_is_no_token(gateway: Gateway, name: str) -> None:
    query = f"{name}={gateway.token}"
    for url, path in ((gateway.http, "/api/v1/devices"), (gateway.websocket, "/")):
        answer = await request(url, f"GET {path}?{query} HTTP/1.1", None)
        if answer == ADMITTED:  # the upgrade alone needs no token; what follows does
            async with connect(f"{gateway.websocket}/?{query}", proxy=None) as connection:
                page = Talker(connection)
                assert (await page.ask("ping"))["code"] == "unauthenticated"
                assert (await page.closed())[0] == 4401
        else:
            assert answer == Answer(401, NOT_BELIEVED)


async def test_case_c11_tokens_are_never_logged(gateway: Gateway) -> None:
    good, bad = foreign(sub="user:secret-agent"), list(forgery.C11.values())
    for enter, _ in DOORS.values():
        for token in (good, *bad):
            await enter(gateway, token)
    logged = json.dumps(log_lines(gateway))
    assert "connect_refused" in logged
    for token in (gateway.token, good, *bad):
        for segment in token.split("."):
            assert len(segment) < 30 or segment[:30] not in logged
