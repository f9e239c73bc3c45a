"""kill -9 while devices are sent commands: each is run, at QoS 2 once and at QoS 1 at least once, and followed to its end."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from iotsphere.adapters.mqtt import packets as p
from tests.support.gateway import Gateway
from tests.support.waiting import until

from .commanded import Commanded

COUNT = 60
KILLS = 2
AT_ONCE = 8


async def command(gateway: Gateway, device: str, command_id: str) -> None:
    """Send a command, and send it again until somebody says that it is accepted."""
    while True:
        with suppress(httpx.TransportError):
            async with gateway.api() as api:
                body = {"message_id": command_id, "payload": {"action": "open"}, "timeout": 300}
                answer = await api.post(f"/api/v1/devices/{device}/commands", json=body)
            if answer.status_code < 300:
                return
            assert answer.status_code in (429, 503), answer.text
        await asyncio.sleep(0.02)


async def states(gateway: Gateway, ids: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    async with gateway.api() as api:
        for each in ids:
            state = (await api.get(f"/api/v1/commands/{each}")).json()["state"]
            found[state] = found.get(state, 0) + 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("qos", "version"), [(2, p.MQTT_5), (1, p.MQTT_3_1_1)])
async def test_kill_9_makes_no_device_run_a_command_twice_and_none_miss_one(
    tmp_path: Path, qos: int, version: int
) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        (credential,) = await gateway.add_devices(["runner"])
        device = Commanded(lambda: gateway.mqtt, version, credential, qos, AT_ONCE)
        running = asyncio.create_task(device.run())
        ids = [str(uuid.uuid4()) for _ in range(COUNT)]
        places = asyncio.Semaphore(AT_ONCE)

        async def send(command_id: str) -> None:
            async with places:
                await command(gateway, "runner", command_id)

        try:
            await until(lambda: device.connections == 1, "the device is here")
            sending = asyncio.gather(*map(send, ids))
            for kill in range(1, KILLS + 1):
                wanted = COUNT * kill // (KILLS + 1)

                def ran(wanted: int = wanted) -> bool:
                    return len(set(device.ran)) >= wanted or running.done() or sending.done()

                await until(ran, "it runs", 120)
                await gateway.kill()
                await gateway.start()
                # All may be accepted by now: nothing else keeps the next kill back until it can meet the device.
                await until(lambda kill=kill: device.connections > kill or running.done(), "the device is back")  # type: ignore[misc]
            await asyncio.wait_for(sending, 120)
            await until(lambda: set(device.ran) == set(ids) or running.done(), "all were run", 120)
            deadline = asyncio.get_running_loop().time() + 60
            while (found := await states(gateway, ids)) != {"succeeded": COUNT}:
                assert not running.done()
                assert asyncio.get_running_loop().time() < deadline, found
                await asyncio.sleep(0.2)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        assert device.connections == KILLS + 1
        twice = sorted(each for each in set(device.ran) if device.ran.count(each) > 1)
        assert qos == 1 or twice == []
