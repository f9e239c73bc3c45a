"""The MQTT door as the libraries that people use see it: paho (3.1.1 and 5), aiomqtt, mosquitto_pub and mosquitto_sub."""

from __future__ import annotations

import asyncio
import json
import queue
import shutil
from collections.abc import AsyncIterator
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from iotsphere.entities.topic import parse_filter
from iotsphere.use_cases.access.devices import Credential
from tests.support.waiting import until

from .house import House, open_house

T = "iotsphere/devices/d1/telemetry"
VERSIONS = (paho.MQTTv311, paho.MQTTv5)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


class Paho:
    """A paho client whose callbacks fill queues."""

    def __init__(self, version: int, credential: Credential | str, client_id: str = "paho", clean: bool = True) -> None:
        self.version = version
        self.came: queue.Queue[Any] = queue.Queue()
        self.connacks: queue.Queue[Any] = queue.Queue()
        self.subacks: queue.Queue[Any] = queue.Queue()
        self.pubacks: queue.Queue[Any] = queue.Queue()
        self.goodbyes: queue.Queue[Any] = queue.Queue()
        session = clean if version == paho.MQTTv311 else None
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, session, protocol=MQTTProtocolVersion(version)
        )
        username, password = (
            ("token", credential) if isinstance(credential, str) else (credential.username, credential.password)
        )
        self.client.username_pw_set(username, password)
        self.client.on_message = lambda _c, _u, message: self.came.put(message)
        self.client.on_connect = lambda _c, _u, flags, reason, props: self.connacks.put((flags, reason, props))
        self.client.on_subscribe = lambda _c, _u, _m, reasons, _p: self.subacks.put(reasons)
        self.client.on_publish = lambda _c, _u, mid, reason, _p: self.pubacks.put((mid, reason))
        self.client.on_disconnect = lambda _c, _u, _f, reason, _p: self.goodbyes.put(reason)
        self._clean = clean

    async def __aenter__(self) -> Paho:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client.disconnect()
        await asyncio.to_thread(self.client.loop_stop)

    async def connect(self, address: tuple[str, int]) -> Any:
        """Connect; returns (flags, reason)."""
        more: dict[str, Any] = {}
        if self.version == paho.MQTTv5:
            kept = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho's own lack
            if not self._clean:
                kept.SessionExpiryInterval = 600
            more = {"clean_start": self._clean, "properties": kept}
        await asyncio.to_thread(self.client.connect, *address, 30, **more)
        self.client.loop_start()
        flags, reason, _ = await get(self.connacks)
        return flags, reason


async def get(source: queue.Queue[Any]) -> Any:
    return await asyncio.to_thread(source.get, True, 60)


@pytest.mark.parametrize("version", VERSIONS)
async def test_paho_publishes_and_listens(house: House, version: int) -> None:
    device = await house.device("d1")
    address = await house.door()
    token = house.token("s", "subscribe:iotsphere/devices/+/telemetry/#")
    async with Paho(version, token, "listener") as listener, Paho(version, device, "sender") as sender:
        assert not (await listener.connect(address))[1].is_failure
        assert not (await sender.connect(address))[1].is_failure
        listener.client.subscribe("iotsphere/devices/+/telemetry/#", 1)
        assert [reason.value for reason in await get(listener.subacks)] == [1]
        for number in range(200):
            sender.client.publish(T, json.dumps({"value": number}), 1)
        for _ in range(200):
            assert not (await get(sender.pubacks))[1].is_failure
        got = [json.loads((await get(listener.came)).payload)["payload"]["value"] for _ in range(200)]
        assert got == list(range(200))


@pytest.mark.parametrize("version", VERSIONS)
async def test_paho_resumes_its_session(house: House, version: int) -> None:
    address = await house.door()
    token = house.token("s", "subscribe:iotsphere/#")
    async with Paho(version, token, "keeper", clean=False) as first:
        await first.connect(address)
        first.client.subscribe(T, 1)
        await get(first.subacks)
    await until(lambda: house.gateway.connections == 0, "it is gone")
    for number in range(50):
        await house.say(T, number)
    async with Paho(version, token, "keeper", clean=False) as second:
        flags, _ = await second.connect(address)
        assert flags.session_present
        got = [json.loads((await get(second.came)).payload)["payload"]["value"] for _ in range(50)]
        assert got == list(range(50))


@pytest.mark.parametrize("version", VERSIONS)
async def test_paho_gets_retained_values(house: House, version: int) -> None:
    device = await house.device("d1")
    address = await house.door()
    async with Paho(version, device) as client:
        await client.connect(address)
        client.client.publish(T, "7", 1, retain=True)
        await get(client.pubacks)
        await until(lambda: house.feed.entries_seen >= 2, "it is known")
        client.client.subscribe(T, 1)
        message = await get(client.came)
        assert message.retain
        assert json.loads(message.payload)["payload"] == {"value": 7}


async def test_paho_sees_refusals_in_mqtt_5(house: House) -> None:
    device = await house.device("d1")
    async with Paho(paho.MQTTv5, device) as client:
        await client.connect(await house.door())
        client.client.publish("iotsphere/devices/d2/telemetry", "1", 1)
        assert str((await get(client.pubacks))[1]) == "Not authorized"
        client.client.publish(T, "{", 1)
        assert str((await get(client.pubacks))[1]) == "Payload format invalid"
        client.client.subscribe("iotsphere/#", 1)
        assert [str(reason) for reason in await get(client.subacks)] == ["Not authorized"]
        client.client.publish(T, '"' + "x" * 300_000 + '"', 1)
        assert str((await get(client.pubacks))[1]) == "Quota exceeded"


@pytest.mark.parametrize("version", VERSIONS)
async def test_paho_sees_a_wrong_password(house: House, version: int) -> None:
    await house.device("d1")
    client = Paho(version, Credential("d1", "d1", "wrong"))
    async with client:
        _, reason = await client.connect(await house.door())
        assert reason.is_failure
        assert reason.value in (0x86, 134)


async def test_paho_is_told_of_a_takeover(house: House) -> None:
    device = await house.device("d1")
    address = await house.door()
    async with Paho(paho.MQTTv5, device, "same") as first:
        await first.connect(address)
        first.client.reconnect_delay_set(30, 60)  # so that it does not fight back
        async with Paho(paho.MQTTv5, device, "same") as second:
            await second.connect(address)
            assert str(await get(first.goodbyes)) == "Session taken over"
            first.client.disconnect()


async def test_aiomqtt_publishes_and_listens(house: House) -> None:
    device = await house.device("d1")
    host, port = await house.door()
    async with aiomqtt.Client(
        host,
        port,
        username=device.username,
        password=device.password,
        protocol=aiomqtt.ProtocolVersion.V5,
        timeout=60,
    ) as client:
        await client.subscribe("iotsphere/devices/d1/#", qos=1)
        for number in range(20):
            await client.publish(T, json.dumps({"value": number}), qos=1)
        seen: list[int] = []
        async for message in client.messages:
            if message.topic.matches(T):
                assert isinstance(message.payload, bytes)
                seen.append(json.loads(message.payload)["payload"]["value"])
            if len(seen) == 20:
                break
        assert seen == list(range(20))
        reasons = await client.subscribe("iotsphere/#", qos=1)
        assert [str(reason) for reason in reasons] == ["Not authorized"]


async def run(*words: str, feed: bytes = b"") -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await asyncio.wait_for(process.communicate(feed), 90)
    assert process.returncode is not None
    return process.returncode, out.decode()


needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed on this machine"
)


@needs_mosquitto
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
async def test_mosquitto_pub_and_sub(house: House, version: str) -> None:
    device = await house.device("d1")
    host, port = await house.door()
    login = ("-h", host, "-p", str(port), "-u", device.username, "-P", device.password, "-V", version)
    code, out = await run("mosquitto_pub", *login, "-t", T, "-q", "1", "-l", feed=b"1\n2\n3\n")
    assert (code, out) == (0, "")
    assert [e["payload"]["value"] for e in await house.envelopes()] == [1, 2, 3]
    code, out = await run("mosquitto_pub", *login, "-t", T, "-q", "1", "-r", "-m", "4")
    assert (code, out) == (0, "")
    await until(lambda: list(house.last_values.retained([parse_filter(T)])), "it is known")
    code, out = await run("mosquitto_sub", *login, "-t", T, "-q", "1", "-C", "1", "-W", "60")
    assert code == 0
    assert json.loads(out)["payload"] == {"value": 4}


@needs_mosquitto
async def test_mosquitto_sub_resumes_its_session(house: House) -> None:
    device = await house.device("d1")
    host, port = await house.door()
    login = ("-h", host, "-p", str(port), "-u", device.username, "-P", device.password, "-i", "sub", "-c")
    code, out = await run("mosquitto_sub", *login, "-t", T, "-q", "1", "-E")
    assert (code, out) == (0, "")
    for number in range(5):
        await house.say(T, number)
    code, out = await run("mosquitto_sub", *login, "-t", T, "-q", "1", "-C", "5", "-W", "60")
    assert code == 0
    assert [json.loads(line)["payload"]["value"] for line in out.splitlines()] == list(range(5))


@needs_mosquitto
async def test_mosquitto_pub_sees_a_refusal(house: House) -> None:
    device = await house.device("d1")
    host, port = await house.door()
    login = ("-h", host, "-p", str(port), "-u", device.username, "-P", device.password, "-V", "mqttv5")
    _, out = await run("mosquitto_pub", *login, "-t", "iotsphere/devices/d2/telemetry", "-q", "1", "-m", "1")
    assert "Not authorized" in out
    code, out = await run("mosquitto_pub", "-h", host, "-p", str(port), "-t", T, "-m", "1")
    assert code != 0
    assert "not authori" in out.lower()
