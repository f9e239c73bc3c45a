"""The HTTP door under abuse: large, compressed, endless and slow requests, and too many of them (rows D1 to D7, C07)."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache
from typing import Any

import httpx
import pytest

from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.message import Record
from iotsphere.gateways.http import HttpLimits
from iotsphere.use_cases.ports.message_log import Appended
from tests.support.http_door import Door, open_door
from tests.support.raw_http import RawConnection, open_raw

PUBLISH = "/api/v1/messages"
JSON = {"content-type": "application/json"}
MIB = 1024 * 1024


def head(door: Door, *lines: str, method: str = "POST", path: str = PUBLISH) -> bytes:
    """The head of a request by an operator."""
    given = [f"{method} {path} HTTP/1.1", "Host: door", f"Authorization: Bearer {door.token()}", *lines]
    return ("\r\n".join(given) + "\r\n\r\n").encode()


def connect(door: Door) -> AbstractAsyncContextManager[RawConnection]:
    return open_raw(door.host, door.port)


async def until(condition: object, what: str) -> None:
    """Wait until the condition holds; fail after a minute."""
    deadline = asyncio.get_running_loop().time() + 60
    while not condition():  # type: ignore[operator]  # a callable without arguments
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.01)


@cache
def bomb() -> bytes:
    """64 MiB of spaces, compressed a thousandfold."""
    return gzip.compress(b" " * (64 * MIB), 6)


# -- size --------------------------------------------------------------------------------------------------------------


async def test_a_declared_length_over_the_limit_is_refused_before_a_byte_is_read(door: Door) -> None:
    async with connect(door) as connection:
        await connection.send(head(door, "Content-Type: application/json", f"Content-Length: {2**62}"))
        assert await connection.error() == (413, "body_too_large")
        assert await connection.ends()


async def test_a_body_at_the_limit_passes_and_one_byte_more_does_not(api: httpx.AsyncClient) -> None:
    space = b" " * (MIB - len(b'{"topic":"iotsphere/system/status","payload":1}'))
    whole = b'{"topic":"iotsphere/system/status","payload":1}' + space
    assert len(whole) == MIB
    assert (await api.post(PUBLISH, content=whole, headers=JSON)).status_code == 200
    answer = await api.post(PUBLISH, content=whole + b" ", headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


async def test_a_chunked_body_is_measured_while_it_comes(door: Door) -> None:
    async with connect(door) as connection:
        await connection.send(head(door, "Content-Type: application/json", "Transfer-Encoding: chunked"))
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        sent = 0
        try:
            for _ in range(2_000):  # 125 MiB, if nobody stops it
                await connection.send(chunk)
                sent += 0x10000
        except ConnectionError:
            assert sent < 64 * MIB
        else:
            raise AssertionError("the door took everything")
        assert await connection.ends() in (True, False)


async def test_a_chunked_body_over_the_limit_is_answered_with_413(api: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(17):
            yield b" " * 0x10000

    answer = await api.post(PUBLISH, content=chunks(), headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity", "x-gzip"])
async def test_c07_compressed_bodies_are_refused_so_none_can_grow(api: httpx.AsyncClient, encoding: str) -> None:
    answer = await api.post(PUBLISH, content=bomb(), headers={**JSON, "content-encoding": encoding})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "content_encoding_refused")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_w2_what_a_foreign_page_can_send_without_asking_is_refused(api: httpx.AsyncClient, kind: str) -> None:
    answer = await api.post("/api/v1/devices", content=b'{"device_id":"d1"}', headers={"content-type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "content_type_refused")
    assert "access-control-allow-origin" not in answer.headers


async def test_a_caller_without_a_credential_cannot_make_the_door_read_a_body(door: Door) -> None:
    async with connect(door) as connection:
        await connection.send(
            b"POST /api/v1/messages HTTP/1.1\r\nHost: door\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
        )
        assert await connection.error() == (401, "unauthenticated")
        assert await connection.ends()


async def test_d4_many_or_long_headers_are_refused(door: Door) -> None:
    many = b"".join(b"h%d: x\r\n" % n for n in range(5_000))
    long = b"h: " + b"x" * 20_000 + b"\r\n"
    for extra in (many, long):
        async with connect(door) as connection:
            await connection.send(b"GET /healthz HTTP/1.1\r\nHost: door\r\n" + extra + b"\r\n")
            assert await connection.error() == (431, "headers_too_large")
            assert await connection.ends()
    async with connect(door) as connection:
        await connection.send(
            b"GET /healthz HTTP/1.1\r\nHost: door\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(101)) + b"\r\n"
        )
        assert await connection.error() == (431, "headers_too_large")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nBad Header\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
    ],
)  # fmt: skip
async def test_what_is_not_http_is_answered_once_and_closed(door: Door, garbage: bytes) -> None:
    async with connect(door) as connection:
        await connection.send(garbage + b"\r\n\r\n")
        status, code = await connection.error()
        assert (status, code) in ((400, "bad_request"), (501, "bad_request"))
        assert await connection.ends()
    async with door.client() as api:
        assert (await api.get("/healthz")).status_code == 200


async def test_both_lengths_do_not_smuggle_a_second_request(door: Door) -> None:
    async with connect(door) as connection:
        second = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        await connection.send(
            head(
                door,
                "Content-Type: application/json",
                f"Content-Length: {len(second) + 5}",
                "Transfer-Encoding: chunked",
            )
            + b"0\r\n\r\n"
            + second
        )
        assert await connection.error() == (400, "bad_request")
        assert await connection.ends()


# -- slowness ----------------------------------------------------------------------------------------------------------


async def test_d4_a_head_that_dribbles_in_is_cut_and_others_are_served() -> None:
    async with open_door() as door, AsyncExitStack() as stack:
        api = await stack.enter_async_context(door.client(""))
        assert (await api.get("/healthz")).status_code == 200
        door.gateway.admission.limits = HttpLimits(request=0.4)  # from now on: who is connected sends in one go
        slow = [await stack.enter_async_context(connect(door)) for _ in range(50)]
        for connection in slow:
            await connection.send(b"GET /healthz HTTP/1.1\r\n")

        async def dribble(connection: RawConnection) -> tuple[int, str]:
            async def feed() -> None:
                while True:
                    await connection.send(b"x: y\r\n")
                    await asyncio.sleep(0.05)

            feeding = asyncio.create_task(feed())
            try:
                return await connection.error()
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)

        dribbling = [asyncio.create_task(dribble(connection)) for connection in slow]
        assert (await api.get("/healthz")).status_code == 200
        assert await asyncio.wait_for(asyncio.gather(*dribbling), 60) == [(408, "request_timeout")] * 50
        await api.aclose()
        await until(lambda: door.gateway.admission.open == 0, "the sockets are given up")


@pytest.mark.parametrize("lines", [("Content-Length: 100",), ("Transfer-Encoding: chunked",)])
async def test_d4_a_body_that_does_not_come_is_cut(lines: tuple[str, ...]) -> None:
    async with open_door(HttpLimits(request=0.3)) as door:
        async with connect(door) as connection:
            await connection.send(head(door, "Content-Type: application/json", *lines) + b'5\r\n{"top')
            assert await asyncio.wait_for(connection.error(), 60) == (408, "request_timeout")
            assert await connection.ends()
        await until(lambda: not door.gateway._server.server_state.tasks, "no task waits for it")  # type: ignore[union-attr]  # it runs


@pytest.mark.parametrize("first", [b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_d4_a_silent_connection_is_closed(first: bytes) -> None:
    asks = first.startswith(b"GET")
    limits = HttpLimits(request=60 if asks else 0.3, idle=0.3)  # the one that asks must come to that
    async with open_door(limits) as door, connect(door) as connection:
        await connection.send(first)
        if asks:
            assert (await connection.answer())[0] == 200
        else:
            assert await asyncio.wait_for(connection.error(), 60) == (408, "request_timeout")
        assert await asyncio.wait_for(connection.ends(), 60)


async def test_a_second_request_on_a_connection_has_its_own_time() -> None:
    async with open_door(HttpLimits(request=60, idle=60)) as door, connect(door) as connection:
        connections: Any = door.gateway._server.server_state.connections  # type: ignore[union-attr]  # it runs
        await until(lambda: connections, "the connection is there")
        (protocol,) = connections
        ends = []
        for _ in range(4):
            await connection.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
            await until(lambda: protocol._deadline, "its time runs")
            ends.append(protocol._deadline.when())
            await connection.send(b"\r\n")
            assert (await connection.answer())[0] == 200
            assert protocol._deadline is None
        assert ends == sorted(set(ends)), "each request's time ends later than that of the one before"
        door.gateway.admission.limits = HttpLimits(request=0.3)
        await connection.send(b"GET /healthz HTTP/1.1\r\n")
        assert await asyncio.wait_for(connection.error(), 60) == (408, "request_timeout")


async def test_requests_in_one_go_are_answered_in_order(door: Door) -> None:
    async with connect(door) as connection:
        one = head(door, method="GET", path="/healthz")
        await connection.send(one + head(door, method="GET", path="/nowhere") + one)
        assert [(await connection.answer())[0] for _ in range(3)] == [200, 404, 200]


async def test_d5_an_answer_that_nobody_takes_does_not_hold_the_connection() -> None:
    async with open_door(HttpLimits(stalled=0.4)) as door:
        async with door.client() as client:
            for _ in range(4):
                messages = [{"topic": "iotsphere/system/status", "payload": {"x": "y" * 2_000}} for _ in range(400)]
                assert (await client.post(PUBLISH, json={"messages": messages})).status_code == 200
        async with open_raw(door.host, door.port, limit=1_024) as connection:
            request = head(door, method="GET", path=f"{PUBLISH}?filter=iotsphere/system/status&limit=1000")
            await connection.send(request * 20)  # 20 MiB of answers
            await until(lambda: door.gateway.admission.open <= 1, "the stalled connection is given up")
            await until(lambda: door.gateway.admission.open == 0, "the stalled connection is given up")


# -- numbers -----------------------------------------------------------------------------------------------------------


async def test_d6_new_connections_are_refused_at_the_limit_and_old_ones_kept() -> None:
    async with open_door(HttpLimits(connections=20)) as door, AsyncExitStack() as stack:
        old = [await stack.enter_async_context(connect(door)) for _ in range(20)]
        await until(lambda: door.gateway.admission.open == 20, "all are in")
        for _ in range(5):
            async with connect(door) as connection:
                assert await connection.error() == (429, "too_many_connections")
                assert await connection.ends()
        for connection in old:
            await connection.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await connection.answer())[0] == 200
        await stack.aclose()
        await until(lambda: door.gateway.admission.open == 0, "all are out")
        async with door.client("") as api:
            assert (await api.get("/healthz")).status_code == 200
        assert door.gateway.admission.refused == 5


async def test_d6_one_address_cannot_take_all_places() -> None:
    async with open_door(HttpLimits(per_address=3, limit_loopback=True)) as door, connect(door), connect(door):
        async with connect(door):
            await until(lambda: door.gateway.admission.open == 3, "all are in")
            async with connect(door) as connection:
                assert await connection.error() == (429, "too_many_connections")
        await until(lambda: door.gateway.admission.open == 2, "one is out")
        async with door.client("") as api:
            assert (await api.get("/healthz")).status_code == 200
    async with open_door(HttpLimits(per_address=1)) as door, connect(door), connect(door):
        await until(lambda: door.gateway.admission.open == 2, "loopback is not bound")


# -- stopping ----------------------------------------------------------------------------------------------------------


class _SlowLog(MemoryLog):
    """A log that appends when it is told to."""

    gate: asyncio.Event

    async def append(self, records: list[Record]) -> Appended:  # type: ignore[override]  # passes them on as they are
        await self.gate.wait()
        return await super().append(records)


async def test_draining_finishes_what_is_under_way_and_accepts_nobody() -> None:
    async with open_door(log_class=_SlowLog) as door, door.client() as api, connect(door) as idle:
        log = door.rooms.log
        assert isinstance(log, _SlowLog)
        log.gate = asyncio.Event()
        body = {"topic": "iotsphere/system/status", "payload": 1}
        request = asyncio.create_task(api.post(PUBLISH, json=body))
        await until(lambda: door.rooms.publish.pending_bytes > 0, "the request is under way")
        draining = asyncio.create_task(door.gateway.drain(30))
        assert await asyncio.wait_for(idle.ends(), 60)
        with pytest.raises(ConnectionError):
            await asyncio.open_connection(door.host, door.port)
        log.gate.set()
        answer = await request
        assert answer.status_code == 200
        await asyncio.wait_for(draining, 60)


async def test_draining_ends_after_its_time_whatever_hangs() -> None:
    async with open_door(log_class=_SlowLog) as door, door.client() as api:
        log = door.rooms.log
        assert isinstance(log, _SlowLog)
        log.gate = asyncio.Event()
        request = asyncio.create_task(api.post(PUBLISH, json={"topic": "iotsphere/system/status", "payload": 1}))
        await until(lambda: door.rooms.publish.pending_bytes > 0, "the request is under way")
        await asyncio.wait_for(door.gateway.drain(0.2), 30)
        with pytest.raises(httpx.HTTPError):
            await request
        log.gate.set()


async def test_an_address_that_is_taken_is_an_os_error_and_leaves_nothing_open(door: Door) -> None:
    async with open_door() as other:
        with pytest.raises(OSError, match="in use"):
            await other.gateway.start(door.host, door.port)
