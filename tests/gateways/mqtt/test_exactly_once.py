"""QoS 2 through the door: once in the log, and once at the subscriber, whatever ends in between."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.drivers.clock import ManualClock
from iotsphere.entities.channel import Retention
from iotsphere.entities.errors import Conflict
from iotsphere.gateways.mqtt import MqttGateway
from iotsphere.gateways.mqtt.standing import PAGE
from tests.support.waiting import until

from .house import House, open_house
from .peer import Peer, ack

VERSIONS = (p.MQTT_3_1_1, p.MQTT_5)
DUP = p.DUP
ALL = "subscribe:iotsphere/#"
T = "iotsphere/devices/d1/telemetry"
DAY_S = 24 * 3600


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path if request.param == "sqlite" else None) as opened:
        yield opened


def twice(payload: object, packet_id: int, flags: int = 0, **properties: Any) -> p.Publish:
    return p.Publish(T.encode(), json.dumps(payload).encode(), packet_id, 4 | flags, Properties(**properties))


def release(packet_id: int) -> p.Ack:
    return p.Ack(p.PUBREL, packet_id)


def received(packet_id: int) -> p.Ack:
    return p.Ack(p.PUBREC, packet_id)


def complete(packet_id: int) -> p.Ack:
    return p.Ack(p.PUBCOMP, packet_id)


def value(packet: p.Publish) -> Any:
    return json.loads(packet.payload)["payload"]["value"]


async def come(house: House, address: tuple[str, int], version: int = p.MQTT_5, **more: Any) -> Peer:
    """A device with a session that is kept."""
    peer = Peer(address, version)
    await peer.__aenter__()
    kept = Properties(session_expiry_interval=7 * DAY_S, **more) if version == p.MQTT_5 else Properties()
    connack = await peer.connect(house.token("s", ALL, f"publish:{T}/#"), clean_start=False, properties=kept)
    assert connack.reason == 0
    return peer


async def gone(house: House, peer: Peer) -> None:
    await peer.drop()
    await until(lambda: house.gateway.connections == 0, "the session is saved")


async def crash(house: House, peer: Peer) -> tuple[MqttGateway, tuple[str, int]]:
    """Take the door away as kill -9 would: it saves nothing, and another one opens on the same log and documents."""
    await peer.ping()
    crashed = house.doors.pop()
    exactly_once: Any = crashed._door.use.sessions.exactly_once
    exactly_once.keep = never
    house.sessions = type(house.sessions)(house.documents, house.log, house.clock)
    return crashed, await house.door()


async def never(*_: Any) -> None:
    raise Conflict("a process that was killed writes nothing")


async def values(house: House) -> list[Any]:
    return [envelope["payload"]["value"] for envelope in await house.envelopes()]


# -- into the log -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_qos_2_in_is_in_the_log_once_it_has_its_pubrec(house: House, version: int) -> None:
    peer = await come(house, await house.door(), version)
    house.log.open.clear()
    peer.send(twice(1, 7), twice(1, 7, DUP))
    await until(lambda: house.log.waiting == 1, "the append waits")
    await peer.ping()
    assert peer.packets == []
    house.log.open.set()
    assert await peer.expect(p.Ack) == received(7)
    peer.send(twice(1, 7, DUP))
    assert await peer.expect(p.Ack) == received(7)
    peer.send(release(7))
    assert await peer.expect(p.Ack) == complete(7)
    peer.send(twice(1, 7))
    assert await peer.expect(p.Ack) == received(7)
    assert await values(house) == [1, 1]
    await peer.drop()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_message_that_is_sent_again_on_the_next_connection_is_appended_once(house: House, version: int) -> None:
    address = await house.door()
    peer = await come(house, address, version)
    peer.send(twice(1, 1), twice(2, 2))
    await peer.take(p.Ack, 2)
    peer.send(release(2))
    await peer.expect(p.Ack, lambda x: x == complete(2))
    await gone(house, peer)
    peer = await come(house, address, version)
    peer.send(twice(1, 1, DUP), twice(2, 2))  # the first is the old one, the second a new one like the old one
    assert await peer.take(p.Ack, 2) == [received(1), received(2)]
    assert await values(house) == [1, 2, 2]
    await peer.drop()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_message_whose_append_outlives_its_connection_is_appended_once(house: House, version: int) -> None:
    address = await house.door()
    peer = await come(house, address, version)
    house.log.open.clear()
    peer.send(twice(1, 1))
    await until(lambda: house.log.waiting == 1, "the append waits")
    await peer.drop()
    peer = await come(house, address, version)
    peer.send(twice(1, 1, DUP))
    await peer.ping()
    house.log.open.set()
    assert await peer.expect(p.Ack) == received(1)
    assert await values(house) == [1]
    await peer.drop()


@pytest.mark.parametrize("version", VERSIONS)
async def test_after_a_crash_a_message_that_was_appended_is_not_appended_again(house: House, version: int) -> None:
    peer = await come(house, await house.door(), version)
    peer.send(twice(1, 1), twice(2, 2))
    await peer.take(p.Ack, 2)
    crashed, address = await crash(house, peer)
    other = await come(house, address, version)
    other.send(twice(1, 1, DUP), release(2), twice(3, 3, DUP))
    assert (await other.expect(p.Ack)).packet_id in {1, 2}
    assert {(x.kind, x.packet_id) for x in await other.take(p.Ack, 2)} <= {
        (p.PUBREC, 1),
        (p.PUBCOMP, 2),
        (p.PUBREC, 3),
    }
    other.send(twice(2, 2))  # the id was released: the same bytes are a new message
    assert await other.expect(p.Ack) == received(2)
    assert await values(house) == [1, 2, 3, 2]
    await other.drop()
    await peer.drop()
    await crashed.close()


async def test_two_crashes_in_a_row_change_nothing(house: House) -> None:
    peer = await come(house, await house.door())
    peer.send(twice(1, 1))
    await peer.take(p.Ack, 1)
    first, address = await crash(house, peer)
    middle = await come(house, address)
    middle.send(twice(2, 2))
    await middle.take(p.Ack, 1)
    second, address = await crash(house, middle)
    other = await come(house, address)
    other.send(twice(1, 1, DUP), twice(2, 2, DUP), twice(3, 3, DUP))
    assert await other.take(p.Ack, 3) == [received(1), received(2), received(3)]
    assert sorted(await values(house)) == [1, 2, 3]
    assert house.gateway.counts["looked_up"] == 3
    for each in (other, middle, peer):
        await each.drop()
    await second.close()
    await first.close()


async def test_an_id_of_the_senders_own_keeps_its_meaning(house: House) -> None:
    own = "018f0000-0000-7000-8000-000000000001"
    address = await house.door()
    peer = await come(house, address)
    peer.send(twice(1, 1, user_properties=(("messageId", own),)))
    await peer.expect(p.Ack)
    peer.send(release(1))
    await peer.expect(p.Ack)
    peer.send(twice(1, 1, user_properties=(("messageId", own),)))
    await peer.expect(p.Ack)
    assert [each["metadata"]["messageId"] for each in await house.envelopes()] == [own]
    await peer.drop()


async def test_a_refusal_frees_the_id_and_is_one_dead_letter() -> None:
    async with open_house() as house:
        peer = await come(house, await house.door())
        for _ in range(2):  # the same bytes under the same id, but two messages
            peer.send(p.Publish(T.encode(), b"{broken", 1, 4))
            answer = await peer.expect(p.Ack)
            assert (answer.kind, answer.packet_id, answer.reason) == (p.PUBREC, 1, 0x99)
        assert len(await house.dead_letters()) == 2
        await peer.drop()


async def test_over_3_1_1_a_refused_message_is_acknowledged_and_released_like_any_other() -> None:
    async with open_house() as house:
        device = await house.device("d1")
        async with Peer(await house.door(), p.MQTT_3_1_1) as peer:
            await peer.connect(device)
            peer.send(p.Publish(T.encode(), b"{broken", 1, 4), p.Publish(T.encode(), b"{broken", 1, 12))
            assert await peer.expect(p.Ack) == received(1)
            peer.send(release(1))
            assert await peer.expect(p.Ack) == complete(1)
            assert len(await house.dead_letters()) == 1


async def test_without_a_session_that_is_kept_nothing_is_written_down() -> None:
    async with open_house() as house:
        device = await house.device("d1")
        async with Peer(await house.door()) as peer:
            await peer.connect(device)
            for number in range(1, 4):
                peer.send(twice(number, 1))
                assert await peer.expect(p.Ack) == received(1)
                peer.send(release(1))
                assert await peer.expect(p.Ack) == complete(1)
            assert await values(house) == [1, 2, 3]
            assert house.gateway.counts["records_written"] == 0
            assert await house.documents.scan("exactly-once") == []


async def test_an_oversized_message_at_qos_2_is_one_dead_letter() -> None:
    async with open_house() as house:
        device = await house.device("d1")
        async with Peer(await house.door()) as peer:
            await peer.connect(device)
            peer.send(p.Publish(T.encode(), b"x" * 400_000, 1, 4))
            answer = await peer.expect(p.Ack)
            assert (answer.kind, answer.reason) == (p.PUBREC, 0x97)
            assert [each["reason"] for each in await house.dead_letters()] == ["payload_too_large"]


# -- out of the log ---------------------------------------------------------------------------------------------------


async def listen(peer: Peer) -> None:
    assert await peer.subscribe(p.Request(T, 2)) == (2,)


@pytest.mark.parametrize("version", VERSIONS)
async def test_qos_2_out_goes_on_at_the_step_where_it_was(house: House, version: int) -> None:
    address = await house.door()
    peer = await come(house, address, version)
    await listen(peer)
    for number in range(1, 5):
        await house.say(T, number)
    got = await peer.take(p.Publish, 4)
    assert [(value(x), x.qos) for x in got] == [(1, 2), (2, 2), (3, 2), (4, 2)]
    ids = [x.packet_id for x in got]
    peer.send(received(ids[0]), received(ids[1]))
    assert await peer.take(p.Ack, 2) == [release(ids[0]), release(ids[1])]
    peer.send(complete(ids[0]))
    await peer.ping()
    await gone(house, peer)
    await house.say(T, 5)
    peer = await come(house, address, version)
    assert await peer.expect(p.Ack) == release(ids[1])
    again = await peer.take(p.Publish, 3)
    assert [(value(x), x.packet_id, bool(x.flags & DUP)) for x in again] == [
        (3, ids[2], True),
        (4, ids[3], True),
        (5, again[2].packet_id, False),
    ]
    assert again[2].packet_id not in ids[1:]
    await peer.drop()


@pytest.mark.parametrize("version", VERSIONS)
async def test_after_a_crash_qos_2_goes_on_at_the_step_where_it_was(house: House, version: int) -> None:
    peer = await come(house, await house.door(), version)
    await listen(peer)
    for number in range(1, 5):
        await house.say(T, number)
    got = await peer.take(p.Publish, 4)
    ids = [x.packet_id for x in got]
    peer.send(received(ids[0]), received(ids[1]), received(ids[2]))
    assert await peer.take(p.Ack, 3) == [release(each) for each in ids[:3]]
    peer.send(complete(ids[0]))
    crashed, address = await crash(house, peer)
    await house.say(T, 5)
    other = await come(house, address, version)
    releases = await other.take(p.Ack, 3)  # that the first was complete is not on record, and does no harm
    assert releases == [release(each) for each in ids[:3]]
    again = await other.take(p.Publish, 2)
    assert [(value(x), x.packet_id, bool(x.flags & DUP)) for x in again] == [
        (4, ids[3], True),
        (5, again[1].packet_id, False),
    ]
    other.send(*(complete(each) for each in ids[:3]), received(ids[3]), received(again[1].packet_id))
    assert await other.take(p.Ack, 2) == [release(ids[3]), release(again[1].packet_id)]
    await other.ping()
    assert other.packets == []
    await other.drop()
    await peer.drop()
    await crashed.close()


async def test_a_crash_before_the_record_sends_nothing_twice_and_nothing_never(house: House) -> None:
    """QoS 1 and QoS 2 mixed: what is not on record has not left, and what has left is."""
    peer = await come(house, await house.door())
    await peer.subscribe(p.Request(T, 2), p.Request(f"{T}/a", 1))
    await house.say(T, 1)
    await house.say(f"{T}/a", 2)
    await house.say(T, 3)
    first = await peer.take(p.Publish, 3)
    assert [(value(x), x.qos) for x in first] == [(1, 2), (2, 1), (3, 2)]
    peer.send(received(first[0].packet_id))
    await peer.expect(p.Ack)
    peer.send(ack(first[1].packet_id))
    crashed, address = await crash(house, peer)
    other = await come(house, address)
    again = await other.take(p.Publish, 2)
    assert [(value(x), x.packet_id) for x in again] == [(2, first[1].packet_id), (3, first[2].packet_id)]
    assert await other.expect(p.Ack) == release(first[0].packet_id)
    await other.drop()
    await peer.drop()
    await crashed.close()


@pytest.mark.parametrize("qos", [1, 2])
async def test_retained_values_that_were_under_way_come_again(house: House, qos: int) -> None:
    address = await house.door()
    for number in range(1, 4):
        await house.say(f"{T}/m{number}", number, retain=True)
    peer = await come(house, address, receive_maximum=2)
    await peer.subscribe(p.Request(f"{T}/#", qos))
    first = await peer.take(p.Publish, 2)
    await gone(house, peer)
    peer = await come(house, address, receive_maximum=2)
    again = await peer.take(p.Publish, 2)
    assert [(x.topic, x.packet_id, x.flags) for x in again] == [(x.topic, x.packet_id, x.flags | DUP) for x in first]
    for each in again:
        peer.send(ack(each.packet_id) if qos == 1 else received(each.packet_id))
        if qos == 2:
            await peer.expect(p.Ack)
            peer.send(complete(each.packet_id))
    last = await peer.expect(p.Publish)
    assert ({value(x) for x in first} | {value(last)}, last.retain, last.flags & DUP) == ({1, 2, 3}, True, 0)
    await peer.drop()


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_client_that_takes_over_and_never_reads_has_few_retained_values_looked_up(
    house: House, qos: int
) -> None:
    """Hundreds of them wait in its session: each connection looks up what it takes, and none is lost or comes twice."""
    address = await house.door()
    for number in range(300):
        await house.say(f"{T}/m{number}", number, retain=True)
    looked_up: list[int] = []
    entries = house.log.entries

    async def counted(places: Sequence[Any]) -> Any:
        looked_up.append(len(places))
        return await entries(places)

    house.log.entries = counted
    peer = await come(house, address, receive_maximum=1)
    await peer.subscribe(p.Request(f"{T}/#", qos))
    first = await peer.expect(p.Publish)
    for _ in range(4):
        before, peer = peer, await come(house, address, receive_maximum=1)
        await before.end()
        await before.drop()
        (again,) = await peer.take(p.Publish, 1)
        assert (again.topic, again.packet_id, again.flags) == (first.topic, first.packet_id, first.flags | DUP)
        await peer.ping()
    assert looked_up == [PAGE] * 4
    got = [again]
    while True:
        packet_id = got[-1].packet_id
        peer.send(ack(packet_id) if qos == 1 else received(packet_id))
        if qos == 2:
            assert await peer.expect(p.Ack) == release(packet_id)
            peer.send(complete(packet_id))
        if len(got) == 300:
            break
        got.append(await peer.expect(p.Publish))
    assert sorted(map(value, got)) == list(range(300))
    assert all(each.retain for each in got)
    assert not any(each.flags & DUP for each in got[1:])
    assert sum(looked_up) == 3 * PAGE + 300
    await house.say(f"{T}/m0", 300)
    assert value(await peer.expect(p.Publish)) == 300
    await peer.drop()


async def test_a_retained_value_that_the_log_has_let_go_is_passed_over(house: House) -> None:
    address = await house.door()
    for number in range(3):
        await house.say(f"{T}/m{number}", number, retain=True)
    peer = await come(house, address, receive_maximum=1)
    await peer.subscribe(p.Request(f"{T}/#", 2))
    first = await peer.expect(p.Publish)
    await gone(house, peer)
    entries = house.log.entries
    house.log.entries = lambda places: entries([(places[0][0], places[0][1]._replace(offset=99)), *places[1:]])
    peer = await come(house, address, receive_maximum=1)
    assert await peer.expect(p.Ack) == release(first.packet_id)  # its id must not stay taken at the client
    peer.send(complete(first.packet_id))
    assert not (second := await peer.expect(p.Publish)).flags & DUP
    assert value(second) != value(first)
    await peer.drop()


async def test_the_window_counts_qos_2_until_pubcomp(house: House) -> None:
    peer = await come(house, await house.door(), receive_maximum=1)
    await listen(peer)
    await house.say(T, 1)
    await house.say(T, 2)
    first = await peer.expect(p.Publish)
    peer.send(received(first.packet_id))
    assert await peer.expect(p.Ack) == release(first.packet_id)
    await peer.ping()
    assert peer.packets == []
    peer.send(complete(first.packet_id))
    assert value(await peer.expect(p.Publish)) == 2
    await peer.drop()


async def test_a_client_that_refuses_a_message_at_qos_2_is_counted(house: House) -> None:
    peer = await come(house, await house.door())
    await listen(peer)
    await house.say(T, 1)
    first = await peer.expect(p.Publish)
    peer.send(p.Ack(p.PUBREC, first.packet_id, 0x97))
    await peer.ping()
    assert house.gateway.counts["refused_by_client"] == 1
    assert peer.packets == []
    await peer.drop()


async def test_what_cannot_be_sent_again_lets_its_id_go(house: House) -> None:
    """The client's grants are gone; what it had of the message it must not keep for ever under an id that is used again."""
    address = await house.door()
    peer = await come(house, address)
    await listen(peer)
    await house.say(T, 1)
    first = await peer.expect(p.Publish)
    await gone(house, peer)
    async with Peer(address) as narrow:
        kept = Properties(session_expiry_interval=600)
        token = house.token("s", "subscribe:iotsphere/system/#")
        assert (await narrow.connect(token, clean_start=False, properties=kept)).session_present
        assert await narrow.expect(p.Ack) == release(first.packet_id)
        narrow.send(complete(first.packet_id))
        await narrow.ping()
        assert narrow.packets == []


async def test_what_retention_took_lets_its_id_go(house: House) -> None:
    address = await house.door()
    peer = await come(house, address)
    await listen(peer)
    await house.say(T, 1)
    first = await peer.expect(p.Publish)
    await gone(house, peer)
    partition = (await house.entries())[0].record.partition
    await house.log.retain(partition, Retention(0, 0, 1 << 60, 0), house.clock.now() + 1)
    peer = await come(house, address)
    await house.say(T, 2)
    second = await peer.expect(p.Publish)
    assert second.packet_id != first.packet_id
    assert await peer.expect(p.Ack, lambda x: x.kind == p.PUBREL) == release(first.packet_id)
    await peer.drop()


async def test_what_was_begun_at_qos_2_does_not_expire() -> None:
    clock = ManualClock(1_790_000_000_000)
    async with open_house(clock=clock) as house:
        address = await house.door()
        peer = await come(house, address)
        await listen(peer)
        await house.say(T, 1, expires_at=clock.now() + 60_000)
        first = await peer.expect(p.Publish)
        await gone(house, peer)
        await house.say(T, 2, expires_at=clock.now() + 60_000)
        clock.advance(DAY_S * 1000)
        peer = await come(house, address)
        again = await peer.expect(p.Publish)
        assert (value(again), again.packet_id, again.flags) == (1, first.packet_id, first.flags | DUP)
        assert again.properties.message_expiry_interval == 1
        await peer.ping()
        assert peer.packets == []
        await peer.drop()


# -- after a long time ------------------------------------------------------------------------------------------------


async def test_24_hours_later_nothing_is_repeated_and_nothing_is_missing() -> None:
    clock = ManualClock(1_790_000_000_000)
    async with open_house(clock=clock) as house:
        peer = await come(house, await house.door())
        await listen(peer)
        await house.say(T, "a")
        await house.say(T, "b")
        got = await peer.take(p.Publish, 2)
        peer.send(received(got[0].packet_id))
        await peer.expect(p.Ack)
        other_topic = f"{T}/x".encode()  # or their delivery would put them on record
        peer.send(*(each._replace(topic=other_topic) for each in (twice(1, 1), twice(2, 2))))
        await peer.take(p.Ack, 2)
        crashed, address = await crash(house, peer)
        clock.advance(DAY_S * 1000)
        for number in range(3, 53):
            await house.say(T, number)
        other = await come(house, address)
        assert await other.expect(p.Ack) == release(got[0].packet_id)
        backlog = await other.take(p.Publish, 51)
        assert [value(x) for x in backlog] == ["b", *range(3, 53)]
        assert backlog[0].packet_id == got[1].packet_id
        again = twice(1, 1, DUP), twice(99, 3, DUP), twice(2, 2, DUP)
        other.send(*(each._replace(topic=other_topic) for each in again))
        assert await other.take(p.Ack, 3) == [received(1), received(3), received(2)]
        assert (await values(house)).count(1) == (await values(house)).count(2) == 1
        assert (await values(house))[-1] == 99
        assert house.gateway.counts["looked_up"] == 3
        await other.drop()
        await peer.drop()
        await crashed.close()


async def test_24_hours_offline_bring_what_has_not_expired_and_end_what_has() -> None:
    clock = ManualClock(1_790_000_000_000)
    async with open_house(clock=clock) as house:
        address = await house.door()
        peer = await come(house, address)
        await listen(peer)
        await gone(house, peer)
        await house.say(T, 1, expires_at=clock.now() + 3600 * 1000)
        await house.say(T, 2)
        await house.say(T, 3, expires_at=clock.now() + 2 * DAY_S * 1000)
        clock.advance(DAY_S * 1000)
        assert await house.sessions.expire() == 0
        peer = await come(house, address)
        got = await peer.take(p.Publish, 2)
        assert [(value(x), x.properties.message_expiry_interval) for x in got] == [(2, None), (3, DAY_S)]
        await gone(house, peer)
        progress = await house.log.committed("iotsphere/mqtt/service/s/c1")
        assert sum(part.tally.expired for part in progress.values()) == 1
        clock.advance(7 * DAY_S * 1000 - 1)
        assert await house.sessions.expire() == 0
        clock.advance(1)
        assert await house.sessions.expire() == 1
        assert await house.documents.scan("exactly-once") == []
        assert await house.log.readers("iotsphere") == ["iotsphere/last-values"]
