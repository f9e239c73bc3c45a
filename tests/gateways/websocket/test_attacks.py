"""Attacks on the WebSocket door: each ends in the refusal that it should, and nobody else notices."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator

import pytest
from websockets.exceptions import InvalidMessage, InvalidStatus

from iotsphere.adapters.client.protocol import MAX_REQUEST_BYTES
from iotsphere.entities.channel import ChannelSpec
from iotsphere.entities.topic import CHANNELS
from iotsphere.gateways.websocket import WebSocketLimits
from iotsphere.use_cases.access.rate_limit import Rate
from iotsphere.use_cases.access.tokens import operator
from iotsphere.use_cases.ports.tokens import NOT_BELIEVED
from tests.client.house import TOPIC, Door, House, open_door, open_house, values
from tests.client.raw import BINARY, CLOSE, CONTINUATION, PING, TEXT, RawClient
from tests.support import forgery
from tests.support.waiting import until
from tests.use_cases.stage import DOMAIN

ATTACKS = forgery.attacks(0)
DEVICE = f"{DOMAIN}/devices/d1"
PING_REQUEST = b'{"type":"ping","ref":1}'


@pytest.fixture(autouse=True)
async def bystander(door: Door, caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Somebody who is served all the while; and nothing is logged as an error."""
    caplog.set_level(logging.INFO)
    client = await door.connect()
    await client.subscribe(f"{DOMAIN}/system/status")
    yield
    await client.publish({"value": 1}, f"{DOMAIN}/system/status")
    assert values(await client.messages(1)) == [1]
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []


# Tokens (J1 to J5, case C11)


@pytest.mark.parametrize("name", ATTACKS)
async def test_forged_tokens_are_refused_alike_in_both_places(door: Door, house: House, name: str) -> None:
    token = forgery.attacks(house.clock.now())[name]
    client = await door.connect(None)
    if len(token) > MAX_REQUEST_BYTES:
        await client.say("auth", token=token)
        assert (await client.closed())[0] == 1009
        return
    answer = await client.ask("auth", token=token)
    assert answer == {"type": "error", "ref": 1, "code": "unauthenticated", "retry": False, "message": NOT_BELIEVED}
    assert (await client.closed())[0] == 4401
    if len(token) < 8_000 and token.isprintable() and token == token.strip():
        with pytest.raises(InvalidStatus) as refused:
            await door.connect(token)
        response = refused.value.response
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert NOT_BELIEVED.encode() in (response.body or b"")


async def test_a_token_of_a_megabyte_never_reaches_the_parser(door: Door) -> None:
    with pytest.raises((InvalidStatus, InvalidMessage, ConnectionError)):
        await door.connect("x" * 1_000_000)
    client = await door.connect(None)
    await client.say("auth", token="x" * 1_000_000)
    assert (await client.closed())[0] == 1009


@pytest.mark.parametrize("header", ["Basic YTpi", "Bearer", "bearer ", "x"])
async def test_other_authorization_is_refused(door: Door, header: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await door.connect(None, additional_headers={"Authorization": header})
    assert refused.value.response.status_code == 401


async def test_two_authorization_headers_are_refused(door: Door, house: House) -> None:
    client = await door.socket()
    token = f"Authorization: Bearer {house.token()}"
    await client.send_lines(*client.handshake(), token, token, "")
    assert b" 401 " in (await client.ended()).split(b"\r\n")[0]


async def test_a_token_in_the_address_is_no_token(door: Door, house: House) -> None:
    client = await door.connect(None, query=f"?token={house.token()}&access_token={house.token()}")
    assert (await client.ask("ping"))["code"] == "unauthenticated"


# Filters and domains (A1, A3, A4)


@pytest.mark.parametrize(
    "wanted",
    [
        "#",
        "+/devices/#",
        "$SYS/#",
        "$share/g/#",
        f"{DOMAIN}/#",
        f"{DOMAIN}/devices/+/telemetry",
        f"{DOMAIN}/devices/d2/telemetry",
        f"{DOMAIN}/devices/d1x/#",
        "other/devices/d1/#",
        f"{DOMAIN}/devices/d1/#/x",
        f"{DOMAIN}/devices/d1\x00/#",
        "",
        "x" * 70_000,
    ],
)
@pytest.mark.parametrize("group", [None, "g"])
async def test_hostile_filters_are_refused_and_nothing_is_delivered(
    door: Door, house: House, wanted: str, group: str | None
) -> None:
    client = await door.connect(house.token("device:d1", ()))
    answer = await client.ask("subscribe", filters=[f"{DEVICE}/telemetry", wanted], group=group)
    assert answer["code"] in ("filter_invalid", "forbidden")
    assert "d2" not in answer["message"] or "d2" in wanted
    other = await door.connect()
    await other.publish({"value": 1}, f"{DOMAIN}/devices/d2/telemetry")
    await other.publish({"value": 1}, f"{DEVICE}/telemetry")
    assert (await client.ask("ping"))["type"] == "ok"
    assert client.pushes == []


@pytest.mark.parametrize(
    "topic",
    [
        f"{DOMAIN}/devices/d2/telemetry",
        f"{DEVICE}/shadow/desired",
        f"{DOMAIN}/system/alerts",
        f"{DEVICE}/commands/request",
        "other/devices/d1/telemetry",
    ],
)
async def test_foreign_topics_are_refused_and_audited(door: Door, house: House, topic: str) -> None:
    client = await door.connect(house.token("device:d1", ()))
    answer = await client.ask("publish", topic=topic, payload={"value": 1}, retain=True)
    assert answer["code"] == "forbidden"
    (letter,) = house.entries(lambda text: text == f"{DOMAIN}/system/dead-letters")
    assert b'"reason":"acl_denied"' in letter.record.body
    assert house.entries(lambda text: text == topic) == []


async def test_another_domain_is_never_seen(door: Door, house: House) -> None:
    await house.log.ensure("other", dict.fromkeys(CHANNELS, ChannelSpec(partitions=2)))
    await house.feed.domains_changed()
    canary = "c4n4ry"
    await house.log.append([house.record(TOPIC.replace(DOMAIN, "other", 1), canary.encode())])
    client = await door.connect()
    await client.subscribe(**{"from": "earliest"})
    foreign = {"metadata": {"topic": "other/devices/d1/telemetry"}, "payload": {"domain": "other"}}
    for request in (
        {"kind": "subscribe", "filters": ["other/#"], "from": "earliest"},
        {"kind": "subscribe", "filters": [TOPIC, "other/#"], "from": "latest"},
        {"kind": "publish", "topic": "other/devices/d1/telemetry", "payload": 1},
        {"kind": "publish", "topic": TOPIC, "message": foreign},
    ):
        assert (await client.ask(**request))["type"] == "error"
    await client.publish({"domain": "other"})
    seen = [await client.push("messages")]
    while b"domain" not in str(seen[-1]["messages"][-1]["payload"]).encode():
        seen.append(await client.push("messages"))
    assert canary not in str(seen)
    assert len(house.log.shelf(house.log.partitions("other", "telemetry")[0]).entries) <= 1


async def test_a_cursor_of_somebody_else_is_refused(door: Door, house: House) -> None:
    mine, theirs = await door.connect(), await door.connect(house.token("user:eve"))
    cursor = (await mine.subscribe())["cursor"]
    answer = await theirs.ask("subscribe", filters=[f"{DOMAIN}/#"], **{"from": cursor})
    assert answer["code"] == "cursor_invalid"


# Frames (C10, D1 to D3)


@pytest.mark.parametrize(
    ("opcode", "payload", "options", "code"),
    [
        (TEXT, b"\xff\xfe", {}, 1007),
        (TEXT, PING_REQUEST, {"masked": False}, 1002),
        (TEXT, PING_REQUEST, {"rsv": 4}, 1002),
        (0x3, b"", {}, 1002),
        (PING, b"", {"fin": False}, 1002),
        (PING, b"x" * 126, {}, 1002),
        (CONTINUATION, b"x", {}, 1002),
        *((CLOSE, number.to_bytes(2, "big"), {}, 1002) for number in (999, 1004, 1005, 1006, 1015, 2999, 5000)),
        (CLOSE, b"x", {}, 1002),
        (TEXT, b"", {"declared": 2**63 - 1}, 1009),
        (BINARY, b"", {"declared": 2**62}, 1009),
        (TEXT, b"", {"declared": MAX_REQUEST_BYTES + 1}, 1009),
        (CLOSE, (3_999).to_bytes(2, "big"), {}, 3_999),
    ],
)
async def test_case_c10_each_bad_frame_ends_in_its_close_code(
    door: Door, opcode: int, payload: bytes, options: dict[str, int], code: int
) -> None:
    client = await door.raw()
    await client.send_frame(opcode, payload, **options)  # type: ignore[arg-type]  # bool options are ints here
    assert await client.close_code() == code
    await client.close()
    await until(lambda: door.gateway.connections == 1, "only the bystander is left")


async def test_case_c10_text_may_be_split_inside_a_character(door: Door) -> None:
    client = await door.raw()
    head, tail = b'{"type":"ping","ref":"\xc3', b'\xa9"}'
    await client.send_frame(TEXT, head, fin=False)
    await client.send_frame(CONTINUATION, tail)
    opcode, answer = await client.read_frame()
    assert (opcode, answer[:28]) == (TEXT, '{"type":"ok","ref":"é",'.encode()[:28] + answer[24:28])


async def test_case_c10_endless_fragments_end(door: Door) -> None:
    client = await door.raw()
    await client.send_frame(TEXT, b"", fin=False)
    code = asyncio.ensure_future(client.close_code())
    for _ in range(10_000):
        if code.done():
            break
        await client.send_frame(CONTINUATION, b"", fin=False)
        await asyncio.sleep(0)
    assert await code == 1009


async def test_fragments_of_an_endless_message_end(door: Door) -> None:
    client = await door.raw()
    await client.send_frame(TEXT, b"x" * 60_000, fin=False)
    for _ in range(4):
        await client.send_frame(CONTINUATION, b"x" * 60_000, fin=False)
    assert await client.close_code() == 1009


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -12)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\x00\x00\xff\xff")


@pytest.mark.parametrize("over", [0, 1, 2, 3, 8 * 1024 * 1024 - MAX_REQUEST_BYTES])
async def test_case_c07_the_limit_holds_for_the_inflated_size(house: House, over: int) -> None:
    async with open_door(house, WebSocketLimits(compression=True)) as door:
        offer = "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=12; client_max_window_bits=12"
        client = await door.raw(house.token(), offer)
        request = PING_REQUEST.ljust(MAX_REQUEST_BYTES + over)
        await client.send_frame(BINARY, deflated(request), rsv=4)
        if over:
            assert await client.close_code() == 1009
        else:
            opcode, _ = await client.read_frame()
            assert opcode == TEXT


# Slow handshakes and idle sockets (C09, D4)


async def test_case_c09_dribblers_and_silent_sockets_keep_nobody_out(house: House) -> None:
    limits = WebSocketLimits(handshake=5.0, authentication=5.0, unauthenticated_per_address=20)
    async with open_door(house, limits) as door:
        dribblers = [await door.socket() for _ in range(40)]
        silent = [await door.raw(None) for _ in range(40)]

        async def dribble(client: RawClient) -> bytes:
            await client.send_lines("GET / HTTP/1.1")
            for number in range(10_000):
                if client.reader.at_eof() or client.reader.exception() is not None:
                    break
                await client.send_lines(f"X-{number}: {number}")
                await asyncio.sleep(0.02)
            return await client.ended()

        dribbling = [asyncio.ensure_future(dribble(client)) for client in dribblers]
        codes = [asyncio.ensure_future(client.close_code()) for client in silent]
        served = 0
        while not all(each.done() for each in (*dribbling, *codes)):
            honest = await asyncio.wait_for(door.connect(), 60)
            assert (await honest.publish({"value": served}))["type"] == "ok"
            await honest.connection.close()
            served += 1
        assert all(b" 101 " not in task.result() for task in dribbling)
        assert {task.result() for task in codes} <= {4401, None}
        assert served > 0
        assert door.gateway.counts["evicted_unauthenticated"] >= 0


async def test_the_oldest_unknown_socket_makes_room_for_the_newest(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iotsphere.gateways.websocket.admission.PATIENCE_S", 0.0)
    async with open_door(house, WebSocketLimits(unauthenticated_per_address=3, authentication=60.0)) as door:
        known = await door.connect()
        unknown = [await door.connect(None) for _ in range(5)]
        for client in unknown[:2]:
            assert (await client.closed())[0] == 4401
        for client in unknown[2:]:
            assert (await client.ask("auth", token=house.token()))["type"] == "ok"
        assert (await known.ask("ping"))["type"] == "ok"
        assert door.gateway.counts["evicted_unauthenticated"] == 2


@pytest.mark.parametrize("lines", [["X-Long: " + "x" * 9_000], [f"X-{number}: 1" for number in range(5_000)]])
async def test_too_much_of_a_header_is_refused(door: Door, lines: list[str]) -> None:
    client = await door.socket()
    await client.send_lines(*client.handshake(), *lines, "")
    answer = await client.ended()
    assert answer == b"" or b" 101 " not in answer.split(b"\r\n")[0]


@pytest.mark.parametrize(
    "data", [b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"]
)
async def test_what_is_no_websocket_is_refused(house: House, data: bytes) -> None:
    async with open_door(house, WebSocketLimits(handshake=0.2)) as door:
        client = await door.socket()
        await client.send_bytes(data)
        assert b" 101 " not in await client.ended()


# Too many and too much (D6, D7)


async def test_one_too_many_is_refused_and_the_others_stay(house: House) -> None:
    async with open_door(house, WebSocketLimits(connections=5)) as door:
        clients = [await door.connect() for _ in range(5)]
        for _ in range(3):
            with pytest.raises(InvalidStatus) as refused:
                await door.connect()
            assert refused.value.response.status_code == 503
            assert b"too_many_connections" in (refused.value.response.body or b"")
        for client in clients:
            assert (await client.ask("ping"))["type"] == "ok"
        await clients[0].connection.close()
        await until(lambda: door.gateway.connections == 4, "one has left")
        assert (await (await door.connect()).ask("ping"))["type"] == "ok"
        assert door.gateway.counts["refused_too_many_connections"] == 3


async def test_one_address_gets_its_share_only(house: House) -> None:
    async with open_door(house, WebSocketLimits(per_address=3, limit_loopback=True)) as door:
        clients = [await door.connect() for _ in range(3)]
        with pytest.raises(InvalidStatus) as refused:
            await door.connect()
        assert b"your address" in (refused.value.response.body or b"")
        assert all([(await client.ask("ping"))["type"] == "ok" for client in clients])
    async with open_door(house, WebSocketLimits(per_address=3)) as door:
        assert len([await door.connect() for _ in range(5)]) == 5


async def test_a_flood_is_refused_then_ended_and_others_are_served() -> None:
    async with open_house(rate=Rate(messages=50, burst=1)) as house, open_door(house) as door:
        flooder, other = await door.connect(), await door.connect(house.token("user:bob"))
        body = b'{"type":"publish","ref":%d,"topic":"' + TOPIC.encode() + b'","payload":1}'

        async def flood() -> None:
            for number in range(100_000):
                await flooder.connection.send(body % number, text=True)
                if number % 100 == 0:
                    await asyncio.sleep(0)

        flooding = asyncio.ensure_future(flood())
        first = await flooder.push_or_answer("error")
        assert (first["code"], first["retry"]) == ("rate_limited", True)
        assert 0 < first["retryAfter"] < 5_000
        # It reads meanwhile: who does not take the close frame within its time is cut off, and learns no code.
        ended = asyncio.ensure_future(flooder.closed())
        for value in range(20):
            assert (await other.publish({"value": value}))["type"] == "ok"
        assert (await ended)[0] == 4429
        with pytest.raises(Exception):  # noqa: B017, PT011  whichever way the socket told it
            await flooding
        assert len(house.entries()) < 1_000


async def test_case_c15_control_characters_stay_data(
    door: Door, house: House, caplog: pytest.LogCaptureFixture
) -> None:
    payload = {"value": 1, "unit": "C\r\n2024-01-01 CRITICAL fake line", "note": "\x1b[2J"}
    client = await door.connect(house.token("device:dev-c", ()))
    await client.subscribe(f"{DOMAIN}/devices/dev-c/#")
    await client.publish(payload, f"{DOMAIN}/devices/dev-c/telemetry/t")
    (message,) = await client.messages(1)
    assert message["payload"] == payload
    for topic in (f"{DOMAIN}/devices/dev-c\r\n/telemetry", f"{DOMAIN}/devices/dev-c/telemetry/\x1b[2J"):
        answer = await client.ask("publish", topic=topic, payload=1)
        assert answer["code"] == "topic_invalid"
        assert answer["message"].isprintable()
    answer = await client.ask("subscribe", filters=["x\r\ny"], **{"from": "\x1b[2J"})
    assert answer["message"].isprintable()
    bad = await door.socket()
    await bad.send_bytes(b"GET /\x1b[2J HTTP/1.1\r\nX: \x1b[2J\r\n\r\n")
    await bad.ended()
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "\x1b" not in text
    assert "CRITICAL" not in text


async def test_case_c15_counters_do_not_grow_with_what_clients_say(door: Door) -> None:
    client = await door.connect()
    await client.publish(1)
    before = set(door.gateway.counts)
    for number in range(300):
        await client.publish(number, f"{DOMAIN}/devices/dev-c/telemetry/m{number:04}")
    assert set(door.gateway.counts) == before
    assert operator(DOMAIN).identity not in str(door.gateway.counts)
