"""From the broker into the log: nothing is acknowledged before it is there, and nothing vanishes."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator

import orjson
import pytest

from iotsphere.entities.errors import BrokerUnavailable, LogFull
from tests.support.foreign import foreign
from tests.support.servers import Server
from tests.support.waiting import until

from .house import IN, House, open_house, spec_of


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


async def test_a_message_passes_the_edge_and_is_acknowledged(house: House, mosquitto_server: Server) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port))
    async with foreign(mosquitto_server.port) as device:
        await device.publish("tele/d1/SENSOR", {"temperature": 21.5})
        (message,) = await house.reaches("telemetry", 1)
    metadata = message["metadata"]
    assert message["payload"] == {"temperature": 21.5}
    assert metadata["topic"] == "iotsphere/devices/d1/telemetry"
    assert metadata["source"] == "bridge:plant"
    assert "quality" not in metadata
    await until(lambda: bridge.unacknowledged == 0, "it is acknowledged")
    assert (bridge.counts["received"], bridge.counts["taken"], bridge.counts["acknowledged"]) == (1, 1, 1)


async def test_order_of_each_device_is_kept(house: House, mosquitto_server: Server) -> None:
    await house.running(spec_of(mosquitto_server.port))
    async with foreign(mosquitto_server.port) as device:
        for number in range(100):
            await device.publish(f"tele/d{number % 3}/SENSOR", {"n": number})
        messages = await house.reaches("telemetry", 100)
    for device_id in ("d0", "d1", "d2"):
        mine = [m["payload"]["n"] for m in messages if f"/{device_id}/" in m["metadata"]["topic"]]
        assert mine == sorted(mine)
        assert len(mine) >= 33


async def test_properties_reach_the_metadata_and_equal_ids_are_one_message(
    house: House, mosquitto_server: Server
) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port))
    message_id, correlation = str(uuid.uuid4()), str(uuid.uuid4())
    async with foreign(mosquitto_server.port) as device:
        for _ in range(2):
            await device.publish(
                "tele/d1/SENSOR",
                {"n": 1},
                UserProperty=("messageId", message_id),
                CorrelationData=correlation.encode(),
                ContentType="application/json",
                MessageExpiryInterval=600,
            )
        await until(lambda: bridge.counts["acknowledged"] == 2, "both are acknowledged")
    (message,) = await house.reaches("telemetry", 1)
    metadata = message["metadata"]
    assert (metadata["messageId"], metadata["correlationId"]) == (message_id, correlation)
    assert metadata["contentType"] == "application/json"
    assert metadata["expiresAt"] > metadata["timestamp"]


@pytest.mark.parametrize(
    ("topic", "payload", "reason"),
    [
        ("tele/d1/SENSOR", b"{not json", "payload_not_json"),
        ("tele/d1/SENSOR", b"\xff\xfe\x00\x01", "payload_not_utf8"),
        ("tele/no good id/SENSOR", b"{}", "topic_invalid"),
        ("tele/batch/SENSOR", b"{}", "topic_invalid"),
        ("tele//SENSOR", b"{}", "topic_invalid"),
        ("tele/d1/SENSOR", b" " * 300_000, "payload_too_large"),
    ],
)
async def test_a_refused_message_is_one_dead_letter_and_is_acknowledged(
    house: House, mosquitto_server: Server, topic: str, payload: bytes, reason: str
) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port))
    async with foreign(mosquitto_server.port) as device:
        await device.publish(topic, payload)
        await device.publish("tele/d2/SENSOR", {"after": 1})
        await house.reaches("telemetry", 1)
        await until(lambda: bridge.counts["acknowledged"] == 2, "both are acknowledged")
    (letter,) = await house.letters()
    # Where the topic could be mapped, the letter can be sent again to the one that it was mapped to.
    told = topic if reason == "topic_invalid" else "iotsphere/devices/d1/telemetry"
    assert (letter["reason"], letter["topic"], letter["source"]) == (reason, told, "bridge:plant")
    assert letter["sha256"] == hashlib.sha256(payload).hexdigest()


async def test_system_topics_stay_the_gateways_own(house: House, mosquitto_server: Server) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port, '[[in]]\nfrom = "iotsphere/#"\n'))
    async with foreign(mosquitto_server.port) as device:
        await device.publish("iotsphere/system/alerts", {"alert": "false"})
        await device.publish("iotsphere/devices/d1/presence", {"state": "online"})
        await device.publish("iotsphere/devices/d1/telemetry/t", 1)
        await until(lambda: bridge.counts["acknowledged"] == 3, "all are acknowledged")
    assert [letter["reason"] for letter in await house.letters()] == ["acl_denied", "acl_denied"]
    assert await house.alerts() == []
    assert await house.count("telemetry") == 1


async def test_an_empty_payload_is_counted_and_acknowledged(house: House, mosquitto_server: Server) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port))
    async with foreign(mosquitto_server.port) as device:
        await device.publish("tele/d1/SENSOR", b"")
        await until(lambda: bridge.counts["acknowledged"] == 1, "it is acknowledged")
    assert (bridge.counts["empty"], await house.count("telemetry"), await house.letters()) == (1, 0, [])


async def test_a_retained_replay_is_marked_and_never_made_new(house: House, mosquitto_server: Server) -> None:
    past = house.clock.now() - 3_600_000
    async with foreign(mosquitto_server.port) as device:
        await device.publish("tele/timed/SENSOR", {"timestamp": past, "t": 1}, retain=True)
        await device.publish("tele/plain/SENSOR", {"t": 2}, retain=True)
        await house.running(spec_of(mosquitto_server.port))
        await house.reaches("telemetry", 2)
        await device.publish("tele/plain/SENSOR", {"t": 3}, retain=True)
        messages = await house.reaches("telemetry", 3)
    by_payload = {m["payload"]["t"]: m["metadata"] for m in messages}
    assert by_payload[1]["quality"] == "retained"
    assert by_payload[2]["quality"] == "retained"
    assert by_payload[2]["timestamp"] == "1970-01-01T00:00:00.000Z"
    assert by_payload[2]["receivedAt"] > "2020"
    assert by_payload[1]["timestamp"] < by_payload[1]["receivedAt"]
    assert "quality" not in by_payload[3]  # it came live, and so it is new
    stamps = {orjson.loads(e.record.body)["payload"]["t"]: e.record.timestamp for e in await house.entries("telemetry")}
    assert stamps[1] == past
    assert stamps[2] == 0


async def test_replays_come_once_for_a_session(house: House, mosquitto_server: Server) -> None:
    async with foreign(mosquitto_server.port) as device:
        await device.publish("tele/d1/SENSOR", {"t": 1}, retain=True)
        bridge = await house.running(spec_of(mosquitto_server.port))
        await house.reaches("telemetry", 1)
        await bridge.drain(30)
        again = await house.running(spec_of(mosquitto_server.port))
        await device.publish("tele/d2/SENSOR", {"t": 2})
        await house.reaches("telemetry", 2)
    assert again.counts["received"] == 1


async def test_withheld_acknowledgements_do_not_stall_for_ever_and_are_told(
    house: House, mosquitto_server: Server
) -> None:
    """A broker stops after so many unanswered messages (20 by default), without an error."""
    bridge = await house.running(spec_of(mosquitto_server.port), overdue=0.2)
    house.log.open.clear()
    async with foreign(mosquitto_server.port) as device:
        for number in range(60):
            await device.publish("tele/d1/SENSOR", {"n": number})
        await until(lambda: bridge.unacknowledged >= 20, "the broker waits")
        await until(lambda: bridge.counts["alert_bridge_acknowledgements_overdue"] > 0, "the watch notices")
        assert bridge.oldest > 0.2
        assert bridge.counts["acknowledged"] == 0
        assert bridge.unacknowledged <= 256
        house.log.open.set()
        messages = await house.reaches("telemetry", 60)
    assert [message["payload"]["n"] for message in messages] == list(range(60))
    await until(lambda: bridge.unacknowledged == 0, "all are acknowledged")
    assert bridge.oldest == 0.0
    (alert,) = await house.alerts()
    assert alert["alert"] == "bridge_acknowledgements_overdue"
    assert alert["bridge"] == "plant"


async def test_receive_maximum_bounds_what_is_under_way(house: House, mosquitto_server: Server) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port, broker="receive_maximum = 5"))
    house.log.open.clear()
    async with foreign(mosquitto_server.port) as device:
        for number in range(30):
            await device.publish("tele/d1/SENSOR", {"n": number})
        await until(lambda: bridge.unacknowledged == 5, "five are under way")
        await asyncio.sleep(0.2)
        assert (bridge.counts["received"], bridge.unacknowledged) == (5, 5)
        house.log.open.set()
        messages = await house.reaches("telemetry", 30)
    assert [message["payload"]["n"] for message in messages] == list(range(30))


async def test_a_broker_that_sends_too_much_is_left_until_the_log_is_back(
    house: House, mosquitto_server: Server
) -> None:
    """Mosquitto 2.0.11 has had 625 messages under way for a Receive Maximum of 5."""
    bridge = await house.running(spec_of(mosquitto_server.port), held_bytes=12_000)
    house.log.open.clear()
    async with foreign(mosquitto_server.port) as device:
        for number in range(60):
            await device.publish("tele/d1/SENSOR", {"n": number})
        await until(lambda: not bridge.connected, "the connection is given up")
        assert bridge.counts["held_back"] >= 1
        assert bridge.counts["taken"] <= 12
        connects = bridge.counts["connects"]
        await asyncio.sleep(0.5)
        assert bridge.counts["connects"] == connects
        with pytest.raises(BrokerUnavailable, match="waits for the log"):
            await bridge.ready()
        house.log.open.set()
        messages = await house.reaches("telemetry", 60)
        await until(lambda: bridge.unacknowledged == 0, "all are acknowledged")
    assert [message["payload"]["n"] for message in messages] == list(range(60))


async def test_a_full_log_is_tried_again_and_nothing_is_acknowledged_meanwhile(
    house: House, mosquitto_server: Server
) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port))
    house.log.failures = [LogFull("no room"), LogFull("no room")]
    async with foreign(mosquitto_server.port) as device:
        for number in range(10):
            await device.publish("tele/d1/SENSOR", {"n": number})
        messages = await house.reaches("telemetry", 10)
    assert [message["payload"]["n"] for message in messages] == list(range(10))
    await until(lambda: bridge.counts["acknowledged"] == 10, "all are acknowledged")
    assert bridge.counts["appends_failed"] == 2


async def test_what_was_received_and_not_acknowledged_is_known_again(house: House, mosquitto_server: Server) -> None:
    """The connection breaks while the log is away: what comes again is appended once, and acknowledged in order."""
    bridge = await house.running(spec_of(mosquitto_server.port))
    house.log.open.clear()
    async with foreign(mosquitto_server.port) as device:
        for number in range(10):
            await device.publish("tele/d1/SENSOR", {"n": number})
        await until(lambda: bridge.unacknowledged == 10, "all are under way")
        link = bridge._outbound.current.link
        assert link is not None
        link.drop("for the test")
        await until(lambda: bridge.counts["connects"] == 2, "it is connected again")
        await until(lambda: bridge.counts["repeated"] == 10, "the broker repeats them")
        house.log.open.set()
        await until(lambda: bridge.unacknowledged == 0, "all are acknowledged")
        await device.publish("tele/d1/SENSOR", {"n": 10})
        messages = await house.reaches("telemetry", 11)
    assert [message["payload"]["n"] for message in messages] == list(range(11))


async def test_messages_at_qos_0_are_taken_too_and_bounded_while_the_log_is_away(
    house: House, mosquitto_server: Server
) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port), loose_bytes=12_000)
    house.log.open.clear()
    async with foreign(mosquitto_server.port) as device:
        for number in range(50):
            await device.publish("tele/d1/SENSOR", {"n": number}, qos=0)
        await device.publish("tele/d1/SENSOR", {"n": 99})
        await until(lambda: bridge.counts["received"] == 51, "all came")
        dropped = bridge.counts["dropped_qos0"]
        assert 30 < dropped < 50
        house.log.open.set()
        messages = await house.reaches("telemetry", 51 - dropped)
    assert [m["payload"]["n"] for m in messages] == [*range(50 - dropped), 99]
    await until(lambda: bridge.counts["alert_bridge_dropped_qos0"] >= 1, "it is told")


async def test_a_drain_acknowledges_what_was_taken_and_leaves_the_rest(house: House, mosquitto_server: Server) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port))
    house.log.open.clear()
    async with foreign(mosquitto_server.port) as device:
        for number in range(5):
            await device.publish("tele/d1/SENSOR", {"n": number})
        await until(lambda: bridge.unacknowledged == 5, "they are under way")
        draining = asyncio.create_task(bridge.drain(30))
        await asyncio.sleep(0.05)
        await device.publish("tele/d1/SENSOR", {"n": 5})
        house.log.open.set()
        await draining
        assert await house.count("telemetry") == 5
        assert not bridge.connected
        again = await house.running(spec_of(mosquitto_server.port))
        messages = await house.reaches("telemetry", 6)
    assert [message["payload"]["n"] for message in messages] == list(range(6))
    assert again.counts["received"] == 1  # the drained five were acknowledged


async def test_a_rule_that_is_gone_gives_its_subscription_up(house: House, mosquitto_server: Server) -> None:
    old = await house.running(spec_of(mosquitto_server.port, IN + '[[in]]\nfrom = "iotsphere/devices/+/telemetry/#"\n'))
    await old.drain(30)
    async with foreign(mosquitto_server.port) as device:
        await device.publish("iotsphere/devices/d1/telemetry/t", 1)
        new = await house.running(spec_of(mosquitto_server.port, IN))
        await device.publish("iotsphere/devices/d1/telemetry/t", 2)
        await device.publish("tele/d1/SENSOR", {"n": 3})
        await house.reaches("telemetry", 1)
        await until(lambda: new.counts["acknowledged"] == 2, "both are acknowledged")
    (letter,) = await house.letters()  # it had waited in the session
    assert (letter["reason"], letter["topic"]) == ("topic_invalid", "iotsphere/devices/d1/telemetry/t")


@pytest.mark.parametrize("slices", [2, 3])
async def test_slices_divide_the_devices_exactly(house: House, mosquitto_server: Server, slices: int) -> None:
    spec = spec_of(mosquitto_server.port, IN + f"[sharing]\nslices = {slices}\n")
    bridges = [await house.running(spec, ordinal=ordinal) for ordinal in range(slices)]
    async with foreign(mosquitto_server.port) as device:
        for number in range(60):
            await device.publish(f"tele/d{number % 12}/SENSOR", {"n": number})
        await device.publish("tele/bad id/SENSOR", {})
        messages = await house.reaches("telemetry", 60)
        await until(lambda: all(bridge.counts["acknowledged"] == 61 for bridge in bridges), "each acknowledges all")
    assert await house.count("telemetry") == 60
    assert len(await house.letters()) == 1
    assert all(bridge.counts["taken"] > 0 for bridge in bridges)
    for index in range(12):
        mine = [m["payload"]["n"] for m in messages if f"/d{index}/" in m["metadata"]["topic"]]
        assert mine == list(range(index, 60, 12))


async def test_a_group_shares_the_load_and_loses_nothing(house: House, mosquitto_server: Server) -> None:
    spec = spec_of(mosquitto_server.port, IN + '[sharing]\ngroup = "iotsphere"\n')
    bridges = [await house.running(spec, ordinal=ordinal) for ordinal in range(2)]
    async with foreign(mosquitto_server.port) as device:
        for number in range(60):
            await device.publish(f"tele/d{number}/SENSOR", {"n": number})
        messages = await house.reaches("telemetry", 60)
    assert sorted(m["payload"]["n"] for m in messages) == list(range(60))
    assert all(bridge.counts["taken"] > 0 for bridge in bridges)


async def test_a_session_full_of_messages_does_not_keep_the_bridge_from_subscribing(
    house: House, mosquitto_server: Server
) -> None:
    """The answer to SUBSCRIBE comes behind all that waits, which may take longer than any patience with silence."""
    spec = spec_of(mosquitto_server.port)
    await (await house.running(spec)).drain(30)
    async with foreign(mosquitto_server.port) as device:
        for number in range(95):
            await device.publish(f"tele/d{number % 5}/SENSOR", {"n": number})
    bridge = await house.running(spec)
    messages = await house.reaches("telemetry", 95)
    assert len(messages) == 95
    assert bridge.counts["connect_failures"] == 0
    await bridge.drain(30)
    last = await house.running(spec)
    await asyncio.sleep(0.2)
    assert last.counts["received"] == 0  # every acknowledgement arrived before the goodbye
