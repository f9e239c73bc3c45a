"""Field cases and attacks through the libraries that would cause them: odd topics, large payloads, crowds, floods."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import Credential, Gateway

from .library import Library, Login, Refused
from .mqttjs_library import MqttjsLibrary
from .paho_library import PahoLibrary

LIBRARIES = pytest.mark.parametrize("make", [PahoLibrary, MqttjsLibrary])
LIMIT = 256 * 1024
MIB = 1024 * 1024
_names = itertools.count(1)


def client(gateway: Gateway, make: Any, who: Credential, version: int = 5, client_id: str = "") -> Library:
    made: Library = make(Login(*gateway.mqtt, who.username, who.password, version, client_id or who.device_id))
    return made


async def new_device(gateway: Gateway) -> tuple[Credential, str]:
    (who,) = await gateway.add_devices([f"c{next(_names)}"])
    return who, f"iotsphere/devices/{who.device_id}/telemetry"


async def letters_of(gateway: Gateway, device_id: str) -> list[dict[str, Any]]:
    """The dead letters of a device, the oldest first."""
    async with gateway.api() as api:
        answer = await api.get("/api/v1/dead-letters", params={"device": device_id, "limit": 100})
        answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["dead_letters"]
    return found[::-1]


async def stored(gateway: Gateway, topic: str) -> list[Any]:
    """The payloads of a topic in the log."""
    async with gateway.api() as api:
        answer = await api.get("/api/v1/messages", params={"filter": topic, "from": "earliest", "limit": 500})
        answer.raise_for_status()
    return [each["payload"] for each in answer.json()["messages"]]


ODD = (
    "/{home}/t",
    "{devices}//telemetry/t",
    "{home}/t/",
    "{devices}/HM 300/telemetry/t",
    "{devices}/room_1/hue/telemetry/t",
)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("version", [4, 5])
@LIBRARIES
async def test_a22_odd_topics_are_refused_and_never_repaired(gateway: Gateway, make: Any, version: int) -> None:
    who, home = await new_device(gateway)
    topics = [text.format(home=home, devices="iotsphere/devices") for text in ODD]
    async with client(gateway, make, who, version) as library:
        await library.connect()
        for topic in topics:
            if version == 5:
                with pytest.raises(Refused) as refused:
                    await library.publish(topic, b"1", 1)
                assert refused.value.code == 0x90
            else:
                await library.publish(topic, b"1", 1)  # which is told on the device's errors topic
        await library.publish(f"{home}/t", b"2", 1)
    letters = await letters_of(gateway, who.device_id)
    assert sorted((each["reason"], each["topic"]) for each in letters) == sorted(("topic_invalid", t) for t in topics)
    assert await stored(gateway, f"{home}/#") == [{"value": 2}]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("version", [4, 5])
@LIBRARIES
async def test_a24_large_payloads_pass_by_and_are_not_sent_again_for_ever(
    gateway: Gateway, make: Any, version: int
) -> None:
    who, home = await new_device(gateway)
    just_above, large = b"y" * (LIMIT + 1), b"z" * (5 * MIB)
    async with client(gateway, make, who, version) as library:
        await library.connect()
        for payload in (just_above, large, large):
            await told_too_large(library, f"{home}/image", payload, version)
        settled = gateway.resident_bytes
        for _ in range(10):
            await told_too_large(library, f"{home}/image", large, version)
        assert gateway.resident_bytes - settled < 10 * MIB
        await library.publish(home, b"7", 1)
    assert await stored(gateway, f"{home}/#") == [{"value": 7}]
    letters = await letters_of(gateway, who.device_id)
    assert [(each["reason"], each["size"]) for each in letters] == [
        ("payload_too_large", size) for size in (LIMIT + 1, *[5 * MIB] * 12)
    ]
    assert {each["sha256"] for each in letters} == {hashlib.sha256(data).hexdigest() for data in (just_above, large)}


async def told_too_large(library: Library, topic: str, payload: bytes, version: int) -> None:
    if version == 5:
        with pytest.raises(Refused) as refused:
            await library.publish(topic, payload, 1)
        assert refused.value.code == 0x97
    else:
        await library.publish(topic, payload, 1)


@LIBRARIES
async def test_d6_one_client_too_many_is_refused_and_the_others_go_on(tmp_path: Path, make: Any) -> None:
    async with Gateway(tmp_path / "data", settings={"max_connections": 3}) as gateway:
        who, home = await new_device(gateway)
        first, second, third, late = (client(gateway, make, who, 5, f"n{number}") for number in range(4))
        async with first, second, third, late:
            for library in (first, second, third):
                await library.connect()
            with pytest.raises(Refused) as refused:
                await late.connect()
            assert refused.value.code == 0x97
            for library in (first, second, third):
                await library.publish(home, b"1", 1)
        assert len(await stored(gateway, home)) == 3


async def test_d7_a_flood_from_one_client_leaves_the_others_served(tmp_path: Path) -> None:
    """Who sends more than its rate is read no faster; everybody else is acknowledged meanwhile, and nothing is lost."""
    count, size = 6_000, 200
    settings = {"messages_per_second": 1_000}
    async with Gateway(tmp_path / "data", settings=settings) as gateway:
        (noisy, loud), (quiet, home) = await new_device(gateway), await new_device(gateway)
        async with (
            client(gateway, PahoLibrary, noisy) as flooder,
            client(gateway, MqttjsLibrary, quiet) as other,
        ):
            await flooder.connect()
            await other.connect()
            body = b'{"value":1,"padding":"%b"}' % (b"x" * size)
            flood = asyncio.gather(*(flooder.publish(loud, body, 1) for _ in range(count)))
            for number in range(20):
                await other.publish(home, b"%d" % number, 1)
            assert not flood.done()  # it is held to its rate, and takes seconds
            await flood
        async with gateway.api() as api:
            ledger = (await api.get("/api/v1/ledger")).json()
        telemetry = sum(each["accepted"] for each in ledger["channels"] if each["channel"] == "telemetry")
        assert (telemetry, ledger["imbalance"]) == (count + 20, 0)
        assert [each["value"] for each in await stored(gateway, home)] == list(range(20))
