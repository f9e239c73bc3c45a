"""kill -9 while twenty devices publish: all that was acknowledged reaches a resuming subscriber, once and in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.device import Device
from tests.support.gateway import Gateway
from tests.support.servers import Server, redis

from .fleet import Fleet, ledger_balances, resuming

DEVICES = 20
MESSAGES = 100
TOTAL = DEVICES * MESSAGES
KILLED_AFTER = (25, 60)  # of each device
AHEAD = 30


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Server]:
    with redis(tmp_path / "redis") as server:
        yield server


async def a_fleet_of(gateway: Gateway, *, plain: bool = False) -> list[Device]:
    credentials = await gateway.add_devices([f"d{number:02}" for number in range(DEVICES)])
    return [
        Device(credential, lambda: gateway.mqtt, count=MESSAGES, window=10, pause=0.01, plain=plain)
        for credential in credentials
    ]


async def assert_complete(fleet: Fleet, gateway: Gateway) -> None:
    """Every message was acknowledged in the end, so each must have come exactly once, in its device's order."""
    await fleet.all_acked()
    (subscriber,) = fleet.subscribers
    await fleet.all_delivered(subscriber, TOTAL)
    report = fleet.verdict()
    assert (report.acked, report.faults) == (TOTAL, {}), str(report)
    assert subscriber.delivered == TOTAL
    assert [notice for notice in subscriber.notices if notice["type"] == "gap"] == []
    await ledger_balances(gateway, TOTAL)


@pytest.mark.parametrize("log", ["sqlite", "redis"])
async def test_killing_the_gateway_loses_and_repeats_nothing(
    tmp_path: Path, log: str, request: pytest.FixtureRequest
) -> None:
    url = log
    if log == "redis":
        server: Server = request.getfixturevalue("redis_server")
        url = f"redis://127.0.0.1:{server.port}/0"
    async with Gateway(tmp_path / "data", log=url) as gateway:
        devices = await a_fleet_of(gateway)
        subscriber = resuming("subscriber", gateway)
        async with Fleet(gateway, [subscriber]) as fleet:
            # No device gets so far that another kill would not meet it, nor is one struck before all are back.
            for device in devices:
                device.allowed = KILLED_AFTER[0] + AHEAD
            fleet.publish(devices)
            for kill, count in enumerate(KILLED_AFTER, 1):
                await fleet.each_acked(count, kill)
                for device in devices:
                    device.allowed = min((*KILLED_AFTER, MESSAGES)[kill] + AHEAD, MESSAGES)
                await gateway.kill()
                await gateway.start()
            await assert_complete(fleet, gateway)
        assert subscriber.connections == 3
        assert all(device.connections == 3 for device in devices)


@pytest.mark.parametrize("plain", [False, True], ids=["envelopes", "bare payloads"])
async def test_killing_redis_loses_and_repeats_nothing(tmp_path: Path, redis_server: Server, plain: bool) -> None:
    async with Gateway(tmp_path / "data", log=f"redis://127.0.0.1:{redis_server.port}/0") as gateway:
        devices = await a_fleet_of(gateway, plain=plain)
        subscriber = resuming("subscriber", gateway)
        async with Fleet(gateway, [subscriber]) as fleet:
            fleet.publish(devices)
            for share in (0.25, 0.6):
                await fleet.acked_at_least(int(share * TOTAL))
                redis_server.kill()
                redis_server.start()
            await assert_complete(fleet, gateway)
        assert all(device.connections == 1 for device in devices)  # they waited; nobody had to come back
        assert subscriber.connections == 1


async def test_killing_redis_and_then_the_gateway_loses_and_repeats_nothing(
    tmp_path: Path, redis_server: Server
) -> None:
    async with Gateway(tmp_path / "data", log=f"redis://127.0.0.1:{redis_server.port}/0") as gateway:
        devices = await a_fleet_of(gateway)
        subscriber = resuming("subscriber", gateway)
        async with Fleet(gateway, [subscriber]) as fleet:
            fleet.publish(devices)
            await fleet.acked_at_least(TOTAL // 3)
            redis_server.kill()
            await gateway.kill()
            redis_server.start()
            await gateway.start()
            await assert_complete(fleet, gateway)
