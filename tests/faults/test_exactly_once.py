"""kill -9 while QoS 1 and QoS 2 flow both ways: QoS 2 exactly once, QoS 1 at least once, both in order, nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from iotsphere.adapters.mqtt import packets as p
from tests.support.gateway import Gateway
from tests.support.servers import Server, redis
from tests.support.waiting import until

from .exactly_once import Receiver, Sender

COUNT = 200
DEVICES = 4
KILLS = 2
AHEAD = 40


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Server]:
    with redis(tmp_path / "redis") as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize(("log", "version"), [("sqlite", p.MQTT_3_1_1), ("sqlite", p.MQTT_5), ("redis", p.MQTT_5)])
async def test_kill_9_repeats_nothing_at_qos_2_and_loses_nothing(
    tmp_path: Path, log: str, version: int, request: pytest.FixtureRequest
) -> None:
    url = log
    if log == "redis":
        server: Server = request.getfixturevalue("redis_server")
        url = f"redis://127.0.0.1:{server.port}/0"
    async with Gateway(tmp_path / "data", log=url) as gateway:
        credentials = await gateway.add_devices([f"dev-{number}" for number in range(DEVICES)])
        receiver = Receiver(lambda: gateway.mqtt, version, lambda: gateway.token)
        senders = [Sender(lambda: gateway.mqtt, version, each, COUNT) for each in credentials]
        tasks = [asyncio.create_task(receiver.run())]
        try:
            await asyncio.wait_for(receiver.ready.wait(), 60)
            # No sender gets so far that another kill would not meet it, nor is one struck before all are back.
            for sender in senders:
                sender.allowed = COUNT // (KILLS + 1) + AHEAD
            sending = [asyncio.create_task(sender.run()) for sender in senders]
            tasks += sending
            for kill in range(1, KILLS + 1):
                wanted = COUNT * kill // (KILLS + 1)

                def moved(wanted: int = wanted) -> bool:
                    for task in tasks:
                        if task.done():
                            task.result()
                    return all(sender.completed >= wanted for sender in senders)

                await until(moved, f"{wanted} messages of each sender are complete", 120)
                for sender in senders:
                    sender.allowed = min(COUNT * (kill + 1) // (KILLS + 1) + AHEAD, COUNT)
                await gateway.kill()
                await gateway.start()
            await asyncio.wait_for(asyncio.gather(*sending), 120)
            last = {"q1": COUNT - 1, "q2": COUNT - 2}

            def arrived() -> bool:
                if tasks[0].done():
                    tasks[0].result()
                return all(
                    number in receiver.numbers(each.device_id, metric)
                    for each in credentials
                    for metric, number in last.items()
                )

            await until(arrived, "everything has arrived", 120)
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        for each in credentials:
            assert receiver.numbers(each.device_id, "q2") == [i for i in range(COUNT) if i % 4 != 3]
            seen = receiver.numbers(each.device_id, "q1")
            assert list(dict.fromkeys(seen)) == [i for i in range(COUNT) if i % 4 == 3]
        assert all(sender.connections == KILLS + 1 for sender in senders)
