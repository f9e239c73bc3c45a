"""MQTT over WebSocket, through the WebSocket door's own port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.encode import encode
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.adapters.mqtt.reasons import Reason
from iotsphere.gateways.mqtt import MqttLimits
from iotsphere.gateways.websocket import WebSocketLimits
from tests.client.raw import RawClient
from tests.support.waiting import until

from .house import House, open_house
from .peer import Peer, ack, message
from .web import WebPeer, web_door

T = "iotsphere/devices/d1/telemetry"
VERSIONS = (p.MQTT_3_1_1, p.MQTT_5)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("split", [0, 1, 7])
async def test_packets_may_span_frames_and_frames_may_hold_many(house: House, version: int, split: int) -> None:
    device = await house.device("d1")
    async with web_door(house) as (_, address), WebPeer(address, version, split) as peer:
        assert (await peer.connect(device)).reason == 0
        peer.send(*(message(T, b"%d" % number, number) for number in range(1, 51)))
        acks = await peer.take(p.Ack, 50)
        assert [each.packet_id for each in acks] == list(range(1, 51))
        assert [each["payload"]["value"] for each in await house.envelopes()] == list(range(1, 51))
        assert await peer.subscribe(f"{T}/+") == (1,)
        await house.say(f"{T}/t", {"value": 3})
        assert orjson.loads((await peer.expect(p.Publish)).payload)["payload"] == {"value": 3}


async def test_frames_that_came_together_are_one_batch(house: House) -> None:
    device = await house.device("d1")
    async with web_door(house) as (_, address), WebPeer(address) as peer:
        await peer.connect(device)
        house.log.open.clear()
        for number in range(1, 101):
            peer.send(message(T, b"1", number))
        await peer.drain()
        await until(lambda: house.log.waiting == 1, "the first append waits")
        house.log.open.set()
        await peer.take(p.Ack, 100)
        assert len(await house.entries()) == 100
        assert house.publish.batches < 20


@pytest.mark.parametrize("online", [False, True])
async def test_a_text_frame_is_closed_with_1003(house: House, online: bool) -> None:
    device = await house.device("d1")
    async with web_door(house) as (_, address), WebPeer(address) as peer:
        if online:
            await peer.connect(device)
        peer.say("hello")
        await peer.end()
        assert peer.code == 1003
        assert [each.reason for each in peer.packets] == ([Reason.PROTOCOL_ERROR] if online else [])
        await until(lambda: house.gateway.connections == 0, "the door forgot it")


async def test_the_same_client_over_tcp_and_websocket_is_one_session(house: House) -> None:
    device = await house.device("d1")
    tcp = await house.door()
    async with web_door(house) as (_, web):
        kept = Properties(session_expiry_interval=60)
        async with Peer(tcp) as first, WebPeer(web) as second, Peer(tcp) as third:
            await first.connect(device, properties=kept, clean_start=False)
            assert await first.subscribe(f"{T}/#") == (1,)
            assert (await second.connect(device, properties=kept, clean_start=False)).session_present
            assert (await first.expect(p.Disconnect)).reason == Reason.SESSION_TAKEN_OVER
            await house.say(f"{T}/t", {"value": 1})
            await second.expect(p.Publish)
            assert (await third.connect(device, properties=kept, clean_start=False)).session_present
            assert (await second.expect(p.Disconnect)).reason == Reason.SESSION_TAKEN_OVER
            await second.end()
            assert second.code == 1000
            again = await third.expect(p.Publish)  # it was not acknowledged
            assert again.flags & 8
            third.send(ack(again.packet_id))
            await third.ping()
        await until(lambda: house.gateway.connections == 0, "all are gone")


async def test_losing_the_websocket_publishes_the_will(house: House) -> None:
    device = await house.device("d1")
    async with web_door(house) as (_, address):
        async with WebPeer(address) as peer:
            await peer.connect(device, will=p.Will(f"{T}/status", b'"gone"', 1, False))
        await until(lambda: house.publish.accepted >= 3, "the will was published")
        assert [each["payload"]["value"] for each in await house.envelopes()] == ["gone"]


async def test_unknown_subprotocols_are_refused_with_400_and_a_remedy(house: House) -> None:
    async with web_door(house) as (gateway, address):
        url = f"ws://{address[0]}:{address[1]}"
        for offer in (["mqttv3.1"], ["soap", "wamp"]):
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, subprotocols=[Subprotocol(name) for name in offer], proxy=None)
            assert refused.value.response.status_code == 400
            told = orjson.loads(refused.value.response.body)
            assert told["code"] == "request_invalid"
            assert "offer iotsphere.v1.json or mqtt" in told["message"]
        for offer, chosen in (
            (["mqttv3.1", "mqtt"], "mqtt"),
            (["mqtt", "iotsphere.v1.json"], "mqtt"),
            (["iotsphere.v1.json", "mqtt"], "iotsphere.v1.json"),
        ):
            async with connect(url, subprotocols=[Subprotocol(name) for name in offer], proxy=None) as socket:
                assert socket.subprotocol == chosen
        assert gateway.counts["refused_subprotocol"] == 2


async def test_origins_are_checked_for_mqtt_too(house: House) -> None:
    async with web_door(house, limits=WebSocketLimits(origins=("https://console.example",))) as (_, address):
        async with WebPeer(address, origin=Origin("https://console.example")):
            pass
        with pytest.raises(InvalidStatus) as refused:
            await WebPeer(address, origin=Origin("https://evil.example")).__aenter__()
        assert refused.value.response.status_code == 403


async def test_d4_who_does_not_log_in_is_cut(house: House) -> None:
    async with web_door(house) as (_, address), WebPeer(address) as silent, WebPeer(address) as half:
        half.write(encode(p.Connect(5, "c1"), 5)[:5])
        await asyncio.gather(silent.end(), half.end())
        assert (silent.code, half.code) == (4401, 4401)


async def test_d1_a_stranger_gets_no_room_for_a_large_frame(house: House) -> None:
    async with web_door(house) as (_, address):
        raw = await RawClient.open(*address)
        try:
            await raw.upgrade(None, "Sec-WebSocket-Protocol: mqtt")
            await raw.send_frame(2, declared=2**62)
            assert await raw.close_code() == 1009
        finally:
            await raw.close()
        raw = await RawClient.open(*address)
        try:  # the second frame may be as large as MQTT allows, but not for somebody who has not logged in
            await raw.upgrade(None, "Sec-WebSocket-Protocol: mqtt")
            await raw.send_frame(2, b"")
            await raw.send_frame(2, b"\0" * 500_000, declared=4_000_000)
            assert await raw.close_code() == 1009
        finally:
            await raw.close()


async def test_a_message_of_a_megabyte_ends_as_a_dead_letter_as_over_tcp(house: House) -> None:
    device = await house.device("d1")
    async with web_door(house) as (_, address), WebPeer(address) as peer:
        await peer.connect(device)
        peer.send(message(T, b"1" * 1_000_000, 7))
        refused = await peer.expect(p.Ack)
        assert (refused.packet_id, refused.reason) == (7, Reason.QUOTA_EXCEEDED)
        assert [letter["reason"] for letter in await house.dead_letters()] == ["payload_too_large"]


async def test_a_slow_reader_is_bounded_and_loses_nothing(house: House) -> None:
    device = await house.device("d1")
    limits = MqttLimits(outbox_bytes=64 * 1024)
    async with web_door(house, limits) as (_, address), WebPeer(address, max_queue=1) as peer:
        await peer.connect(device)
        assert await peer.subscribe(p.Request(f"{T}/#", 0)) == (0,)
        peer.awake.clear()
        for number in range(400):
            await house.say(f"{T}/t", {"value": number, "padding": "x" * 20_000})
        await until(lambda: house.gateway.counts["paused_for_write"], "the client was not read any more")
        assert len(await house.entries()) == 400
        peer.awake.set()
        values = [orjson.loads(each.payload)["payload"]["value"] for each in await peer.take(p.Publish, 400)]
        assert values == list(range(400))


async def test_a_full_log_pauses_the_websocket(house: House) -> None:
    device = await house.device("d1")
    limits = MqttLimits(unappended_bytes=64 * 1024)
    async with web_door(house, limits) as (_, address), WebPeer(address) as peer:
        await peer.connect(device)
        house.log.open.clear()
        for number in range(1, 301):  # 30 MB: far more than the system buffers between the two
            peer.send(message(T, b'{"padding": "%s"}' % (b"x" * 100_000), number))
        await until(lambda: house.gateway.counts["paused_for_log"] == 1, "the socket is not read")
        assert not peer._sending.empty()
        house.log.open.set()
        assert len(await peer.take(p.Ack, 300)) == 300


async def test_limits_per_address_are_shared_with_tcp(house: House) -> None:
    device = await house.device("d1")
    tcp = await house.door(MqttLimits(per_address=1, limit_loopback=True))
    async with web_door(house) as (_, web), Peer(tcp) as first, WebPeer(web) as second:
        assert (await first.connect(device, "one")).reason == 0
        assert (await second.connect(device, "two")).reason == Reason.QUOTA_EXCEEDED
        await second.end()
        assert second.code == 1013


async def test_a_drain_says_goodbye_with_1012(house: House) -> None:
    device = await house.device("d1")
    async with web_door(house) as (gateway, address), WebPeer(address) as peer:
        await peer.connect(device)
        await asyncio.gather(gateway.drain(5), house.gateway.drain(5))
        assert (await peer.expect(p.Disconnect)).reason == Reason.SERVER_SHUTTING_DOWN
        await peer.end()
        assert peer.code == 1012


async def test_compression_and_pings_stay_possible(house: House) -> None:
    device = await house.device("d1")
    async with (
        web_door(house, limits=WebSocketLimits(compression=True)) as (_, address),
        WebPeer(address, compression="deflate") as peer,
    ):
        await peer.connect(device)
        await (await peer.socket.ping())
        peer.send(message(T, b'{"padding": "%s"}' % (b"x" * 10_000), 1))
        await peer.expect(p.Ack)
        await peer.ping()


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
async def test_paho_over_websockets(house: House, version: MQTTProtocolVersion) -> None:
    device = await house.device("d1")
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[bytes] = asyncio.Queue()

    def tell(payload: bytes) -> None:
        loop.call_soon_threadsafe(came.put_nowait, payload)

    async with web_door(house) as (_, (host, port)):
        client = paho.Client(
            CallbackAPIVersion.VERSION2, "paho", protocol=MQTTProtocolVersion(version), transport="websockets"
        )
        client.username_pw_set(device.username, device.password)
        client.on_connect = lambda c, *_: c.subscribe(f"{T}/#", 1)
        client.on_subscribe = lambda c, *_: c.publish(f"{T}/t", b"42", 1)
        client.on_message = lambda _c, _u, told: tell(bytes(told.payload))
        await asyncio.to_thread(client.connect, host, port, 30)
        client.loop_start()
        try:
            payload = orjson.loads(await asyncio.wait_for(came.get(), 60))["payload"]
            assert payload["value"] == 42
        finally:
            client.disconnect()
            await asyncio.to_thread(client.loop_stop)
