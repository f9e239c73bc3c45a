"""Requests from a broker: decided instead of appended, once, and never forgotten."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from iotsphere.adapters.requests import Requests
from iotsphere.entities.errors import Conflict, DatabaseUnavailable, Forbidden, MessageRefused
from iotsphere.entities.message import Record
from iotsphere.entities.principal import Principal
from iotsphere.entities.topic import Topic
from tests.support.foreign import foreign
from tests.support.servers import Server
from tests.support.waiting import until

from .house import IN, House, open_house, spec_of

RULES = (
    IN
    + """
[[in]]
from = "ask/{device_id}/{what}"
to = "iotsphere/devices/{device_id}/shadow/{what}"
[[in]]
from = "order/{device_id}"
to = "iotsphere/devices/{device_id}/commands/request"
"""
)


class Desk:
    """Decides on desired state and commands: takes what it gets, or fails as it is told."""

    def __init__(self) -> None:
        self.decided: list[tuple[str, str]] = []
        self.by: set[str] = set()
        self.failures: list[Exception] = []
        self.open = asyncio.Event()
        self.open.set()

    def handles(self, topic: Topic) -> bool:
        return topic.text.endswith(("/desired", "/request"))

    async def __call__(self, principal: Principal, record: Record) -> Mapping[str, object]:
        await self.open.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.decided.append((record.topic, record.message_id))
        self.by.add(principal.identity)
        return {}


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        yield opened


@pytest.fixture
def desk(house: House) -> Desk:
    made = Desk()

    async def known(domain: str, device_id: str) -> bool:
        return (domain, device_id) != ("iotsphere", "nobody")

    house.requests = Requests(known, made)
    return made


async def test_a_request_is_decided_instead_of_appended(house: House, mosquitto_server: Server, desk: Desk) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port, RULES))
    message_id = str(uuid.uuid4())
    async with foreign(mosquitto_server.port) as service:
        await service.publish("ask/d1/desired", {"desired": {"led": True}})
        await service.publish("order/d1", {"action": "open"}, UserProperty=("messageId", message_id))
        await service.publish("ask/d1/reported", {"reported": {"led": False}})
        await until(lambda: bridge.counts["acknowledged"] == 3, "all are acknowledged")
    assert [topic.rpartition("/")[2] for topic, _ in desk.decided] == ["desired", "request"]
    assert desk.decided[1][1] == message_id
    assert desk.by == {"iotsphere/service/bridge:plant"}
    assert (await house.count("shadow"), await house.count("commands")) == (1, 0)  # the report is a fact
    assert await house.letters() == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Forbidden("not you"), "acl_denied"),
        (Conflict("somebody was faster"), "version_conflict"),
        (MessageRefused("too old", code="expired"), "expired"),
    ],
)
async def test_a_request_that_is_decided_against_is_one_dead_letter(
    house: House, mosquitto_server: Server, desk: Desk, error: Exception, reason: str
) -> None:
    desk.failures = [error]
    bridge = await house.running(spec_of(mosquitto_server.port, RULES))
    async with foreign(mosquitto_server.port) as service:
        await service.publish("ask/d1/desired", {"desired": {"led": True}})
        await service.publish("ask/d1/desired", {"desired": {"led": False}})
        await until(lambda: bridge.counts["acknowledged"] == 2, "both are acknowledged")
    (letter,) = await house.letters()
    assert (letter["reason"], letter["topic"]) == (reason, "iotsphere/devices/d1/shadow/desired")
    assert len(desk.decided) == 1


async def test_a_device_that_nobody_knows_has_no_shadow(house: House, mosquitto_server: Server, desk: Desk) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port, RULES))
    async with foreign(mosquitto_server.port) as service:
        await service.publish("ask/nobody/desired", {"desired": {"led": True}})
        await until(lambda: bridge.counts["acknowledged"] == 1, "it is acknowledged")
    assert [letter["reason"] for letter in await house.letters()] == ["acl_denied"]
    assert desk.decided == []


async def test_a_database_that_is_away_holds_requests_and_no_facts(
    house: House, mosquitto_server: Server, desk: Desk
) -> None:
    desk.failures = [DatabaseUnavailable("away") for _ in range(2)]
    desk.open.clear()
    bridge = await house.running(spec_of(mosquitto_server.port, RULES))
    async with foreign(mosquitto_server.port) as device:
        await device.publish("ask/d1/desired", {"desired": {"led": True}})
        for number in range(5):
            await device.publish("tele/d1/SENSOR", {"n": number})
        await house.reaches("telemetry", 5)
        assert bridge.counts["acknowledged"] == 0  # in the order of arrival, and the first one waits
        assert bridge.oldest > 0
        desk.open.set()
        await until(lambda: bridge.counts["acknowledged"] == 6, "all are acknowledged")
    assert bridge.counts["decisions_postponed"] == 2
    assert len(desk.decided) == 1


async def test_a_request_outlives_its_connection_and_is_decided_once(
    house: House, mosquitto_server: Server, desk: Desk
) -> None:
    desk.open.clear()
    bridge = await house.running(spec_of(mosquitto_server.port, RULES))
    async with foreign(mosquitto_server.port) as device:
        await device.publish("ask/d1/desired", {"desired": {"led": True}})
        await until(lambda: bridge.unacknowledged == 1, "it waits")
        link: Any = bridge._outbound.current.link
        link.drop("for the test")
        await until(lambda: bridge.counts["repeated"] == 1, "the broker repeats it")
        desk.open.set()
        await until(lambda: bridge.counts["acknowledged"] == 1, "it is acknowledged")
    assert len(desk.decided) == 1


async def test_a_command_needs_an_id_since_a_broker_repeats(house: House, mosquitto_server: Server, desk: Desk) -> None:
    bridge = await house.running(spec_of(mosquitto_server.port, RULES))
    async with foreign(mosquitto_server.port) as service:
        await service.publish("order/d1", {"action": "open"})
        await until(lambda: bridge.counts["acknowledged"] == 1, "it is acknowledged")
    (letter,) = await house.letters()
    assert letter["reason"] == "schema_violation"
    assert "messageId" in letter["detail"]
    assert desk.decided == []


async def test_a_replayed_request_is_not_carried_out(house: House, mosquitto_server: Server, desk: Desk) -> None:
    async with foreign(mosquitto_server.port) as service:
        await service.publish(
            "order/d1", {"action": "open"}, retain=True, UserProperty=("messageId", str(uuid.uuid4()))
        )
        bridge = await house.running(spec_of(mosquitto_server.port, RULES))
        await until(lambda: bridge.counts["acknowledged"] == 1, "it is acknowledged")
    assert [letter["reason"] for letter in await house.letters()] == ["replayed"]
    assert desk.decided == []


async def test_a_drain_waits_for_decisions(house: House, mosquitto_server: Server, desk: Desk) -> None:
    desk.open.clear()
    bridge = await house.running(spec_of(mosquitto_server.port, RULES))
    async with foreign(mosquitto_server.port) as service:
        await service.publish("ask/d1/desired", {"desired": {"led": True}})
        await until(lambda: bridge.unacknowledged == 1, "it waits")
        draining = asyncio.create_task(bridge.drain(30))
        await asyncio.sleep(0.1)
        assert not draining.done()
        desk.open.set()
        await draining
    assert len(desk.decided) == 1
    assert bridge.counts["acknowledged"] == 1
