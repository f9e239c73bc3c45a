"""Clients that say nothing: asked whether they are there, kept while they answer, and no task or queue of their own."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
import pytest

from iotsphere.gateways.websocket import WebSocketLimits
from tests.client.house import TOPIC, Door, House, open_door
from tests.client.raw import PING, PONG, TEXT, RawClient
from tests.support.waiting import until

PING_REQUEST = b'{"type":"ping","ref":1}'
BRISK = WebSocketLimits(ping_interval=0.02, ping_timeout=0.02)


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iotsphere.gateways.websocket.gateway.CHECK_EVERY_S", 0.02)


async def next_ping(client: RawClient) -> bytes:
    while True:
        opcode, payload = await client.read_frame()
        if opcode == PING:
            return payload


async def test_who_is_silent_is_asked_and_stays_as_long_as_it_answers(house: House) -> None:
    async with open_door(house, replace(BRISK, ping_timeout=60.0)) as door:
        client = await door.raw()
        for _ in range(3):
            await client.send_frame(PONG, await next_ping(client))
        await client.send_frame(TEXT, PING_REQUEST)
        while (frame := await client.read_frame())[0] != TEXT:
            await client.send_frame(PONG, frame[1])
        assert orjson.loads(frame[1])["type"] == "ok"


async def test_who_does_not_answer_is_told_why_it_is_ended(house: House) -> None:
    async with open_door(house, BRISK) as door:
        client = await door.raw()
        assert await client.close_code() == 1011
        await client.close()
        await until(lambda: door.gateway.connections == 0, "it is gone")


async def test_whatever_comes_is_a_sign_of_life(house: House) -> None:
    async with open_door(house, replace(BRISK, ping_timeout=0.5)) as door:
        client = await door.raw()
        answers = 0
        for _ in range(100):  # a second, and not one pong
            await client.send_frame(TEXT, PING_REQUEST)
            while (await client.read_frame())[0] != TEXT:
                continue
            answers += 1
            await asyncio.sleep(0.01)
        assert answers == 100


async def test_who_is_read_slowly_is_not_taken_for_dead(house: House) -> None:
    async with open_door(house, replace(BRISK, requests_per_second=100.0)) as door:
        client = await door.raw()
        for _ in range(150):
            await client.send_frame(TEXT, PING_REQUEST)
        answers = 0
        while answers < 150:
            opcode, _ = await client.read_frame()
            answers += opcode == TEXT
        assert door.gateway.connections == 1


async def test_what_was_asked_for_before_the_end_is_carried_out(door: Door, house: House) -> None:
    client = await door.raw()
    for value in range(50):
        request = {"type": "publish", "ref": value, "topic": TOPIC, "payload": {"value": value}}
        await client.send_frame(TEXT, orjson.dumps(request))
    client.writer.write_eof()
    await client.ended()
    await until(lambda: door.gateway.connections == 0, "it is gone")
    found = [orjson.loads(entry.record.body) for entry in house.entries(lambda topic: topic == TOPIC)]
    assert [message["payload"]["value"] for message in found] == list(range(50))


async def test_a_fault_of_ours_ends_the_connection_with_1011(house: House) -> None:
    class Broken:
        def now(self) -> int:
            raise RuntimeError("the clock is broken")

    house.use_cases = replace(house.use_cases, clock=Broken())
    async with open_door(house) as door:
        client = await door.raw()
        await client.send_frame(TEXT, PING_REQUEST)
        assert await client.close_code() == 1011


async def test_an_idle_client_has_one_task_and_no_request_of_its_own(door: Door) -> None:
    before = len(asyncio.all_tasks())
    clients = [await door.raw() for _ in range(5)]
    for client in clients:
        await client.send_frame(TEXT, PING_REQUEST)
        await client.read_frame()
    await until(lambda: len(asyncio.all_tasks()) == before + 5, "one task each is left")
