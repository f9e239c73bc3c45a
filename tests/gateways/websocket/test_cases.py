"""Field case B10 through the WebSocket door: a browser reconnects, and what it missed is exact or named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import iotsphere
from iotsphere.adapters.broker.stream import MessageStream
from iotsphere.app import App
from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.errors import MessagesMissed
from iotsphere.entities.message import Message
from iotsphere.settings import Settings
from tests.client.cutter import open_cutter
from tests.client.house import Door, House, Talker, open_door, open_house, values
from tests.support.servers import Server, ask
from tests.support.waiting import until
from tests.use_cases.stage import DOMAIN

TOPIC = f"{DOMAIN}/devices/dev-b/telemetry/t"
FILTER = f"{DOMAIN}/devices/dev-b/#"


async def received(client: Talker, count: int) -> tuple[list[int], str]:
    """The next messages' values, and the cursor after them."""
    got: list[int] = []
    cursor = ""
    while len(got) < count:
        frame = await client.push("messages")
        got += values(frame["messages"])
        cursor = frame["cursor"]
    return got, cursor


async def test_case_b10_a_cut_client_gets_exactly_the_missed_ones_then_live(door: Door) -> None:
    publisher = await door.connect()
    async with open_cutter((door.host, door.port)) as cutter:
        direct, door.url = door.url, cutter.url
        client = await door.connect()
        await client.subscribe(FILTER)
        for value in range(3):
            await publisher.publish({"value": value}, TOPIC)
        got, cursor = await received(client, 3)
        assert got == [0, 1, 2]
        cutter.cut()
        for value in range(3, 10):
            await publisher.publish({"value": value}, TOPIC)
        door.url = direct
    back = await door.connect()
    answer = await back.subscribe(FILTER, **{"from": cursor})
    assert answer["missed"] == []
    assert (await received(back, 7))[0] == list(range(3, 10))
    await publisher.publish({"value": 10}, TOPIC)
    assert (await received(back, 1))[0] == [10]


async def test_case_b10_trimmed_history_is_told_with_its_range_and_a_snapshot_helps(door: Door, house: House) -> None:
    client, publisher = await door.connect(), await door.connect()
    cursor = (await client.subscribe(FILTER))["cursor"]
    await client.connection.close()
    for value in range(7):
        await publisher.publish({"value": value}, TOPIC)
    (partition,) = {entry.record.partition for entry in house.entries()}
    house.log.shelf(partition).trim(2)
    back = await door.connect()
    answer = await back.subscribe(FILTER, **{"from": cursor})
    assert answer["missed"] == [
        {"partition": f"telemetry/{partition.number}", "first": 1, "last": 2, "count": 2, "reason": "retention"}
    ]
    assert (await received(back, 5))[0] == [2, 3, 4, 5, 6]
    await back.subscribe(FILTER, **{"from": "latest"})
    assert (await received(back, 1))[0] == [6]


async def test_case_b10_a_log_that_was_made_anew_is_told() -> None:
    async with open_house(partitions=1) as house, open_door(house) as door:
        client = await door.connect()
        await client.subscribe(FILTER)
        for value in range(5):
            await client.publish({"value": value}, TOPIC)
        _, cursor = await received(client, 5)
    clock = ManualClock()
    clock.advance(60_000)
    async with open_house(partitions=1, clock=clock, log=MemoryLog(clock)) as rebuilt, open_door(rebuilt) as door:
        back = await door.connect(rebuilt.token())
        await back.publish({"value": 100}, TOPIC)
        answer = await back.subscribe(FILTER, **{"from": cursor})
        assert {gap["reason"] for gap in answer["missed"]} == {"rebuilt"}
        assert {gap["count"] for gap in answer["missed"]} == {0}
        assert (await received(back, 1))[0] == [100]


async def test_case_b10_flushall_under_a_running_gateway_is_told(
    start_redis: Callable[..., Server], tmp_path: Path
) -> None:
    redis = start_redis(appendfsync="always")
    settings = Settings(data=tmp_path, log=f"redis://127.0.0.1:{redis.port}/0", websocket="127.0.0.1:0")
    async with App(settings, ("websocket",)) as gateway:
        url, token = gateway.endpoints["websocket"], gateway.operator_token()
        async with iotsphere.connect(url, token=token) as broker, asyncio.timeout(60):
            stays, leaves = broker.subscribe(FILTER), broker.subscribe(FILTER)
            for value in range(3):
                await broker.publish(TOPIC, value)
                assert (await anext(stays)).json() == (await anext(leaves)).json() == {"value": value}
            cursor = leaves.cursor
            assert cursor is not None
            await leaves.aclose()
            assert ask(redis.port, "FLUSHALL") == b"+OK"
            await broker.publish(TOPIC, 100)
            for stream in (stays, broker.subscribe(FILTER, from_=cursor)):
                with pytest.raises(MessagesMissed, match="some messages are gone"):
                    await anext(stream)
                assert (await next_message(stream)).json() == {"value": 100}
                assert {gap.reason for gap in stream.missed} == {"rebuilt"}


async def next_message(stream: MessageStream) -> Message:
    """The next message, whatever is told to be missing before it."""
    while True:
        try:
            return await anext(stream)
        except MessagesMissed:
            continue


@pytest.mark.parametrize("start", ["latest", "live"])
async def test_case_b10_a_thousand_races_of_subscribing_and_publishing(door: Door, start: str) -> None:
    client, publisher = await door.connect(), await door.connect()
    await publisher.publish({"value": -1}, TOPIC)
    for value in range(1_000):
        subscribing = await client.say("subscribe", filters=[FILTER], **{"from": start})
        published = asyncio.ensure_future(publisher.publish({"value": value}, TOPIC))
        answer = await client.answer(subscribing)
        await published
        seen: list[Any] = []
        frame = {"cursor": answer["cursor"]}
        if start == "latest":
            while not seen or seen[-1] != value:
                frame = await client.push("messages")
                seen += values(frame["messages"])
            assert seen in ([value], [value - 1, value])
        else:
            # It began before or after the message; the cursor knows, and nothing is lost either way.
            again = await client.subscribe(FILTER, **{"from": answer["cursor"]})
            marker = await publisher.publish({"value": "marker"}, TOPIC)
            while True:
                frame = await client.push("messages")
                if frame["subscription"] == again["subscription"]:
                    seen += values(frame["messages"])
                    if seen[-1] == "marker":
                        break
            assert seen in ([value, "marker"], ["marker"])
            assert marker["duplicate"] is False
            await client.ask("unsubscribe", subscription=again["subscription"])
        await client.ask("unsubscribe", subscription=answer["subscription"])
        client.pushes.clear()


async def test_case_b10_cursors_cross_a_restart_of_the_gateway(house: House) -> None:
    async with open_door(house) as door:
        client = await door.connect()
        await client.subscribe(FILTER)
        await client.publish({"value": 1}, TOPIC)
        _, cursor = await received(client, 1)
        await client.publish({"value": 2}, TOPIC)
    await until(lambda: house.feed._groups == {}, "everybody is gone")
    async with open_door(house) as door:
        back = await door.connect()
        await back.subscribe(FILTER, **{"from": cursor})
        assert (await received(back, 1))[0] == [2]
