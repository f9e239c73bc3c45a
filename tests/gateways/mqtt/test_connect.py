from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.encode import encode
from iotsphere.adapters.mqtt.life import Offer
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.drivers.clock import ManualClock
from iotsphere.gateways.mqtt import MqttLimits
from iotsphere.use_cases.access.devices import Credential
from tests.support import forgery
from tests.support.waiting import until

from .house import House, open_house
from .peer import Peer, message

VERSIONS = (p.MQTT_3_1_1, p.MQTT_5)
MINE = "iotsphere/devices/d1/telemetry"


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_device_logs_in_by_its_id_or_with_its_domain(house: House, version: int) -> None:
    device = await house.device("d1")
    address = await house.door()
    for username in ("d1", "iotsphere/d1"):
        async with Peer(address, version) as peer:
            assert (await peer.connect(device, username=username)).reason == 0


async def test_a_device_of_another_domain_names_it(house: House) -> None:
    device = await house.device("d1", "other")
    async with Peer(await house.door()) as peer:
        assert (await peer.connect(device)).reason == 0
        peer.send(message("other/devices/d1/telemetry", b"1", 1), message(MINE, b"1", 2))
        assert [a.reason for a in await peer.take(p.Ack, 2)] == [0, 0x87]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_service_logs_in_with_a_token_as_its_password(house: House, version: int) -> None:
    token = house.token("reports", "publish:iotsphere/devices/+/telemetry/#")
    async with Peer(await house.door(), version) as peer:
        assert (await peer.connect(token)).reason == 0
        peer.send(message(MINE, b"1", 1))
        assert (await peer.expect(p.Ack)).reason == 0
        (envelope,) = await house.envelopes()
        assert envelope["metadata"]["source"] == "reports"


REFUSED: dict[str, tuple[dict[str, Any], int, int]] = {
    "anonymous": ({}, 0x87, 5),
    "wrong password": ({"username": "d1", "password": b"wrong"}, 0x86, 4),
    "unknown device": ({"username": "d9", "password": b"wrong"}, 0x86, 4),
    "no password": ({"username": "d1"}, 0x86, 4),
    "not UTF-8": ({"username": "d1", "password": b"\xff\xfe"}, 0x86, 4),
    "hostile user name": ({"username": "iotsphere/+/#\r\n", "password": b"x"}, 0x86, 4),
    "other domain": ({"username": "other/d1", "password": b"x"}, 0x86, 4),
    **{
        f"token: {name}": ({"username": "token", "password": text.encode()[:65_000]}, 0x86, 4)
        for name, text in forgery.C11.items()
    },
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("version", VERSIONS)
async def test_who_is_not_believed_is_refused(house: House, name: str, version: int) -> None:
    fields, reason, code = REFUSED[name]
    await house.device("d1")
    async with Peer(await house.door(), version) as peer:
        connack = await peer.connect(None, **fields)
        assert connack.reason == (reason if version == p.MQTT_5 else code)
        await peer.end()
    assert house.gateway.counts["connect_refused_unauthenticated"] == 1


async def test_d8_who_keeps_guessing_has_to_wait(house: House) -> None:
    await house.device("d1")
    address = await house.door()
    seen = []
    for _ in range(12):
        async with Peer(address) as peer:
            seen.append((await peer.connect(None, username="d1", password=b"guess")).reason)
    assert seen[0] == 0x86
    assert 0x9F in seen


@pytest.mark.parametrize("client_id", ["+", "#", "dev1/../dev2", "a/b", "a\u0001b"])
async def test_c04_client_ids_that_are_patterns_are_refused(house: House, client_id: str) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        assert (await peer.connect(device, client_id)).reason == 0x85
        await peer.end()


async def test_c04_identity_comes_from_the_credential_not_from_the_client_id(house: House) -> None:
    one = await house.device("dev1")
    await house.device("dev2")
    async with Peer(await house.door()) as peer:
        assert (await peer.connect(one, "dev2")).reason == 0
        peer.send(message("iotsphere/devices/dev2/telemetry/t", b'{"value":1}', 1))
        assert (await peer.expect(p.Ack)).reason == 0x87
    assert await house.envelopes() == []
    assert house.gateway.counts["refused_acl_denied"] == 1


async def test_equal_client_ids_of_different_devices_do_not_meet(house: House) -> None:
    one, two = await house.device("d1"), await house.device("d2")
    address = await house.door()
    async with Peer(address) as first, Peer(address) as second:
        await first.connect(one, "same")
        await second.connect(two, "same")
        await first.ping()
        await second.ping()
        assert house.gateway.counts["taken_over"] == 0


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_newer_connection_of_a_client_takes_over(house: House, version: int) -> None:
    device = await house.device("d1")
    address = await house.door()
    async with Peer(address, version) as first, Peer(address, version) as second:
        await first.connect(device)
        assert (await second.connect(device)).reason == 0
        await first.end()
        assert [x.reason for x in first.packets if isinstance(x, p.Disconnect)] == ([0x8E] if version == 5 else [])
        await second.ping()
        assert house.gateway.counts["taken_over"] == 1
        await until(lambda: house.gateway.connections == 1, "the older one is gone")


async def test_a_crowd_with_one_client_id_ends_with_one_of_them(house: House) -> None:
    device = await house.device("d1")
    address = await house.door()
    peers = [Peer(address) for _ in range(12)]
    try:
        for peer in peers:
            await peer.__aenter__()
        for peer in peers:
            peer.send(p.Connect(5, "c1", username=device.username, password=device.password.encode()))
        await until(lambda: sum(not peer.closed.is_set() for peer in peers) == 1, "one is left")
        (left,) = [peer for peer in peers if not peer.closed.is_set()]
        assert (await left.expect(p.ConnAck)).reason == 0
        await left.ping()
    finally:
        for peer in peers:
            await peer.drop()


async def test_the_keep_alive_ends_who_falls_silent(house: House) -> None:
    device = await house.device("d1")
    address = await house.door()
    async with Peer(address) as silent, Peer(address) as lively:
        await silent.connect(device, "silent", keep_alive=1)
        await lively.connect(device, "lively", keep_alive=60)
        while not silent.closed.is_set():
            await lively.ping()
            await asyncio.sleep(0.1)
        assert (await silent.expect(p.Disconnect)).reason == 0x8D
        await lively.ping()


async def test_the_server_may_shorten_the_keep_alive(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(MqttLimits(offer=Offer(max_keep_alive=30)))) as peer:
        assert (await peer.connect(device, keep_alive=3_600)).properties.server_keep_alive == 30


@pytest.mark.parametrize("sent", [b"", b"\x10", encode(p.Connect(5, "c1"), 5)[:-2]], ids=["nothing", "a byte", "half"])
async def test_d4_who_does_not_finish_its_connect_is_cut(house: House, sent: bytes) -> None:
    async with Peer(await house.door(MqttLimits(offer=Offer(connect_within=0.3)))) as peer:
        peer.write(sent)
        await peer.end()
        assert peer.packets == []
    assert house.gateway.counts["connected"] == 0


async def test_d4_by_default_that_takes_less_than_five_seconds() -> None:
    assert MqttLimits().offer.connect_within < 5


async def test_d6_more_connections_than_allowed_are_refused_and_the_old_ones_stay(house: House) -> None:
    device = await house.device("d1")
    address = await house.door(MqttLimits(connections=3))
    async with Peer(address) as a, Peer(address) as b, Peer(address) as c, Peer(address) as d:
        for name, peer in (("a", a), ("b", b), ("c", c)):
            assert (await peer.connect(device, name)).reason == 0
        assert (await d.connect(device, "d")).reason == 0x97
        await d.end()
        for peer in (a, b, c):
            await peer.ping()
        await a.drop()
        await until(lambda: house.gateway.connections == 2, "one is gone")
        async with Peer(address, p.MQTT_3_1_1) as e:
            assert (await e.connect(device, "e")).reason == 0


async def test_d6_an_address_has_its_own_limit(house: House) -> None:
    device = await house.device("d1")
    address = await house.door(MqttLimits(per_address=2, limit_loopback=True))
    async with Peer(address) as a, Peer(address) as b, Peer(address, p.MQTT_3_1_1) as c:
        await a.connect(device, "a")
        await b.connect(device, "b")
        assert (await c.connect(device, "c")).reason == 3
        assert house.gateway.counts["connect_refused_too_many_connections"] == 1


async def test_dribblers_do_not_keep_clients_out(house: House) -> None:
    device = await house.device("d1")
    address = await house.door(MqttLimits(strangers_per_address=20, offer=Offer(connect_within=60)))
    dribblers = [await asyncio.open_connection(*address) for _ in range(20)]
    try:
        for _, writer in dribblers:
            writer.write(b"\x10\x20")
        await asyncio.sleep(1.1)  # only who has had a second to log in is cut for others
        async with Peer(address) as peer:
            assert (await peer.connect(device)).reason == 0
            assert house.gateway.counts["evicted_strangers"] == 1
            await peer.ping()
    finally:
        for _, writer in dribblers:
            writer.close()


async def login(house: House, credential: Credential | str) -> Peer:
    peer = Peer(await house.door())
    await peer.__aenter__()
    assert (await peer.connect(credential)).reason == 0
    return peer


async def test_j6_a_removed_device_is_cut_off_within_seconds(house: House) -> None:
    peer = await login(house, await house.device("d1"))
    await house.devices.remove("iotsphere", "d1")
    assert (await peer.expect(p.Disconnect)).reason == 0x98
    await peer.drop()


async def test_j6_an_expired_token_ends_its_connection() -> None:
    clock = ManualClock(1_790_000_000_000)
    async with open_house(clock=clock) as house:
        peer = await login(house, house.token("s", "publish:iotsphere/#", seconds=60))
        clock.advance(60_000)
        assert (await peer.expect(p.Disconnect)).reason == 0x87
        await peer.end()
        await peer.drop()


async def test_j6_a_revoked_token_ends_its_connection(house: House) -> None:
    token = house.token("s", "subscribe:iotsphere/#")
    peer = await login(house, token)
    await peer.subscribe("iotsphere/#")
    await house.revocations.revoke_token("iotsphere", house.formats.read(token).token_id)
    assert (await peer.expect(p.Disconnect)).reason == 0x98
    await house.say(MINE, 1)
    await peer.end()
    assert [packet for packet in peer.packets if isinstance(packet, p.Publish)] == []
    await peer.drop()


async def test_an_assigned_client_id_is_told(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        assert str((await peer.connect(device, "")).properties.assigned_client_identifier).startswith("auto-")


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_drain_acknowledges_what_is_in_flight_and_says_why(house: House, version: int) -> None:
    device = await house.device("d1")
    address = await house.door()
    async with Peer(address, version) as peer:
        await peer.connect(device)
        await until(lambda: house.log.appended, "the presence is told")
        house.log.open.clear()
        peer.send(message(MINE, b"1", 1))
        await until(lambda: house.log.waiting, "the append begins")
        draining = asyncio.create_task(house.gateway.drain(5))
        await until(lambda: house.gateway.counts["paused_for_leaving"], "the drain begins")
        house.log.open.set()
        assert await peer.expect(p.Ack) == p.Ack(p.PUBACK, 1)
        if version == p.MQTT_5:
            assert (await peer.expect(p.Disconnect)).reason == 0x8B
        await peer.end()
        await draining
        with pytest.raises(ConnectionError):
            await asyncio.open_connection(*address)


async def test_a_drain_gives_up_in_time_when_the_log_does_not_answer(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(), p.MQTT_3_1_1) as peer:
        await peer.connect(device)
        await until(lambda: house.log.appended, "the presence is told")
        house.log.open.clear()
        peer.send(message(MINE, b"1", 1))
        await until(lambda: house.log.waiting, "the append begins")
        await asyncio.wait_for(house.gateway.drain(0.2), 30)
        await house.gateway.close()
        await peer.end()
        assert peer.packets == []
        house.log.open.set()


async def test_a_will_outside_the_grant_is_refused(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        will = p.Will("iotsphere/devices/d2/telemetry", b"1")
        assert (await peer.connect(device, will=will)).reason == 0x87
        await peer.end()


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (Properties(user_properties=(("note", "x" * 60_000),)), 0x97),
        (Properties(user_properties=tuple((f"k{number}", "") for number in range(33))), 0x97),
        (Properties(response_topic="t" * 600), 0x97),
        (Properties(correlation_data=b"c" * 600), 0x97),
        (Properties(content_type="c" * 60_000), 0x97),
        (Properties(user_properties=(("messageId", "x" * 60_000),)), 0x99),
    ],
)
async def test_a_will_has_the_limits_of_a_publication(house: House, block: Properties, reason: int) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        connack = await peer.connect(device, will=p.Will(MINE, b"1", 1, False, block))
        assert connack.reason == reason
        assert connack.properties.reason_string
        await peer.end()
    assert await house.documents.scan("wills") == []
    assert await house.documents.scan("sessions") == []
    counts = {name for name in house.gateway.counts if name.startswith("connect_refused")}
    assert counts == {"connect_refused_payload_too_large" if reason == 0x97 else "connect_refused_schema_violation"}


async def test_properties_of_connect_are_echoed_where_they_must(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        connack = await peer.connect(device, properties=Properties(session_expiry_interval=0xFFFFFFFF))
        assert connack.properties.session_expiry_interval == Offer().max_session_expiry
        assert connack.properties.maximum_qos is None  # 2, since nothing less is said
        assert connack.properties.topic_alias_maximum == 64
        assert connack.properties.shared_subscription_available is None
