"""Identities and domains at the MQTT door (rows A2 to A4): nobody passes for another, no domain shows in another."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from iotsphere.adapters.mqtt import packets as p
from tests.gateways.mqtt.house import House, open_house
from tests.gateways.mqtt.peer import Peer, message
from tests.support.waiting import until

VERSIONS = pytest.mark.parametrize("version", [p.MQTT_3_1_1, p.MQTT_5])
CANARY = "canary-4711"
MINE = "iotsphere/devices/d1/telemetry"


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


LOOK_ALIKES = {
    "upper case": "D1",
    "full width": "\uff441",
    "Cyrillic": "\u0441ore",
    "zero width": "d1\u200b",
    "combining": "d1\u0301",
    "no-break space": "d1\u00a0",
    "space": " d1",
    "wildcard": "+",
    "all": "#",
    "regular expression": "d.",
    "regular expression anchored": "^d1$",
    "glob": "d*",
    "path": "iotsphere/d2/../d1",
    "domain twice": "iotsphere/iotsphere/d1",
    "domain of another": "other/d1",
    "empty domain": "/d1",
    "SQL": "d1' OR '1'='1",
    "Mongo": '{"$ne":null}',
    "64 KB": "d" * 65_535,
    "empty": "",
}


@VERSIONS
@pytest.mark.parametrize("name", LOOK_ALIKES)
async def test_a2_no_user_name_passes_for_another(house: House, name: str, version: int) -> None:
    device = await house.device("d1")
    await house.device("core")
    async with Peer(await house.door(), version) as peer:
        connack = await peer.connect(device, username=LOOK_ALIKES[name])
        assert connack.reason == (0x86 if version == p.MQTT_5 else 4)
        await peer.end()
    assert house.gateway.counts["connected"] == 0


@VERSIONS
@pytest.mark.parametrize(
    "client_id", ["+", "#", "a/b", "../a", "a\u0001", "a\x7f", "a\u009b", "a\u202eb", "x" * 65_535]
)
async def test_a2_client_ids_that_mean_more_than_a_name_are_refused(house: House, client_id: str, version: int) -> None:
    device = await house.device("d1")
    async with Peer(await house.door(), version) as peer:
        connack = await peer.connect(device, client_id)
        assert connack.reason == (0x85 if version == p.MQTT_5 else 2)
        await peer.end()


@pytest.mark.parametrize("text", [b"d1\x00", b"\xed\xa0\x80", b"\xff"])
async def test_a2_a_connect_that_is_no_text_is_cut(house: House, text: bytes) -> None:
    await house.device("d1")
    body = b"\x00\x04MQTT\x04\xc2\x00\x3c\x00\x02c1" + len(text).to_bytes(2, "big") + text + b"\x00\x01x"
    async with Peer(await house.door(), p.MQTT_3_1_1) as peer:
        peer.write(bytes((0x10, len(body))) + body)
        await peer.end()
        assert [packet for packet in peer.packets if isinstance(packet, p.ConnAck) and packet.reason == 0] == []
    assert house.gateway.counts["connected"] == 0


FOREIGN = (
    "iotsphere/devices/d2/telemetry",
    "iotsphere/devices/d1/shadow/desired",
    "iotsphere/devices/d1/presence",
    "iotsphere/devices/d1/errors",
    "iotsphere/devices/d1/commands/request",
    "iotsphere/devices/batch/alerts",
    "iotsphere/users/ann/notifications",
    "iotsphere/system/dead-letters",
    "other/devices/d1/telemetry",
)


@pytest.mark.parametrize("topic", FOREIGN)
async def test_a3_nothing_retained_is_left_where_a_device_may_not_publish(house: House, topic: str) -> None:
    device = await house.device("d1")
    address = await house.door()
    async with Peer(address) as peer:
        await peer.connect(device)
        peer.send(
            message(topic, json.dumps({"x": CANARY}).encode(), 1, retain=True), message(topic, b"", 2, retain=True)
        )
        assert [ack.reason for ack in await peer.take(p.Ack, 2)] == [0x87, 0x87]
    letters = await house.dead_letters()
    assert [(letter["reason"], letter["topic"], letter["source"]) for letter in letters] == [
        ("acl_denied", topic, "d1")
    ] * 2
    domain = topic.partition("/")[0]
    async with Peer(address) as listener:
        await listener.connect(house.token("s", "subscribe:{domain}/#", domain=domain), "listener")
        await listener.subscribe(topic)
        await listener.ping()
        shown = [packet.payload for packet in listener.packets if isinstance(packet, p.Publish)]
        assert not [payload for payload in shown if json.loads(payload)["metadata"]["source"] == "d1"]


@VERSIONS
async def test_a4_nothing_of_another_domain_is_ever_seen(house: House, version: int) -> None:
    await house.say("other/devices/d1/telemetry", {"x": CANARY}, retain=True)
    await until(lambda: house.feed.entries_seen >= 1, "the canary is known")
    async with Peer(await house.door(), version) as peer:
        assert (await peer.connect(house.token("s", "subscribe:iotsphere/#", "publish:iotsphere/#"))).reason == 0
        reasons = await peer.subscribe("iotsphere/#", "other/#", "+/devices/#", "#")
        assert [reason < 0x80 for reason in reasons] == [True, False, False, False]
        claimed = {"metadata": {"topic": "other/devices/d1/telemetry", "domain": "other"}, "payload": 1}
        peer.send(message(MINE, json.dumps({"domain": "other", "topic": "other/devices/d1/telemetry"}).encode(), 1))
        peer.send(message(MINE, json.dumps(claimed).encode(), 2))
        await peer.take(p.Ack, 2)
        # The second one is a dead letter, which may come before the first.
        came = [packet.payload for packet in await peer.take(p.Publish, 2)]
        (got,) = (
            each for each in map(json.loads, came) if each["metadata"]["topic"] != "iotsphere/system/dead-letters"
        )
        assert got["metadata"]["topic"] == MINE
        await house.say("other/devices/d1/telemetry", {"x": CANARY})
        await house.say(MINE, 1)
        await peer.expect(p.Publish, lambda packet: json.loads(packet.payload)["payload"] == {"value": 1})
        shown = [*came, *(packet.payload for packet in peer.packets if isinstance(packet, p.Publish))]
        assert not [payload for payload in shown if CANARY.encode() in payload]
    assert len(await house.envelopes(domain="other")) == 2
