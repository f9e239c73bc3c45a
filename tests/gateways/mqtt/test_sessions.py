from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.life import Offer
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.entities.channel import Retention
from iotsphere.gateways.mqtt import MqttLimits
from tests.support.waiting import until

from .house import House, open_house
from .peer import Peer, ack

VERSIONS = (p.MQTT_3_1_1, p.MQTT_5)
ALL = "subscribe:iotsphere/#"
T = "iotsphere/devices/d1/telemetry"
READER = "iotsphere/mqtt/service/s/c1"


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path if request.param == "sqlite" else None) as opened:
        yield opened


def value(packet: p.Publish) -> Any:
    return json.loads(packet.payload)["payload"]["value"]


async def come(house: House, address: tuple[str, int], version: int, **more: Any) -> tuple[Peer, bool]:
    """Connect with a persistent session; tells whether there was one."""
    peer = Peer(address, version)
    await peer.__aenter__()
    kept = Properties(session_expiry_interval=600, **more) if version == p.MQTT_5 else Properties()
    connack = await peer.connect(house.token("s", ALL), clean_start=False, properties=kept)
    assert connack.reason == 0
    return peer, connack.session_present


async def leave(house: House, peer: Peer) -> None:
    peer.send(p.Disconnect())
    await peer.end()
    await peer.drop()
    await until(lambda: house.gateway.connections == 0, "the session is saved")


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_session_that_is_kept_goes_on_with_what_was_missed(house: House, version: int) -> None:
    address = await house.door()
    peer, present = await come(house, address, version)
    assert not present
    assert await peer.subscribe("iotsphere/devices/+/telemetry/#") == (1,)
    await house.say(T, 1)
    peer.send(ack((await peer.expect(p.Publish)).packet_id))
    await leave(house, peer)
    for number in range(2, 700):
        await house.say(T, number)
    peer, present = await come(house, address, version)
    assert present
    got: list[p.Publish] = []
    while len(got) < 698:
        (packet,) = await peer.take(p.Publish, 1)
        got.append(packet)
        peer.send(ack(packet.packet_id))
    assert [value(x) for x in got] == list(range(2, 700))
    assert not any(x.flags & p.DUP for x in got)
    await house.say(T, 700)
    assert value(await peer.expect(p.Publish)) == 700
    await peer.drop()


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_was_under_way_is_sent_again_under_its_id_and_what_was_acknowledged_is_not(
    house: House, version: int
) -> None:
    address = await house.door()
    peer, _ = await come(house, address, version)
    await peer.subscribe("iotsphere/#")
    for number in range(1, 7):
        await house.say(T, number)
    first = await peer.take(p.Publish, 6)
    ids = {value(x): x.packet_id for x in first}
    peer.send(ack(ids[2]), ack(ids[4]), ack(ids[6]))
    await peer.ping()
    await peer.drop()
    await until(lambda: house.gateway.connections == 0, "the session is saved")
    await house.say(T, 7)
    peer, present = await come(house, address, version)
    assert present
    again = await peer.take(p.Publish, 4)
    assert [(value(x), x.packet_id, bool(x.flags & p.DUP)) for x in again] == [
        (1, ids[1], True),
        (3, ids[3], True),
        (5, ids[5], True),
        (7, again[3].packet_id, False),
    ]
    assert again[3].packet_id not in {ids[1], ids[3], ids[5]}
    assert house.gateway.counts["redelivered"] == 3
    await peer.drop()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_session_survives_a_restart_of_the_gateway(house: House, version: int) -> None:
    peer, _ = await come(house, await house.door(), version)
    await peer.subscribe("iotsphere/#")
    await house.say(T, 1)
    (packet,) = await peer.take(p.Publish, 1)
    await house.restart()
    await peer.end()
    await peer.drop()
    address = await house.door()
    await house.say(T, 2)
    peer, present = await come(house, address, version)
    assert present
    got = await peer.take(p.Publish, 2)
    assert [(value(x), x.packet_id) for x in got] == [(1, packet.packet_id), (2, got[1].packet_id)]
    await peer.drop()


async def test_after_a_crash_a_session_repeats_at_most_what_was_not_committed(house: House) -> None:
    """The door is lost without a goodbye; another one starts on the same log and documents."""
    peer, _ = await come(house, await house.door(), p.MQTT_5)
    await peer.subscribe("iotsphere/#")
    for number in range(5):
        await house.say(T, number)
    got = await peer.take(p.Publish, 5)
    peer.send(*(ack(x.packet_id) for x in got[:3]))
    await peer.ping()
    (visit,) = house.gateway._door.online.values()
    await visit.checkpoint()
    progress = await house.log.committed(READER)
    assert sum(part.position.offset for p_, part in progress.items() if p_.channel == "telemetry") == 3
    crashed = house.doors.pop()
    address = await house.door()
    other, present = await come(house, address, p.MQTT_5)
    assert present
    assert [value(x) for x in await other.take(p.Publish, 2)] == [3, 4]
    assert await house.sessions.recover() == 1  # it was taken over, so it is the new door's to recover
    await other.drop()
    await peer.drop()
    await crashed.close()


async def test_a_session_that_another_process_has_taken_over_is_left_alone(house: House) -> None:
    address = await house.door()
    peer, _ = await come(house, address, p.MQTT_5)
    await peer.subscribe("iotsphere/#")
    first = house.gateway
    other, present = await come(house, await house.door(), p.MQTT_5)
    assert present
    peer.send(p.Subscribe(7, (p.Request(T, 1),)))
    assert (await peer.expect(p.Disconnect)).reason == 0x8E
    await peer.end()
    await until(lambda: first.connections == 0, "the old connection is gone")
    await other.subscribe(T)
    await house.say(T, 1)
    await other.expect(p.Publish)
    await other.drop()
    await peer.drop()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_clean_start_ends_the_old_session(house: House, version: int) -> None:
    address = await house.door()
    peer, _ = await come(house, address, version)
    await peer.subscribe("iotsphere/#")
    await leave(house, peer)
    assert READER in await house.log.readers("iotsphere")
    async with Peer(address, version) as clean:
        assert (await clean.connect(house.token("s", ALL), clean_start=True)).session_present is False
        assert READER not in await house.log.readers("iotsphere")
    await until(lambda: house.gateway.connections == 0, "it is gone")
    peer, present = await come(house, address, version)
    assert not present
    await house.say(T, 1)
    await peer.ping()
    assert peer.packets == []
    await peer.drop()


async def test_without_an_expiry_a_session_ends_with_its_connection(house: House) -> None:
    address = await house.door()
    for _ in range(2):
        async with Peer(address) as peer:
            assert (await peer.connect(house.token("s", ALL), clean_start=False)).session_present is False
            await peer.subscribe("iotsphere/#")
            assert await house.log.readers("iotsphere") == ["iotsphere/last-values"]
        await until(lambda: house.gateway.connections == 0, "it is gone")


async def test_a_goodbye_can_end_a_session_that_was_to_be_kept(house: House) -> None:
    address = await house.door()
    peer, _ = await come(house, address, p.MQTT_5)
    await peer.subscribe("iotsphere/#")
    peer.send(p.Disconnect(0, Properties(session_expiry_interval=0)))
    await peer.end()
    await peer.drop()
    await until(lambda: house.gateway.connections == 0, "it is gone")
    assert READER not in await house.log.readers("iotsphere")
    peer, present = await come(house, address, p.MQTT_5)
    assert not present
    await peer.drop()


async def test_an_expired_session_is_forgotten_by_the_log(house: House) -> None:
    address = await house.door(MqttLimits(offer=Offer(max_session_expiry=1)))
    peer, _ = await come(house, address, p.MQTT_5)
    await peer.subscribe("iotsphere/#")
    await leave(house, peer)
    assert READER in await house.log.readers("iotsphere")
    left = house.clock.now()
    await until(lambda: house.clock.now() > left + 1_000, "its time is over")
    assert await house.sessions.expire() == 1
    assert READER not in await house.log.readers("iotsphere")
    peer, present = await come(house, address, p.MQTT_5)
    assert not present
    await peer.drop()


async def test_retention_waits_for_a_session_and_says_what_it_lost_past_the_cap(house: House) -> None:
    device = await house.device("d1")
    address = await house.door()
    session: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval=600)}
    async with Peer(address) as peer:
        await peer.connect(device, **session)
        await peer.subscribe(T, "iotsphere/devices/d1/errors")
    await until(lambda: house.gateway.connections == 0, "it is gone")
    for number in range(10):
        await house.say(T, number)
    partition = (await house.entries())[0].record.partition
    now = house.clock.now() + 1
    assert await house.log.retain(partition, Retention(0, 0), now) is None
    assert len(await house.entries()) == 10
    await house.log.retain(partition, Retention(0, 0, 1 << 60, 3 * len((await house.entries())[0].record.body)), now)
    left = len(await house.entries())
    assert 0 < left < 10
    async with Peer(address) as peer:
        assert (await peer.connect(device, **session)).session_present
        got = await peer.take(p.Publish, left, lambda x: x.topic.decode() == T)
        assert [value(x) for x in got] == list(range(10 - left, 10))
        notice = await peer.expect(p.Publish, lambda x: x.topic.decode().endswith("/errors"))
        payload = json.loads(notice.payload)["payload"]
        assert payload["error"] == "messages_missed"
        assert (payload["missed"]["first"], payload["missed"]["count"]) == (1, 10 - left)
        assert house.gateway.counts["missed"] == 10 - left
        peer.send(*(ack(x.packet_id) for x in got), ack(notice.packet_id))
        await peer.ping()
    await until(lambda: house.gateway.connections == 0, "it is gone")
    progress = (await house.log.committed("iotsphere/mqtt/device/d1/c1"))[partition]
    assert progress.position.offset - progress.start.offset == sum(progress.tally)
    assert progress.tally.lost == 10 - left


async def test_the_tally_of_a_session_covers_every_message_that_it_passed(house: House) -> None:
    address = await house.door()
    peer, _ = await come(house, address, p.MQTT_5, receive_maximum=1)
    await peer.subscribe(T)
    await house.say(T, 1)
    expires_at = house.clock.now() + 500
    await house.say(T, 2, expires_at=expires_at)
    await house.say("iotsphere/devices/d1/telemetry/other", 3)
    await house.say(T, 4)
    first = await peer.expect(p.Publish)
    await until(lambda: house.clock.now() > expires_at, "the second has expired")
    peer.send(ack(first.packet_id))
    peer.send(ack((await peer.expect(p.Publish)).packet_id))
    await peer.ping()
    await leave(house, peer)
    progress = await house.log.committed(READER)
    tally = [part.tally for part in progress.values() if sum(part.tally)]
    assert [(each.applied, each.expired) for each in tally] == [(3, 1)]
    for part in progress.values():
        assert part.position.offset - part.start.offset == sum(part.tally)


async def test_filters_that_are_no_longer_granted_are_gone_when_the_client_returns(house: House) -> None:
    address = await house.door()
    peer, _ = await come(house, address, p.MQTT_5)
    await peer.subscribe(T, "iotsphere/system/alerts")
    await leave(house, peer)
    async with Peer(address) as narrow:
        token = house.token("s", "subscribe:iotsphere/system/#")
        kept = Properties(session_expiry_interval=600)
        assert (await narrow.connect(token, clean_start=False, properties=kept)).session_present
        await house.say(T, 1)
        await house.say("iotsphere/system/alerts", 2)
        assert value(await narrow.expect(p.Publish)) == 2
        await narrow.ping()
        assert narrow.packets == []
        assert house.gateway.counts["filters_withdrawn"] == 1


async def test_unsubscribing_lets_retention_go_on(house: House) -> None:
    address = await house.door()
    peer, _ = await come(house, address, p.MQTT_5)
    await peer.subscribe(T, "iotsphere/system/alerts")
    peer.send(p.Unsubscribe(3, (T,)))
    await peer.expect(p.UnsubAck)
    assert {partition.channel for partition in await house.log.committed(READER)} == {"system"}
    peer.send(p.Unsubscribe(4, ("iotsphere/system/alerts",)))
    await peer.expect(p.UnsubAck)
    assert READER not in await house.log.readers("iotsphere")
    await peer.drop()


async def test_options_of_a_filter_are_kept(house: House) -> None:
    address = await house.door()
    peer, _ = await come(house, address, p.MQTT_5)
    options = p.Request(T, 0, no_local=False, retain_as_published=True)
    peer.send(p.Subscribe(1, (options,), Properties(subscription_identifiers=(42,))))
    await peer.expect(p.SubAck)
    await leave(house, peer)
    await house.say(T, 1, retain=True)
    peer, _ = await come(house, address, p.MQTT_5)
    got = await peer.expect(p.Publish)
    assert (got.qos, got.retain, got.properties.subscription_identifiers) == (0, True, (42,))
    await peer.drop()
