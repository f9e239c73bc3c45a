"""The resuming subscriber: it comes back with its cursor, keeps what it got, and stops at a refusal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from .history import Delivered
from .subscriber import Subscriber, SubscriberGaveUp
from .waiting import until


def messages(*numbers: int, cursor: str) -> str:
    topic = "iotsphere/devices/d1/telemetry"
    envelopes = [
        {"metadata": {"messageId": f"m{seq}", "topic": topic}, "payload": {"seq": seq, "value": 1}} for seq in numbers
    ]
    return json.dumps({"type": "messages", "subscription": "s1", "cursor": cursor, "messages": envelopes})


@asynccontextmanager
async def subscribed(
    answer: Callable[[ServerConnection], Awaitable[None]],
) -> AsyncIterator[tuple[Subscriber, list[Any]]]:
    """A subscriber that runs against a server, which is given each connection after it read the request."""
    requests: list[Any] = []

    async def handler(socket: ServerConnection) -> None:
        requests.append(json.loads(await socket.recv()))
        await answer(socket)

    async with serve(handler, "127.0.0.1", 0, subprotocols=[Subprotocol("iotsphere.v1.json")]) as door:
        port = next(iter(door.sockets)).getsockname()[1]
        subscriber = Subscriber("c", ["iotsphere/#"], lambda: f"ws://127.0.0.1:{port}", lambda: "T")
        task = asyncio.create_task(subscriber.run())
        try:
            yield subscriber, requests
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, SubscriberGaveUp):
                await task


async def test_it_resumes_from_the_last_cursor_and_keeps_one_history() -> None:
    async def answer(socket: ServerConnection) -> None:
        first = len(requests) == 1
        await socket.send('{"type":"ok","ref":1,"subscription":"s1","cursor":"c0","missed":[]}')
        if first:
            await socket.send(messages(0, 1, cursor="c1"))
            await socket.send('{"type":"lagging","subscription":"s1","behind":3}')
            await socket.send('{"type":"messages","subscription":"s1","cursor":null,"messages":[]}')
            return
        await socket.send(messages(2, cursor="c2"))
        await socket.wait_closed()

    async with subscribed(answer) as (subscriber, requests):
        await until(lambda: subscriber.delivered == 3, "three messages")
    assert [request["from"] for request in requests] == ["live", "c1"]
    assert requests[0]["filters"] == ["iotsphere/#"]
    assert subscriber.consumer.deliveries[2] == Delivered(
        "d1", 2, "iotsphere/devices/d1/telemetry", "m2", {"seq": 2, "value": 1}
    )
    assert (subscriber.connections, subscriber.cursor) == (2, "c2")
    assert subscriber.notices == [{"type": "lagging", "subscription": "s1", "behind": 3}]


async def test_ranges_that_are_gone_are_kept_as_a_notice() -> None:
    async def answer(socket: ServerConnection) -> None:
        missed = [{"partition": "telemetry/0", "first": 3, "last": 5}]
        await socket.send(json.dumps({"type": "ok", "ref": 1, "subscription": "s1", "cursor": "c", "missed": missed}))
        await socket.wait_closed()

    async with subscribed(answer) as (subscriber, _):
        await until(subscriber.ready.is_set, "the subscription")
    assert subscriber.notices == [
        {"type": "gap", "missed": [{"partition": "telemetry/0", "first": 3, "last": 5}]},
    ]


async def test_while_it_sleeps_it_takes_nothing_and_then_everything() -> None:
    async def answer(socket: ServerConnection) -> None:
        await socket.send('{"type":"ok","ref":1,"subscription":"s1","cursor":"c0","missed":[]}')
        await go.wait()
        for seq in range(100):
            await socket.send(messages(seq, cursor=f"c{seq}"))
        sent.set()
        await socket.wait_closed()

    go, sent = asyncio.Event(), asyncio.Event()
    async with subscribed(answer) as (subscriber, _):
        await until(subscriber.ready.is_set, "the subscription")
        subscriber.awake.clear()
        go.set()
        await until(sent.is_set, "everything is sent")
        assert subscriber.delivered <= 1
        subscriber.awake.set()
        await until(lambda: subscriber.delivered == 100, "all messages")
    assert subscriber.cursor == "c99"


async def test_a_refusal_ends_it() -> None:
    async def answer(socket: ServerConnection) -> None:
        await socket.send('{"type":"error","ref":1,"code":"cursor_invalid","message":"altered"}')
        await socket.wait_closed()

    async def handler(socket: ServerConnection) -> None:
        await socket.recv()
        await answer(socket)

    async with serve(handler, "127.0.0.1", 0, subprotocols=[Subprotocol("iotsphere.v1.json")]) as door:
        port = next(iter(door.sockets)).getsockname()[1]
        with pytest.raises(SubscriberGaveUp, match=r"c: .*cursor_invalid"):
            await Subscriber("c", ["iotsphere/#"], lambda: f"ws://127.0.0.1:{port}", lambda: "T").run()
