from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.properties import Properties
from tests.support.waiting import until

from .house import House, open_house
from .peer import Peer, message

VERSIONS = (p.MQTT_3_1_1, p.MQTT_5)
PRESENCE = "iotsphere/devices/d1/presence"
T = "iotsphere/devices/d1/telemetry"


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path if request.param == "sqlite" else None) as opened:
        yield opened


async def presences(house: House) -> list[tuple[str, int, str]]:
    """(state, epoch, reason) of every presence message of the device, in log order."""
    return [
        (e["payload"]["state"], e["payload"]["sessionEpoch"], e["payload"]["reason"])
        for e in await house.envelopes("system")
        if e["metadata"]["topic"] == PRESENCE
    ]


async def gone(house: House) -> None:
    await until(lambda: house.gateway.connections == 0, "every connection is gone")


async def test_presence_is_a_retained_message_with_the_session_epoch(house: House) -> None:
    device = await house.device("d1")
    address = await house.door()
    async with Peer(address) as watcher:
        await watcher.connect(house.token("w", "subscribe:iotsphere/#"), "w")
        await watcher.subscribe("iotsphere/devices/+/presence")
        async with Peer(address) as peer:
            await peer.connect(device)
            online = json.loads((await watcher.expect(p.Publish)).payload)
            peer.send(p.Disconnect())
            await peer.end()
        offline = json.loads((await watcher.expect(p.Publish)).payload)
    assert online["payload"] | {"since": ""} == {
        "state": "online",
        "since": "",
        "sessionEpoch": 1,
        "reason": "connected",
    }
    assert (offline["payload"]["state"], offline["payload"]["reason"]) == ("offline", "disconnected")
    assert offline["payload"]["since"] >= online["payload"]["since"]
    async with Peer(address) as late:
        await late.connect(house.token("w", "subscribe:iotsphere/#"), "w2")
        await late.subscribe("iotsphere/devices/+/presence")
        kept = await late.expect(p.Publish)
        assert kept.retain
        assert json.loads(kept.payload)["payload"]["state"] == "offline"


async def test_services_have_no_presence(house: House) -> None:
    async with Peer(await house.door()) as peer:
        await peer.connect(house.token("s", "publish:iotsphere/#"))
        await peer.ping()
    await gone(house)
    assert await house.entries("system") == []


@pytest.mark.parametrize(
    ("how", "reason"),
    [("drop", "connection_lost"), ("break", "protocol_error"), ("silence", "keep_alive_timeout")],
)
async def test_the_reason_of_an_offline_is_told(house: House, how: str, reason: str) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        await peer.connect(device, keep_alive=1 if how == "silence" else 60)
        if how == "drop":
            await peer.drop()
        elif how == "break":
            peer.write(b"\x00\x00")
        await gone(house)
    assert await presences(house) == [("online", 1, "connected"), ("offline", 1, reason)]


async def test_a_takeover_never_shows_the_device_offline(house: House) -> None:
    device = await house.device("d1")
    address = await house.door()
    async with Peer(address) as first, Peer(address) as second:
        await first.connect(device)
        await second.connect(device)
        await first.end()
        await until(lambda: house.gateway.connections == 1, "the first one is gone")
        second.send(p.Disconnect())
        await second.end()
    await gone(house)
    assert await presences(house) == [
        ("online", 1, "connected"),
        ("online", 2, "connected"),
        ("offline", 2, "disconnected"),
    ]


async def test_b25_a_late_goodbye_of_an_old_connection_does_not_override_the_new_one(house: House) -> None:
    """A device with a new client id each time, whose first connection is half open until its keep alive runs out."""
    device = await house.device("d1")
    address = await house.door()
    async with Peer(address) as old, Peer(address) as new:
        await old.connect(device, "boot-1", keep_alive=60)
        (half_open,) = (visit._ties for visit in house.gateway._door.online.values())  # type: ignore[attr-defined]  # it is a visit
        await new.connect(device, "boot-2")
        half_open.tick(asyncio.get_running_loop().time() + 100)
        await old.end()
        assert (await old.expect(p.Disconnect)).reason == 0x8D
        await until(lambda: house.gateway.connections == 1, "the old one is gone")
        assert await presences(house) == [("online", 1, "connected"), ("online", 2, "connected")]
        new.send(p.Disconnect())
        await new.end()
    await gone(house)
    assert (await presences(house))[-1] == ("offline", 2, "disconnected")


async def test_a_device_is_online_while_any_of_its_connections_is(house: House) -> None:
    device = await house.device("d1")
    address = await house.door()
    async with Peer(address) as first, Peer(address) as second:
        await first.connect(device, "a")
        await second.connect(device, "b")
        second.send(p.Disconnect())
        await second.end()
        await until(lambda: house.gateway.connections == 1, "the second one is gone")
        assert [state for state, _, _ in await presences(house)] == ["online", "online"]
    await gone(house)
    assert (await presences(house))[-1] == ("offline", 2, "connection_lost")


async def test_after_a_crash_the_devices_of_this_gateway_are_offline(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        await peer.connect(device)
        await until(lambda: house.log.appended, "it is online")
        crashed = house.doors.pop()
        house._begin()
        await house.open()
        await house.door()
        await until(lambda: house.publish.accepted, "it is told")
        assert (await presences(house))[-1] == ("offline", 1, "gateway_restarted")
    house.presence._devices.clear()
    await crashed.close()


# -- wills -------------------------------------------------------------------------------------------------------------


async def values(house: House) -> list[Any]:
    return [e["payload"]["value"] for e in await house.envelopes()]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("how", ["drop", "break", "with will", "goodbye"])
async def test_a_will_is_published_unless_the_client_says_goodbye(house: House, version: int, how: str) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(), version) as peer:
        await peer.connect(device, will=p.Will(T, b"99", 1, True))
        peer.send(message(T, b"1", 1))
        await peer.expect(p.Ack)
        if how == "drop":
            await peer.drop()
        elif how == "break":
            peer.write(b"\x00\x00")
        elif how == "with will" and version == p.MQTT_5:
            peer.send(p.Disconnect(4))
        else:
            peer.send(p.Disconnect())
        await gone(house)
    due = how in ("drop", "break") or (how == "with will" and version == p.MQTT_5)
    assert await values(house) == ([1, 99] if due else [1])
    if due:
        assert (await house.entries())[-1].record.retain


async def test_a_will_is_published_when_the_client_is_taken_over(house: House) -> None:
    device = await house.device("d1")
    address = await house.door()
    async with Peer(address) as first, Peer(address) as second:
        await first.connect(device, will=p.Will(T, b"99"))
        await second.connect(device)
        await first.end()
    await gone(house)
    assert await values(house) == [99]


async def test_the_properties_of_a_will_count(house: House) -> None:
    device = await house.device("d1")
    identifier = "0191b0a0-0000-7000-8000-000000000001"
    block = Properties(user_properties=(("messageId", identifier),), message_expiry_interval=60)
    async with Peer(await house.door()) as peer:
        await peer.connect(device, will=p.Will(T, b"99", 0, False, block))
    await gone(house)
    (envelope,) = await house.envelopes()
    assert envelope["metadata"]["messageId"] == identifier
    assert "expiresAt" in envelope["metadata"]


async def test_a_will_that_is_no_sound_message_is_a_dead_letter(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(), p.MQTT_3_1_1) as peer:
        await peer.connect(device, will=p.Will(T, b"offline"))
    await gone(house)
    assert [letter["reason"] for letter in await house.dead_letters()] == ["payload_not_json"]


async def test_many_devices_come_and_go_at_once(house: House) -> None:
    devices = [await house.device(f"m{number}") for number in range(60)]
    address = await house.door()

    async def visit(number: int) -> None:
        for _ in range(3):
            async with Peer(address, VERSIONS[number % 2]) as peer:
                assert (await peer.connect(devices[number])).reason == 0
                peer.send(p.Disconnect())
                await peer.end()

    await asyncio.gather(*(visit(number) for number in range(60)))
    await gone(house)
    last: dict[str, dict[str, Any]] = {}
    for envelope in await house.envelopes("system"):
        last[envelope["metadata"]["topic"]] = envelope["payload"]
    assert len(last) == 60
    assert {(each["state"], each["sessionEpoch"]) for each in last.values()} == {("offline", 3)}
