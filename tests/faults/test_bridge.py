"""kill -9 of the gateway and of the broker while a bridge carries messages both ways: what holds, and what only the broker can hold."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from getpass import getuser
from pathlib import Path
from typing import Any

import aiomqtt
import httpx
import pytest

import iotsphere
from tests.support.foreign import Foreign, foreign, user_property
from tests.support.gateway import Gateway
from tests.support.servers import Server, mosquitto
from tests.support.waiting import until

DEVICES = 5
MESSAGES = 400
RULES = """
[[in]]
from = "tele/{device_id}/SENSOR"
to = "iotsphere/devices/{device_id}/telemetry"

[[out]]
from = "iotsphere/devices/{device_id}/commands/request"
to = "cmnd/{device_id}"
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "broker"
    folder.mkdir()
    kept = f"persistence true\npersistence_location {folder}/\nautosave_interval 1\nmax_queued_messages 0\n"
    with mosquitto(folder, f"user {getuser()}\nallow_anonymous true\n{kept}") as server:
        yield server


def bridged(tmp_path: Path, broker: Server, rules: str = RULES) -> Gateway:
    """A gateway with a bridge to the broker."""
    file = tmp_path / "bridge.toml"
    file.write_text(f'name = "plant"\n[broker]\nurl = "mqtt://127.0.0.1:{broker.port}"\nkeep_alive = 4\n{rules}')
    return Gateway(tmp_path / "data", settings={"bridges": json.dumps([str(file)])})


async def figures(gateway: Gateway, holds: Callable[[dict[str, float]], bool]) -> None:
    """Wait until the bridge's counters, all of one moment, are as they are to be."""
    head, tail = "iotsphere_bridge_", "_total"
    deadline = asyncio.get_running_loop().time() + 60
    async with gateway.api() as api:
        while True:
            lines = [line.split(" ") for line in (await api.get("/metrics")).text.splitlines() if line.startswith(head)]
            found = {line[0].removeprefix(head).removesuffix(tail): float(line[-1]) for line in lines}
            if holds(found):
                return
            assert asyncio.get_running_loop().time() < deadline, f"{found}\n{gateway.tail()}"
            await asyncio.sleep(0.1)


async def connected(gateway: Gateway, times: int = 1) -> None:
    """Wait until the bridge has connected so often since the gateway's start."""
    await figures(gateway, lambda found: found["connects"] >= times)


async def stored(gateway: Gateway, topic: str, numbers: Iterable[int]) -> list[Any]:
    """All messages of a channel in the log, once these are there, and half a second more for those too many."""
    wanted = set(numbers)
    found: list[Any] = []
    async with iotsphere.connect(gateway.websocket, token=gateway.token) as client:
        stream = client.subscribe(topic, from_="earliest")

        async def collect() -> None:
            async for message in stream:
                found.append(message)  # noqa: PERF401 - it never ends, and is looked at meanwhile

        task = asyncio.create_task(collect())
        try:
            await until(lambda: wanted <= {m.json()["n"] for m in found}, f"the messages {wanted}")
            await asyncio.sleep(0.5)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return found


def assert_in_order(messages: list[Any]) -> None:
    """First occurrences of each device's messages come in the order in which they were sent."""
    for device in range(DEVICES):
        numbers = [m.json()["n"] for m in messages if m.topic.split("/")[2] == f"d{device}"]
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first)


async def publish_all(peer: Foreign, ids: list[str | None], pause: float = 0.003) -> None:
    for number, message_id in enumerate(ids):
        properties: dict[str, Any] = {} if message_id is None else {"UserProperty": ("messageId", message_id)}
        await peer.publish(f"tele/d{number % DEVICES}/SENSOR", {"n": number}, **properties)
        await asyncio.sleep(pause)


@pytest.mark.parametrize("named", [True, False], ids=["with message ids", "bare payloads"])
async def test_killing_the_gateway_loses_nothing_on_the_way_in(tmp_path: Path, broker: Server, named: bool) -> None:
    async with bridged(tmp_path, broker) as gateway:
        await connected(gateway)
        ids = [str(uuid.uuid4()) if named else None for _ in range(MESSAGES)]
        async with foreign(broker.port) as device:
            sending = asyncio.create_task(publish_all(device, ids))
            for _ in range(2):
                await asyncio.sleep(0.4)
                await gateway.kill()
                await gateway.start()
            await sending
        await connected(gateway)
        messages = await stored(gateway, "iotsphere/devices/+/telemetry", range(MESSAGES))
    assert {m.json()["n"] for m in messages} == set(range(MESSAGES))
    assert_in_order(messages)
    if named:  # a message that names itself is stored once, however often the broker repeats it
        assert sorted(m.metadata.message_id for m in messages) == sorted(str(i) for i in ids)


async def test_killing_the_gateway_loses_nothing_on_the_way_out(tmp_path: Path, broker: Server) -> None:
    async with bridged(tmp_path, broker) as gateway, foreign(broker.port) as device:
        await connected(gateway)
        await gateway.add_devices([f"d{index}" for index in range(DEVICES)])
        await device.listen("cmnd/#")
        sent = 0
        for _ in range(2):
            async with gateway.api() as api:
                for _ in range(40):
                    topic = f"iotsphere/devices/d{sent % DEVICES}/commands/request"
                    message = {"topic": topic, "payload": {"n": sent}, "message_id": str(uuid.uuid4())}
                    response = await api.post("/api/v1/messages", json=message)
                    assert response.status_code < 300, response.text
                    sent += 1
            await gateway.kill()
            await gateway.start()
        await until(lambda: len({user_property(m, "messageId") for m in device.got}) == sent, "all came")
        for index in range(DEVICES):
            mine = [json.loads(m.payload)["payload"]["n"] for m in device.got if str(m.topic) == f"cmnd/d{index}"]
            first = list(dict.fromkeys(mine))
            assert first == list(range(index, sent, DEVICES))
        assert not any(message.retain for message in device.got)


async def test_killing_the_broker_loses_only_what_the_broker_forgets(tmp_path: Path, broker: Server) -> None:
    """Mosquitto answers from its memory: what it acknowledged and had not handed on dies with it. Nothing else does."""
    async with bridged(tmp_path, broker) as gateway:
        await connected(gateway)
        kept = broker.folder / "mosquitto.db"
        await until(lambda: kept.exists() and b"-plant-0-" in kept.read_bytes(), "the broker has saved our session")
        acknowledged: list[int] = []
        number = 0
        ids = [str(uuid.uuid4()) for _ in range(MESSAGES)]

        async def publish_until_lost() -> None:
            nonlocal number
            async with foreign(broker.port) as device:
                while number < MESSAGES:
                    await device.publish(
                        f"tele/d{number % DEVICES}/SENSOR", {"n": number}, UserProperty=("messageId", ids[number])
                    )
                    acknowledged.append(number)
                    number += 1
                    await asyncio.sleep(0.003)

        at_the_kill: list[int] = []
        for round_ in range(2):
            sending = asyncio.create_task(publish_until_lost())
            await asyncio.sleep(0.4)
            broker.kill()
            at_the_kill.append(number)
            with pytest.raises(aiomqtt.MqttError):
                await sending
            broker.start()
            await connected(gateway, round_ + 2)
        await publish_until_lost()
        assert len(acknowledged) == MESSAGES
        messages = await stored(gateway, "iotsphere/devices/+/telemetry", range(at_the_kill[-1], MESSAGES))
        await figures(gateway, lambda it: len(messages) <= it["received"] == it["appended"] + it["repeated"])
    there = {m.json()["n"] for m in messages}
    missing = set(range(MESSAGES)) - there
    # Gone is only the end of what each device had sent before a kill: nothing that came later was handed on.
    for number in missing:
        assert number <= at_the_kill[-1], f"{number} was lost without a kill"
        kill = min(kill for kill in at_the_kill if kill >= number)
        assert not [later for later in range(number + DEVICES, kill, DEVICES) if later in there], (number, kill)
    assert len(messages) == len(there)
    assert_in_order(messages)


async def test_requests_through_the_broker_are_decided_once_across_kills(tmp_path: Path, broker: Server) -> None:
    """Commands and desired state that a service behind the broker asks for: carried out once, or a dead letter."""
    rules = """
[[in]]
from = "ask/{device_id}/command"
to = "iotsphere/devices/{device_id}/commands/request"
[[in]]
from = "ask/{device_id}/desired"
to = "iotsphere/devices/{device_id}/shadow/desired"
"""
    async with bridged(tmp_path, broker, rules) as gateway, foreign(broker.port) as service:
        await connected(gateway)
        await gateway.add_devices(["d1"])
        ids = [str(uuid.uuid4()) for _ in range(60)]
        for number, message_id in enumerate(ids):
            await service.publish("ask/d1/command", {"n": number}, UserProperty=("messageId", message_id))
            await service.publish("ask/d1/desired", {"desired": {"n": number}})
            if number == 30:
                await gateway.kill()
                await gateway.start()
        await service.publish("ask/nobody/desired", {"desired": {"n": 1}})
        await service.publish("ask/d1/command", {"n": "without an id"})
        commands = await stored(gateway, "iotsphere/devices/+/commands/request", range(len(ids)))
        # The first of the two is decided behind all that was desired.
        await figures(gateway, lambda found: found["refused"] == 2)
        async with gateway.api() as api:
            letters = await two_letters(api)
            shadow = (await api.get("/api/v1/devices/d1/shadow")).json()
    assert sorted(m.metadata.message_id for m in commands) == sorted(ids)
    assert [m.json()["n"] for m in commands] == list(range(60))
    assert shadow["desired"] == {"n": 59}
    told = sorted((each["reason"], each["topic"]) for each in letters)
    assert told == [
        ("acl_denied", "iotsphere/devices/nobody/shadow/desired"),
        ("schema_violation", "iotsphere/devices/d1/commands/request"),
    ]


async def two_letters(api: httpx.AsyncClient) -> list[dict[str, Any]]:
    """The dead letters, once there are two: each is counted before it is in the log."""
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        found: list[dict[str, Any]] = (await api.get("/api/v1/dead-letters")).json()["dead_letters"]
        if len(found) >= 2:
            return found
        assert asyncio.get_running_loop().time() < deadline, found
        await asyncio.sleep(0.1)
