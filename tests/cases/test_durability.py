"""An acknowledgement means "in the log" (B01): the log's server and the gateway die in the middle of a device's stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.support.device import Device
from tests.support.gateway import Gateway
from tests.support.servers import Server, redis
from tests.support.waiting import until

from .clients import history, letters, mqtt

COUNT = 1_000
PAYLOAD_FORMAT_INVALID = 0x99
QUIET_POLLS = 25


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with redis(tmp_path / "redis") as running:
        yield running


@asynccontextmanager
async def publishing(gateway: Gateway, *, plain: bool) -> AsyncIterator[Device]:
    """A device on its way to 1,000 acknowledged messages; bare payloads with ``plain``, else envelopes with ids."""
    (credential,) = await gateway.add_devices(["dev-b"])
    device = Device(credential, lambda: gateway.mqtt, count=COUNT, window=20, topic="telemetry/t", plain=plain)
    running = asyncio.create_task(device.run())
    try:
        yield device
        await until(running.done, "everything is acknowledged", 60)
        running.result()
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def acked(device: Device, count: int) -> None:
    await until(lambda: len(device.acked) >= count, f"{count} messages are acknowledged", 60)


async def quiet(gateway: Gateway, device: Device) -> set[int]:
    """What is acknowledged, once nothing more comes: not for a while, nor when the gateway has answered others since."""
    seen, polls = set(device.acked), 0
    async with gateway.api() as api:
        while polls < QUIET_POLLS:
            await asyncio.sleep(0.02)
            polls += 1
            if polls == QUIET_POLLS:
                for _ in range(2):
                    assert (await api.get("/healthz")).status_code == 200
            if device.acked != seen:
                seen, polls = set(device.acked), 0
    return seen


async def stored(gateway: Gateway) -> list[int]:
    """The numbers of all messages in the log, in its order."""
    return [message["payload"]["seq"] for message in await history(gateway, "iotsphere/devices/dev-b/telemetry/t")]


@pytest.mark.parametrize("plain", [False, True], ids=["envelopes", "bare payloads"])
async def test_case_b01_nothing_is_acknowledged_while_the_log_is_away_and_all_is_stored_in_the_end(
    tmp_path: Path, server: Server, plain: bool
) -> None:
    async with Gateway(tmp_path / "data", log=f"redis://127.0.0.1:{server.port}/0") as gateway:
        async with publishing(gateway, plain=plain) as device:
            await acked(device, COUNT // 2)
            with server.pause():
                before = await quiet(gateway, device)
                assert COUNT // 2 <= len(before) < COUNT
                assert device.sent > len(before), "messages are waiting for their acknowledgement"
                await quiet(gateway, device)
                assert device.acked == before
                server.kill()
            server.start()
        assert await stored(gateway) == list(range(COUNT))  # not even a duplicate: it was one connection all the time
        assert device.connections == 1


async def test_case_b01_a_log_that_died_loses_nothing_that_was_acknowledged(tmp_path: Path, server: Server) -> None:
    async with Gateway(tmp_path / "data", log=f"redis://127.0.0.1:{server.port}/0") as gateway:
        async with publishing(gateway, plain=False) as device:
            await acked(device, COUNT // 2)
            server.kill()
            before = await quiet(gateway, device)
            assert len(before) < COUNT
            server.start()
        assert await stored(gateway) == list(range(COUNT))


async def test_case_b01_a_refusal_is_answered_only_once_its_dead_letter_is_stored(
    tmp_path: Path, server: Server
) -> None:
    async with Gateway(tmp_path / "data", log=f"redis://127.0.0.1:{server.port}/0") as gateway:
        (credential,) = await gateway.add_devices(["dev-b"])
        async with mqtt(gateway, credential) as client:
            assert await client.publish("iotsphere/devices/dev-b/telemetry/t", b"1") == 0
            with server.pause():
                refused = asyncio.create_task(client.publish("iotsphere/devices/dev-b/telemetry/t", b"{"))
                done, _ = await asyncio.wait((refused,), timeout=0.5)
                assert not done
                server.kill()
            server.start()
            assert await refused == PAYLOAD_FORMAT_INVALID
            assert [(letter.reason, letter.raw) for letter in await letters(gateway)] == [("payload_not_json", b"{")]


@pytest.mark.parametrize("log", ["sqlite", "redis"])
async def test_case_b01_a_gateway_that_is_killed_loses_and_repeats_nothing(
    tmp_path: Path, log: str, request: pytest.FixtureRequest
) -> None:
    url = log
    if log == "redis":
        server: Server = request.getfixturevalue("server")
        url = f"redis://127.0.0.1:{server.port}/0"
    async with Gateway(tmp_path / "data", log=url) as gateway:
        async with publishing(gateway, plain=False) as device:
            await acked(device, COUNT // 2)
            await gateway.kill()
            before = set(device.acked)
            assert len(before) < COUNT
            await gateway.start()
            assert before <= set(await stored(gateway))
        assert await stored(gateway) == list(range(COUNT))  # what was sent again was known by its id
        assert device.connections == 2


async def test_case_b01_bare_payloads_are_at_least_once_when_the_gateway_is_killed(tmp_path: Path) -> None:
    async with Gateway(tmp_path / "data") as gateway:
        async with publishing(gateway, plain=True) as device:
            await acked(device, COUNT // 2)
            await gateway.kill()
            await gateway.start()
        found = await stored(gateway)
        assert sorted(set(found)) == list(range(COUNT))
        assert len(found) - COUNT <= 20, "at most what was under way is there twice"
