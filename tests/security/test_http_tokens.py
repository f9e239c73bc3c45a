"""Forged, expired and revoked tokens through the HTTP door (rows J1 to J6, case C11)."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.use_cases.ports.tokens import NOT_BELIEVED
from tests.support import forgery
from tests.support.http_door import Door
from tests.support.raw_http import open_raw

READ = "/api/v1/messages?filter=iotsphere/%23"
ATTACKS = forgery.attacks(ManualClock().now())
REFUSAL = {"error": {"code": "unauthenticated", "message": NOT_BELIEVED, "retry": False}}


async def ask(door: Door, *headers: bytes, path: str = READ) -> tuple[int, dict[str, str], bytes]:
    async with open_raw(door.host, door.port) as connection:
        lines = [b"GET " + path.encode() + b" HTTP/1.1", b"Host: door", *headers]
        await connection.send(b"\r\n".join(lines) + b"\r\n\r\n")
        return await connection.answer()


async def test_the_token_that_all_attacks_start_from_is_accepted(door: Door) -> None:
    good = forgery.sign(forgery.own_header(), forgery.good_claims(door.rooms.clock.now()))
    assert (await ask(door, b"Authorization: Bearer " + good.encode()))[0] == 200
    assert (await ask(door, b"authorization: bEARER " + good.encode()))[0] == 200


async def test_j1_to_j5_and_c11_each_attack_gets_the_same_answer(
    door: Door, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    for name, attack in ATTACKS.items():
        status, headers, body = await ask(door, b"Authorization: Bearer " + attack.encode())
        if len(attack) > 15_000:
            assert status == 431, name
            continue
        assert (status, json.loads(body)) == (401, REFUSAL), name
        assert headers["www-authenticate"] == 'Bearer realm="iotsphere"', name
    shown = caplog.text + "".join(capfd.readouterr())
    for attack in ATTACKS.values():
        assert len(attack) < 20 or attack not in shown, "tokens are never logged"


async def test_j1_no_address_in_a_token_is_ever_asked(door: Door) -> None:
    asked = []

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(writer.get_extra_info("peername"))
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
        claims = forgery.good_claims(door.rooms.clock.now(), iss=url)
        for header in ({"jku": url}, {"x5u": url}, {"kid": url}, {"jku": url, "kid": "unknown"}):
            token = forgery.sign(forgery.own_header(**header), claims)
            assert (await ask(door, b"Authorization: Bearer " + token.encode()))[0] == 401
        assert (await ask(door, path="/healthz"))[0] == 200
    assert asked == []


@pytest.mark.parametrize(
    "header",
    [b"", b"Authorization: ", b"Authorization: Bearer", b"Authorization: Bearer ", b"Authorization: Basic %b",
     b"Authorization: %b", b"Authorization: Bearer,%b", b"Authorization: Bearer %b\r\nAuthorization: Bearer %b",
     b"Authorization: Bearer %b %b", b"X-Authorization: Bearer %b", b"Cookie: token=%b", b"Proxy-Authorization: Bearer %b",
     b"Sec-WebSocket-Protocol: %b", b"Authorization: Bearer \xff\xfe"],
)  # fmt: skip
async def test_a_token_counts_only_once_and_only_in_its_header(door: Door, header: bytes) -> None:
    filled = header.replace(b"%b", door.token().encode())
    lines = [filled] if filled else []
    status, _, body = await ask(door, *lines)
    assert (status, json.loads(body)) == (401, REFUSAL)


@pytest.mark.parametrize("name", ["token", "access_token", "authorization", "jwt"])
async def test_c11_a_token_in_the_url_is_never_accepted(door: Door, name: str) -> None:
    status, _, body = await ask(door, path=f"{READ}&{name}={door.token()}")
    assert (status, json.loads(body)) == (401, REFUSAL)


async def test_j6_an_expired_or_revoked_token_ends_on_an_open_connection(door: Door) -> None:
    token = door.token()
    async with open_raw(door.host, door.port) as connection:

        async def status() -> int:
            head = f"GET {READ} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
            await connection.send(head.encode())
            return (await connection.answer())[0]

        assert await status() == 200
        door.rooms.clock.advance(24 * 3_600_000 - 1)
        assert await status() == 200
        door.rooms.clock.advance(1)
        assert await status() == 401
        token = door.token()
        assert await status() == 200
        await door.rooms.tokens.revoke_subject(door.rooms.operator, "service:tests")
        assert await status() == 401
