"""From the log to the broker: in order, once it is durable, never retained, and never round in circles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from getpass import getuser
from typing import Any

import orjson
import pytest

from iotsphere.use_cases.ledger import Ledger
from tests.support.foreign import Foreign, foreign, user_property
from tests.support.proxy import faulty_proxy
from tests.support.servers import Server, mosquitto
from tests.support.waiting import until

from .house import IN, OUT, SAME, House, open_house, spec_of

COMMAND = "iotsphere/devices/d1/commands/request"
DESIRED = '[[out]]\nfrom = "iotsphere/devices/+/shadow/desired"\n'
BOTH = SAME + '[[out]]\nfrom = "iotsphere/devices/+/commands/request"\n'


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


async def got(peer: Foreign, count: int) -> list[Any]:
    await until(lambda: len(peer.got) >= count, f"{count} messages came to the broker")
    return peer.got


async def test_a_command_goes_out_as_the_log_has_it_and_is_not_retained(house: House, mosquitto_server: Server) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port))
    await house.registered(bridge)
    async with foreign(mosquitto_server.port) as device:
        await device.listen("cmnd/#")
        correlation = "11111111-2222-4333-8444-555555555555"
        record = await house.say(
            COMMAND, {"power": "on"}, correlation_id=correlation, expires_at=house.clock.now() + 600_000
        )
        (message,) = await got(device, 1)
    assert (str(message.topic), message.payload) == ("cmnd/d1", record.body)
    assert (message.qos, message.retain) == (1, False)
    assert user_property(message, "messageId") == record.message_id
    assert message.properties.CorrelationData == correlation.encode()
    assert 540 <= message.properties.MessageExpiryInterval <= 600
    async with foreign(mosquitto_server.port) as late:
        await late.listen("#")
        await asyncio.sleep(0.2)
        assert late.got == []


@pytest.mark.parametrize(
    ("form", "payload", "sent"),
    [
        ("payload", {"power": "on"}, b'{"power":"on"}'),
        ("value", {"value": "ON"}, b"ON"),
        ("value", "ON", b"ON"),
        ("value", 21.5, b"21.5"),
        ("value", {"value": {"a": 1}}, b'{"a":1}'),
    ],
)
async def test_a_rule_chooses_what_of_the_message_goes_out(
    house: House, mosquitto_server: Server, form: str, payload: Any, sent: bytes
) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port, OUT + f'payload = "{form}"\n'))
    await house.registered(bridge)
    async with foreign(mosquitto_server.port) as device:
        await device.listen("cmnd/#")
        await house.say(COMMAND, payload)
        (message,) = await got(device, 1)
    assert message.payload == sent


async def test_what_has_no_value_is_a_dead_letter_and_the_next_goes_out(house: House, mosquitto_server: Server) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port, OUT + 'payload = "value"\n'))
    await house.registered(bridge)
    async with foreign(mosquitto_server.port) as device:
        await device.listen("cmnd/#")
        await house.say(COMMAND, {"power": "on"})
        await house.say(COMMAND, "ON")
        (message,) = await got(device, 1)
    assert message.payload == b"ON"
    (letter,) = await house.letters()
    assert (letter["reason"], letter["stage"], letter["topic"]) == ("codec_error", "processor", COMMAND)


async def test_an_expired_command_does_not_go_out(house: House, mosquitto_server: Server) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port))
    await house.registered(bridge)
    await bridge.close()
    expires_at = house.clock.now() + 1_000
    await house.say(COMMAND, {"n": 1}, expires_at=expires_at)
    await until(lambda: house.clock.now() > expires_at, "its time is over")
    await house.say(COMMAND, {"n": 2})
    async with foreign(mosquitto_server.port) as device:
        await device.listen("cmnd/#")
        again = await house.running(spec_of(mosquitto_server.port))
        (message,) = await got(device, 1)
    assert orjson.loads(message.payload)["payload"] == {"n": 2}
    # The device has the next one before the bridge has its acknowledgement, behind which it counts.
    await until(lambda: again.counts["expired"] == 1, "it is counted")


async def test_a_restart_goes_on_where_it_was_and_repeats_nothing(house: House, mosquitto_server: Server) -> None:
    spec = spec_of(mosquitto_server.port)
    async with foreign(mosquitto_server.port) as device:
        await device.listen("cmnd/#")
        first = await house.running(spec)
        await house.registered(first)
        for number in range(5):
            await house.say(COMMAND, {"n": number})
        await got(device, 5)
        await first.drain(30)
        for number in range(5, 10):  # nobody is there
            await house.say(COMMAND, {"n": number})
        await house.running(spec)
        messages = await got(device, 10)
    assert [orjson.loads(m.payload)["payload"]["n"] for m in messages] == list(range(10))


async def test_a_broker_that_is_away_leaves_commands_in_the_log(house: House, tmp_path: Any) -> None:
    with mosquitto(tmp_path / "broker") as server:
        async with faulty_proxy(server.port) as way:
            bridge = await house.running(spec_of(way.port))
            await house.registered(bridge)
            server.kill()
            way.refuse = True  # until the device listens: the broker keeps nothing for who is not there
            for number in range(100):
                await house.say(f"iotsphere/devices/d{number % 3}/commands/request", {"n": number})
            server.start()
            async with foreign(server.port) as device:
                await device.listen("cmnd/#")
                assert bridge.counts["published"] == 0
                way.refuse = False
                await until(lambda: len({m.payload for m in device.got}) == 100, "all commands came")
    for key in range(3):
        mine = [orjson.loads(m.payload)["payload"]["n"] for m in device.got if str(m.topic) == f"cmnd/d{key}"]
        first = list(dict.fromkeys(mine))
        assert first == sorted(first)


async def test_what_the_broker_denies_is_a_dead_letter(house: House, tmp_path: Any) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite tele/#\ntopic readwrite cmnd/good\n")
    settings = f"user {getuser()}\nallow_anonymous true\nacl_file {acl}\n"
    with mosquitto(tmp_path / "broker", settings) as server:
        bridge = await house.running(spec_of(server.port))
        await house.registered(bridge)
        async with foreign(server.port) as device:
            await device.listen("cmnd/#")
            await house.say("iotsphere/devices/bad/commands/request", {"n": 1})
            await house.say("iotsphere/devices/good/commands/request", {"n": 2})
            (message,) = await got(device, 1)
    assert str(message.topic) == "cmnd/good"
    await house.reaches("system", 1)  # it is counted before it is there
    assert bridge.counts["publish_refused"] == 1
    (letter,) = await house.letters()
    assert (letter["reason"], letter["topic"]) == ("acl_denied", "iotsphere/devices/bad/commands/request")


async def test_a_message_above_the_brokers_maximum_is_a_dead_letter(house: House, tmp_path: Any) -> None:
    with mosquitto(tmp_path / "broker", "allow_anonymous true\nmax_packet_size 2000\n") as server:
        bridge = await house.running(spec_of(server.port))
        await house.registered(bridge)
        async with foreign(server.port) as device:
            await device.listen("cmnd/#")
            await house.say(COMMAND, {"large": "x" * 5_000})
            await house.say(COMMAND, {"n": 2})
            (message,) = await got(device, 1)
        assert bridge.counts["disconnects"] == 0
    assert orjson.loads(message.payload)["payload"] == {"n": 2}
    assert [letter["reason"] for letter in await house.letters()] == ["payload_too_large"]


async def test_of_two_bridges_one_forwards_and_the_other_takes_over(house: House, mosquitto_server: Server) -> None:
    spec = spec_of(mosquitto_server.port)
    first = await house.running(spec, ordinal=0)
    await house.registered(first)
    second = await house.running(spec, ordinal=1)
    async with foreign(mosquitto_server.port) as device:
        await device.listen("cmnd/#")
        for number in range(10):
            await house.say(COMMAND, {"n": number})
        await got(device, 10)
        await first.drain(30)
        for number in range(10, 20):
            await house.say(COMMAND, {"n": number})
        messages = await got(device, 20)
        await until(lambda: second.counts["published"] == 10, "all are acknowledged to the second one")
        await asyncio.sleep(0.2)
    assert [orjson.loads(m.payload)["payload"]["n"] for m in messages] == list(range(20))
    assert (first.counts["published"], second.counts["published"]) == (10, 10)


async def test_the_reader_of_the_bridge_balances(house: House, mosquitto_server: Server) -> None:
    from iotsphere.adapters.redrive import DeadLetterFormat
    from iotsphere.drivers.memory.queue import MemoryWorkQueue
    from iotsphere.use_cases.dead_letters import DeadLetters

    bridge = await house.running(spec_of(mosquitto_server.port, OUT + DESIRED + 'payload = "value"\n'))
    await house.registered(bridge)
    for number in range(20):
        await house.say(COMMAND, {"n": number})
    await house.say("iotsphere/devices/d1/shadow/desired", {"no": "value"})
    await house.say("iotsphere/devices/d1/shadow/reported", {"t": 1})
    letters = DeadLetters(house.log, house.documents, house.publish, DeadLetterFormat(house.edge), house.clock)
    memory = house.log._log
    ledger = Ledger(house.log, MemoryWorkQueue(memory), house.documents, letters)
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        accounts = {account.channel: account for account in (await ledger.of_domain("iotsphere")).readers}
        assert all(account.imbalance == 0 for account in accounts.values())
        if all(account.pending == 0 for account in accounts.values()):
            break
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    assert accounts["commands"].applied == 20
    assert (accounts["shadow"].applied, accounts["shadow"].dead_lettered) == (1, 1)


# Nothing goes round in circles


async def test_b23_what_came_in_does_not_go_out_and_what_went_out_does_not_come_in(
    house: House, mosquitto_server: Server
) -> None:
    rules = '[[in]]\nfrom = "iotsphere/devices/+/shadow/#"\n[[out]]\nfrom = "iotsphere/devices/+/shadow/#"\n'
    bridge = await house.running(spec_of(mosquitto_server.port, rules))
    await house.registered(bridge)
    async with foreign(mosquitto_server.port) as device:
        await device.listen("iotsphere/devices/dev-l/#")
        await device.publish("iotsphere/devices/dev-l/shadow/reported", {"reported": {"led": True}})
        await house.reaches("shadow", 1)
        await house.say("iotsphere/devices/dev-l/shadow/delta", {"led": False})
        await got(device, 2)
        await asyncio.sleep(0.5)
    assert [str(m.topic).rpartition("/")[2] for m in device.got] == ["reported", "delta"]
    assert await house.count("shadow") == 2
    assert bridge.brought_in == 1


async def test_b23_two_bridges_of_one_log_do_not_feed_each_other(house: House, mosquitto_server: Server) -> None:
    rules = '[[in]]\nfrom = "iotsphere/devices/+/shadow/#"\n[[out]]\nfrom = "iotsphere/devices/+/shadow/#"\n'
    one = await house.running(spec_of(mosquitto_server.port, rules, top='name = "one"\n'))
    two = await house.running(spec_of(mosquitto_server.port, rules, top='name = "two"\n'))
    await house.registered(one)
    await house.registered(two)
    async with foreign(mosquitto_server.port) as device:
        await device.listen("#")
        await house.say("iotsphere/devices/d1/shadow/delta", {"led": False})
        await got(device, 2)  # each of the two carries it out once, with one id
        await until(lambda: one.counts["own"] == 1 and two.counts["own"] == 1, "both know it again")
        await asyncio.sleep(0.3)
    assert len({user_property(m, "messageId") for m in device.got}) == 1
    assert len(device.got) == 2
    assert await house.count("shadow") == 1


async def test_b23_two_gateways_on_one_broker_do_not_feed_each_other(house: House, mosquitto_server: Server) -> None:
    rules = '[[in]]\nfrom = "iotsphere/devices/+/shadow/#"\n[[out]]\nfrom = "iotsphere/devices/+/shadow/#"\n'
    async with open_house() as other:
        here = await house.running(spec_of(mosquitto_server.port, rules), node="here")
        there = await other.running(spec_of(mosquitto_server.port, rules), node="there")
        await house.registered(here)
        await other.registered(there)
        async with foreign(mosquitto_server.port) as device:
            await device.listen("#")
            await house.say("iotsphere/devices/d1/shadow/delta", {"led": False})
            await other.reaches("shadow", 1)
            await device.publish("iotsphere/devices/d1/shadow/reported", {"led": True})
            await house.reaches("shadow", 2)
            await other.reaches("shadow", 2)
            await got(device, 2)
            await asyncio.sleep(0.5)
            assert len(device.got) == 2
        assert (await house.count("shadow"), await other.count("shadow")) == (2, 2)


async def test_b23_a_loop_through_somebody_else_is_slowed_down_and_told(house: House, mosquitto_server: Server) -> None:
    """Somebody copies what goes out without its marks: nothing can know it again, but it cannot flood either."""
    bridge = await house.running(spec_of(mosquitto_server.port), per_device=10)
    await house.registered(bridge)
    # At once: one by one they may take so long that there are no more than ten in any second.
    await asyncio.gather(*(house.say(COMMAND, {"n": number}) for number in range(25)))
    async with foreign(mosquitto_server.port) as device:
        await device.listen("cmnd/#")
        await until(lambda: bridge.counts["published"] == 25, "all went out in the end")
    assert bridge.counts["alert_loop_detected"] >= 1
    await until(lambda: bridge.counts["published"] == 25, "all went out")
    alerts = [alert for alert in await house.alerts() if alert["alert"] == "loop_detected"]
    assert [alert["deviceId"] for alert in alerts] == ["d1"]


async def test_other_topics_do_not_go_out(house: House, mosquitto_server: Server) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port, IN + OUT))
    await house.registered(bridge)
    async with foreign(mosquitto_server.port) as device:
        await device.listen("#")
        await house.say("iotsphere/devices/d1/telemetry", {"t": 1})
        await house.say("iotsphere/devices/d1/commands/response", {"ok": True})
        await house.say(COMMAND, {"n": 1})
        await got(device, 1)
        await asyncio.sleep(0.2)
    assert [str(m.topic) for m in device.got] == ["cmnd/d1"]
