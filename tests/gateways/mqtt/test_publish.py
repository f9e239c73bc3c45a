from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator

import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.codec import Limits
from iotsphere.adapters.mqtt.life import Offer
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.entities.errors import LogFull, LogUnavailable
from iotsphere.gateways.mqtt import MqttLimits
from iotsphere.use_cases.access.rate_limit import Rate, RateLimit
from tests.support.waiting import until

from .house import House, open_house
from .peer import Peer, message

VERSIONS = (p.MQTT_3_1_1, p.MQTT_5)
MINE = "iotsphere/devices/d1/telemetry/temperature"
ERRORS = "iotsphere/devices/d1/errors"


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


async def told(house: House) -> list[dict[str, object]]:
    return [e["payload"] for e in await house.envelopes("system") if e["metadata"]["topic"] == ERRORS]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_message_is_in_the_log_when_it_is_acknowledged(house: House, version: int) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(), version) as peer:
        assert (await peer.connect(device)).reason == 0
        peer.send(message(MINE, b"21.5", 7))
        assert await peer.expect(p.Ack) == p.Ack(p.PUBACK, 7)
        (envelope,) = await house.envelopes()
        assert envelope["metadata"]["topic"] == MINE
        assert envelope["metadata"]["source"] == "d1"
        assert envelope["payload"] == {"value": 21.5}


@pytest.mark.parametrize("version", VERSIONS)
async def test_b01_puback_never_leaves_before_the_append_returned(house: House, version: int) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(), version) as peer:
        await peer.connect(device)
        await until(lambda: house.log.appended, "the presence is told")
        before = house.log.appended
        house.log.open.clear()
        peer.send(*(message(MINE, b"%d" % i, i) for i in range(1, 101)))
        await until(lambda: house.log.waiting, "the append begins")
        await peer.ping()
        assert peer.packets == []
        assert house.log.appended == before
        house.log.open.set()
        assert await peer.take(p.Ack, 100) == [p.Ack(p.PUBACK, i) for i in range(1, 101)]
        assert [e["payload"]["value"] for e in await house.envelopes()] == list(range(1, 101))


async def test_what_arrives_during_an_append_is_one_batch_with_joined_answers(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        await peer.connect(device)
        await until(lambda: house.log.appended, "the presence is told")
        house.log.open.clear()
        batches = house.publish.batches
        for i in range(1, 301):
            peer.send(message(MINE, b"1", i))
        await peer.ping()
        house.log.open.set()
        await peer.take(p.Ack, 300)
        assert house.publish.batches - batches <= 3


@pytest.mark.parametrize("version", VERSIONS)
async def test_messages_at_qos_0_are_in_the_log_too(house: House, version: int) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(), version) as peer:
        await peer.connect(device)
        peer.send(message(MINE, b"1"), message(MINE, b"2", 1), message(MINE, b"3"))
        await peer.expect(p.Ack)
        await until(lambda: house.gateway.counts["submitted"] == 3, "all three are submitted")
        assert [e["payload"]["value"] for e in await house.envelopes()] == [1, 2, 3]


async def test_what_is_sent_right_before_a_goodbye_is_not_lost(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(), p.MQTT_3_1_1) as peer:
        await peer.connect(device)
        peer.send(message(MINE, b"1", 1), message(MINE, b"2"), p.Disconnect())
        await peer.end()
    await until(lambda: house.gateway.connections == 0, "the connection is gone")
    assert [e["payload"]["value"] for e in await house.envelopes()] == [1, 2]


async def test_properties_reach_the_metadata(house: House) -> None:
    device = await house.device("d1")
    ids = ("0191b0a0-0000-7000-8000-000000000001", "0191b0a0-0000-7000-8000-000000000002")
    block = Properties(
        user_properties=(("site", "x"), ("messageId", ids[0])),
        correlation_data=ids[1].encode(),
        content_type="application/json",
        message_expiry_interval=60,
    )
    async with Peer(await house.door()) as peer:
        await peer.connect(device)
        for number in (1, 2):  # the second is a repetition, as after a lost acknowledgement
            peer.send(p.Publish(MINE.encode(), b'{"value":1}', number, 2, block))
            assert (await peer.expect(p.Ack)).reason == 0
    (envelope,) = await house.envelopes()
    metadata = envelope["metadata"]
    assert (metadata["messageId"], metadata["correlationId"]) == ids
    assert metadata["contentType"] == "application/json"
    assert metadata["expiresAt"] > metadata["timestamp"]


REFUSED = {
    "another's topic": ("iotsphere/devices/d2/telemetry", b"1", "acl_denied", 0x87),
    "desired shadow": ("iotsphere/devices/d1/shadow/desired", b"{}", "acl_denied", 0x87),
    "system": ("iotsphere/system/alerts", b"{}", "acl_denied", 0x87),
    "another domain": ("other/devices/d1/telemetry", b"1", "acl_denied", 0x87),
    "no such domain": ("nowhere/devices/d1/telemetry", b"1", "acl_denied", 0x87),
    "outside the space": ("tele/d1/SENSOR", b"1", "topic_invalid", 0x90),
    "leading slash": ("/iotsphere/devices/d1/telemetry", b"1", "topic_invalid", 0x90),
    "too long": ("iotsphere/" + "x" * 600, b"1", "topic_too_long", 0x90),
    "no JSON": (MINE, b"21,5", "payload_not_json", 0x99),
    "no UTF-8": (MINE, b'{"a":"\xff"}', "payload_not_utf8", 0x99),
    "duplicate key": (MINE, b'{"a":1,"a":2}', "json_duplicate_key", 0x99),
    "too large": (MINE, b'"' + b"x" * 262_143 + b'"', "payload_too_large", 0x97),
    "wrong envelope topic": (
        MINE,
        b'{"metadata":{"topic":"iotsphere/devices/d2/telemetry"},"payload":{}}',
        "topic_mismatch",
        0x90,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a3_a_refusal_is_one_dead_letter_and_a_reason_that_the_client_sees(house: House, name: str) -> None:
    topic, payload, reason, code = REFUSED[name]
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        await peer.connect(device)
        peer.send(message(MINE, b"1", 1), message(topic, payload, 2), message(MINE, b"3", 3))
        answers = await peer.take(p.Ack, 3)
        assert [(answer.packet_id, answer.reason) for answer in answers] == [(1, 0), (2, code), (3, 0)]
        assert answers[1].properties.reason_string
        (letter,) = await house.dead_letters()
        assert (letter["reason"], letter["stage"], letter["source"]) == (reason, "ingress", "d1")
        assert letter["sha256"] == hashlib.sha256(payload).hexdigest()
        assert house.gateway.counts[f"refused_{reason}"] == 1
        assert [e["payload"]["value"] for e in await house.envelopes()] == [1, 3]
        assert await house.envelopes(domain="other") == []


async def test_a_payload_refused_over_3_1_1_is_acknowledged_and_told_on_the_errors_topic(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(), p.MQTT_3_1_1) as peer:
        await peer.connect(device)
        assert await peer.subscribe(ERRORS) == (1,)
        peer.send(message(MINE, b"{", 5), message(MINE, b"1", 6))
        assert [a.packet_id for a in await peer.take(p.Ack, 2)] == [5, 6]
        notice = json.loads((await peer.expect(p.Publish)).payload)
        assert notice["payload"]["error"] == "payload_not_json"
        assert notice["payload"]["topic"] == MINE
        assert notice["payload"]["packetId"] == 5
        assert notice["payload"]["detail"]
        assert len(await house.dead_letters()) == 1


async def test_a_denial_closes_a_3_1_1_connection_behind_its_dead_letter(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(), p.MQTT_3_1_1) as peer:
        await peer.connect(device)
        peer.send(message(MINE, b"1", 1), message("iotsphere/devices/d2/telemetry", b"2", 2), message(MINE, b"3", 3))
        await peer.end()
        assert [a for a in peer.packets if isinstance(a, p.Ack)] == [p.Ack(p.PUBACK, 1)]
    assert [letter["reason"] for letter in await house.dead_letters()] == ["acl_denied"]
    assert house.gateway.counts["closed_not_authorized"] == 1
    assert [e["payload"]["value"] for e in await house.envelopes()] == [1]


async def test_by_setting_a_denial_over_3_1_1_is_told_on_the_errors_topic_instead(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(MqttLimits(close_on_denial=False)), p.MQTT_3_1_1) as peer:
        await peer.connect(device)
        peer.send(message("iotsphere/devices/d2/telemetry", b"2", 2), message(MINE, b"3", 3))
        assert [a.packet_id for a in await peer.take(p.Ack, 2)] == [2, 3]
        assert [notice["error"] for notice in await told(house)] == ["acl_denied"]


async def test_a_refusal_at_qos_0_is_told_on_the_errors_topic(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        await peer.connect(device)
        peer.send(message(MINE, b"{"), message(MINE, b"1", 1))
        await peer.expect(p.Ack)
        assert [notice["error"] for notice in await told(house)] == ["payload_not_json"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a24_large_payloads_pass_by_and_the_next_message_is_stored(house: House, version: int) -> None:
    device = await house.device("d1")
    payload = b'"' + b"y" * 1_500_000 + b'"'
    async with Peer(await house.door(), version) as peer:
        await peer.connect(device)
        for number in range(1, 6):
            peer.send(message(MINE, payload, number))
        peer.send(message(MINE, b"7", 6))
        answers = await peer.take(p.Ack, 6)
        expected = 0x97 if version == p.MQTT_5 else 0
        assert [(a.packet_id, a.reason) for a in answers] == [*((i, expected) for i in range(1, 6)), (6, 0)]
        letters = await house.dead_letters()
        assert [letter["reason"] for letter in letters] == ["payload_too_large"] * 5
        assert letters[0]["size"] == len(payload)
        assert letters[0]["sha256"] == hashlib.sha256(payload).hexdigest()
        assert [e["payload"]["value"] for e in await house.envelopes()] == [7]


async def test_d1_a_packet_above_the_maximum_ends_the_connection_by_its_header(house: House) -> None:
    device = await house.device("d1")
    limits = MqttLimits(offer=Offer(limits=Limits(stream=1_000_000)))
    async with Peer(await house.door(limits)) as peer:
        connack = await peer.connect(device)
        assert connack.properties.maximum_packet_size == 1_000_000
        peer.write(b"\x32\xff\xff\xff\x7f")
        assert (await peer.expect(p.Disconnect)).reason == 0x95
        await peer.end()
    assert house.gateway.counts["closed_packet_too_large"] == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_empty_payload_is_counted_and_acknowledged(house: House, version: int) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(), version) as peer:
        await peer.connect(device)
        peer.send(message(MINE, b"", 1), message(MINE, b"2", 2), message(MINE, b"", 3))
        assert [a.packet_id for a in await peer.take(p.Ack, 3)] == [1, 2, 3]
        assert house.gateway.counts["empty_payload"] == 2
        assert len(await house.envelopes()) == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_answers_keep_the_order_of_the_messages_also_around_empty_ones(house: House, version: int) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(), version) as peer:
        await peer.connect(device)
        await until(lambda: house.log.appended, "the presence is told")
        house.log.open.clear()
        peer.send(message(MINE, b"1", 1))
        await until(lambda: house.log.waiting, "the append begins")
        peer.send(message(MINE, b"", 2))
        await peer.ping()
        assert peer.packets == []
        house.log.open.set()
        assert [a.packet_id for a in await peer.take(p.Ack, 2)] == [1, 2]


async def test_an_unavailable_log_leaves_messages_unanswered_until_it_is_back(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        await peer.connect(device)
        await until(lambda: house.log.appended, "the presence is told")
        house.log.failure = LogUnavailable("the log is away")
        peer.send(message(MINE, b"1", 1))
        await until(lambda: house.publish.failures >= 2, "the append is tried again")
        await peer.ping()
        assert peer.packets == []
        house.log.failure = None
        assert await peer.expect(p.Ack) == p.Ack(p.PUBACK, 1)
        assert len(await house.envelopes()) == 1


async def test_a_full_log_is_answered_quota_exceeded(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door()) as peer:
        await peer.connect(device)
        await until(lambda: house.log.appended, "the presence is told")
        house.log.failure = LogFull("the disk is full")
        peer.send(message(MINE, b"1", 1), message(MINE, b"2", 2))
        assert [(a.packet_id, a.reason) for a in await peer.take(p.Ack, 2)] == [(1, 0x97), (2, 0x97)]
        house.log.failure = None
        peer.send(message(MINE, b"3", 3))
        assert (await peer.expect(p.Ack)).reason == 0


async def test_a_full_log_closes_a_3_1_1_connection_without_an_answer(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(), p.MQTT_3_1_1) as peer:
        await peer.connect(device)
        await until(lambda: house.log.appended, "the presence is told")
        house.log.failure = LogFull("the disk is full")
        peer.send(message(MINE, b"1", 1))
        await peer.end()
        assert peer.packets == []
        house.log.failure = None
    assert house.gateway.counts["closed_quota_exceeded"] == 1


async def test_the_receive_maximum_is_kept_by_who_announces_it(house: House) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(MqttLimits(offer=Offer(receive_maximum=5)))) as peer:
        connack = await peer.connect(device)
        assert connack.properties.receive_maximum == 5
        await until(lambda: house.log.appended, "the presence is told")
        house.log.open.clear()
        peer.send(*(message(MINE, b"%d" % i, i) for i in range(1, 7)))
        assert (await peer.expect(p.Disconnect)).reason == 0x93
        await peer.end()
        house.log.open.set()
    await until(lambda: house.gateway.connections == 0, "the connection is gone")
    assert [e["payload"]["value"] for e in await house.envelopes()] == [1, 2, 3, 4, 5]


async def test_a_flood_meets_a_socket_that_is_read_no_further(house: House) -> None:
    """With a log that stalls, what one client gets into memory is bounded, and all of it is stored afterwards."""
    device = await house.device("d1")
    limits = MqttLimits(unappended_bytes=64 * 1024)
    async with Peer(await house.door(limits), p.MQTT_3_1_1) as peer:
        await peer.connect(device)
        await until(lambda: house.log.appended, "the presence is told")
        house.log.open.clear()
        payload = json.dumps({"text": "x" * 2_000}).encode()
        count = 8_000
        for start in range(1, count, 100):
            peer.send(*(message(MINE, payload, i) for i in range(start, start + 100)))
        await until(lambda: house.gateway.counts["paused_for_log"], "the socket is read no further")
        for _ in range(50):
            await house.log.bounds(house.log.partitions("iotsphere", "telemetry")[0])
        assert house.gateway.counts["submitted"] * len(payload) < 1_500_000
        assert house.publish.pending_bytes < 2_000_000
        house.log.open.set()
        answers = await peer.take(p.Ack, count)
        assert [a.packet_id for a in answers] == list(range(1, count + 1))
        assert len(await house.entries()) == count


async def test_while_the_log_is_congested_every_socket_waits(house: House) -> None:
    one, two = await house.device("d1"), await house.device("d2")
    house.publish._max_pending = 10_000
    address = await house.door()
    async with Peer(address) as first, Peer(address) as second:
        await first.connect(one)
        await second.connect(two, "c2")
        await until(lambda: house.log.appended >= 2, "the presences are told")
        house.log.open.clear()
        first.send(message(MINE, json.dumps({"text": "x" * 20_000}).encode(), 1))
        await until(lambda: house.publish.congested, "the queue is full")
        second.send(message("iotsphere/devices/d2/telemetry", b"1", 1))
        await until(lambda: house.gateway.counts["paused_for_log"] == 2, "both are paused")
        house.log.open.set()
        assert (await first.expect(p.Ack)).reason == 0
        assert (await second.expect(p.Ack)).reason == 0
        await second.ping()


async def test_who_sends_too_fast_is_read_slower_and_loses_nothing(house: House) -> None:
    device = await house.device("d1")
    house.rates = RateLimit(Rate(40, 0, burst=0.5), Rate(0, 0))
    async with Peer(await house.door()) as peer:
        await peer.connect(device)
        sent = 0
        while not house.gateway.counts["paused_for_rate"]:  # a machine that stands still meanwhile is not too fast
            peer.send(*(message(MINE, b"1", i) for i in range(1, 31)))
            await peer.take(p.Ack, 30)
            sent += 30
        await peer.ping()
        assert len(await house.entries()) == sent
