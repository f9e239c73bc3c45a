"""The two seams of the door: who follows what becomes of a device's messages, and who carries out what it asks for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.entities.errors import Conflict, LogUnavailable, MessageRefused
from iotsphere.entities.message import Record
from iotsphere.entities.principal import Principal, parse_grant
from iotsphere.entities.topic import Topic
from iotsphere.gateways.mqtt import MqttLimits
from iotsphere.gateways.mqtt.use_cases import Push
from iotsphere.use_cases.session.state import Carried, Wanted
from tests.support.waiting import until

from .house import House, open_house
from .peer import Peer, ack, message

COMMANDS = "iotsphere/devices/d1/commands/request"
TELEMETRY = "iotsphere/devices/d1/telemetry"
DESIRED = "iotsphere/devices/d1/shadow/reported"
VERSIONS = (p.MQTT_3_1_1, p.MQTT_5)


class Care:
    """Remembers what it is told; greets with what it is given."""

    def __init__(self) -> None:
        self.greetings: list[Record] = []
        self.old: set[int] = set()
        self.told: list[tuple[str, str, int]] = []
        self.asked: list[tuple[str, list[str]]] = []
        self.pushes: list[Push] = []
        self.gone: list[Push] = []
        self.carried: list[Carried] = []
        self.unwritten: set[str] = set()

    def watches(self, topic: str) -> bool:
        return topic.endswith("/commands/request")

    def begin(self, principal: Principal, push: Push, carried: Carried) -> None:
        assert principal.name == "d1"
        self.pushes.append(push)
        self.carried.append(carried)

    def mark(self, record: Record) -> str:
        return f"command {number(record)}"

    def is_written(self, mark: str) -> bool:
        return mark not in self.unwritten

    async def greet(self, principal: Principal, wanted: Collection[Wanted], push: Push) -> Sequence[Record]:
        await asyncio.sleep(0.01)
        assert push == self.pushes[-1]
        self.asked.append((principal.name, sorted(each.filter.text for each in wanted)))
        return self.greetings

    def left(self, principal: Principal, push: Push) -> None:
        assert principal.name == "d1"
        self.gone.append(push)

    def skip(self, principal: Principal, record: Record, push: Push) -> bool:
        assert push in self.pushes
        return principal.name == "d1" and number(record) in self.old

    def sent(self, principal: Principal, record: Record, push: Push) -> None:
        assert push in self.pushes
        self.told.append(("sent", principal.name, number(record)))

    def acknowledged(self, principal: Principal, record: Record, refused: bool) -> None:
        self.told.append(("refused" if refused else "acknowledged", principal.name, number(record)))


class Requests:
    """Carries out nothing, after a while, or fails as it is told."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.fail: dict[int, Exception] = {}
        self.open = asyncio.Event()
        self.open.set()

    def handles(self, topic: Topic) -> bool:
        return topic.text.endswith("/shadow/reported")

    async def __call__(self, principal: Principal, record: Record) -> None:
        await self.open.wait()
        assert principal.name == "d1"
        if number(record) in self.fail:
            raise self.fail[number(record)]
        self.done.append(number(record))


def number(record: Record) -> Any:
    return json.loads(record.body)["payload"]["value"]


def value(packet: p.Publish) -> Any:
    return json.loads(packet.payload)["payload"]["value"]


def command(house: House, content: int) -> Record:
    who = Principal("service", "operator", "iotsphere", (parse_grant("command:iotsphere/#", domain="iotsphere"),))
    return house.edge.admit(house.edge.route(who, COMMANDS, "command"), str(content).encode(), house.clock.now())


async def test_more_can_be_pushed_as_long_as_the_connection_lasts() -> None:
    async with open_house() as house:
        house.care = care = Care()
        device = await house.device("d1")
        async with Peer(await house.door()) as peer:
            await peer.connect(device)
            peer.send(p.Subscribe(1, (p.Request("iotsphere/devices/d1/#", 1),)))
            await peer.take(p.SubAck, 1)
            peer.send(p.Subscribe(2, (p.Request("iotsphere/devices/d1/commands/#", 1),)))
            await peer.take(p.SubAck, 1)
            await until(lambda: len(care.asked) == 2, "it was greeted twice")
            (first,) = care.pushes
            first([command(house, 7), command(house, 8)])
            got = await peer.take(p.Publish, 2, lambda x: x.topic.decode() == COMMANDS)
            assert [value(x) for x in got] == [7, 8]
            assert care.gone == []
        await until(lambda: care.gone == [first], "it has left")


async def test_a_greeting_comes_after_the_subscription_and_before_what_is_live() -> None:
    async with open_house() as house:
        house.care = care = Care()
        device = await house.device("d1")
        care.greetings = [command(house, 1), command(house, 2)]
        async with Peer(await house.door()) as peer:
            await peer.connect(device)
            peer.send(p.Subscribe(1, (p.Request("iotsphere/devices/d1/#", 1),)))
            await until(lambda: bool(house.feed._groups), "it is subscribed")
            await house.publish([command(house, 3)])
            got = await peer.take(p.Publish, 3, lambda x: x.topic.decode() == COMMANDS)
            assert [value(x) for x in got] == [1, 2, 3]
            assert care.asked == [("d1", ["iotsphere/devices/d1/#"])]
            peer.send(ack(got[0].packet_id), p.Ack(p.PUBACK, got[1].packet_id, 0x80), ack(got[2].packet_id))
            await peer.ping()
            assert care.told == [
                ("sent", "d1", 1),
                ("sent", "d1", 2),
                ("sent", "d1", 3),
                ("acknowledged", "d1", 1),
                ("refused", "d1", 2),
                ("acknowledged", "d1", 3),
            ]


async def test_a_greeting_respects_the_window_and_needs_a_filter() -> None:
    async with open_house() as house:
        house.care = care = Care()
        device = await house.device("d1")
        care.greetings = [command(house, 1), command(house, 2)]
        async with Peer(await house.door()) as peer:
            await peer.connect(device, properties=Properties(receive_maximum=1))
            await peer.subscribe(TELEMETRY)
            await peer.ping()
            assert peer.packets == []
            assert care.told == []
            await peer.subscribe(COMMANDS)
            first = await peer.expect(p.Publish)
            await peer.ping()
            assert peer.packets == []
            peer.send(ack(first.packet_id))
            assert value(await peer.expect(p.Publish)) == 2


async def test_a_device_that_comes_back_is_greeted_again() -> None:
    async with open_house() as house:
        house.care = care = Care()
        device = await house.device("d1")
        address = await house.door()
        session: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval=600)}
        async with Peer(address) as peer:
            await peer.connect(device, **session)
            await peer.subscribe(COMMANDS)
        await until(lambda: house.gateway.connections == 0, "it is gone")
        care.greetings = [command(house, 7)]
        async with Peer(address) as peer:
            await peer.connect(device, **session)
            assert value(await peer.expect(p.Publish)) == 7
        assert len(care.asked) == 2


async def test_what_is_skipped_is_booked_as_superseded() -> None:
    async with open_house() as house:
        house.care = care = Care()
        device = await house.device("d1")
        care.old = {2}
        async with Peer(await house.door()) as peer:
            session: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval=600)}
            await peer.connect(device, **session)
            await peer.subscribe(COMMANDS)
            for content in (1, 2, 3):
                await house.publish([command(house, content)])
            got = await peer.take(p.Publish, 2)
            assert [value(x) for x in got] == [1, 3]
            peer.send(*(ack(x.packet_id) for x in got))
            await peer.ping()
        await until(lambda: house.gateway.connections == 0, "it is gone")
        progress = await house.log.committed("iotsphere/mqtt/device/d1/c1")
        tallies = [part.tally for part in progress.values() if sum(part.tally)]
        assert [(each.applied, each.superseded) for each in tallies] == [(2, 1)]


async def test_services_are_not_cared_for() -> None:
    async with open_house() as house:
        house.care = care = Care()
        async with Peer(await house.door()) as peer:
            await peer.connect(house.token("s", "subscribe:iotsphere/#"))
            await peer.subscribe(COMMANDS)
            await house.publish([command(house, 1)])
            peer.send(ack((await peer.expect(p.Publish)).packet_id))
            await peer.ping()
            assert (care.asked, care.told) == ([], [])


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_request_is_carried_out_in_order_and_then_acknowledged(version: int) -> None:
    async with open_house() as house:
        house.requests = requests = Requests()
        requests.open.clear()
        device = await house.device("d1")
        async with Peer(await house.door(), version) as peer:
            await peer.connect(device)
            peer.send(
                message(TELEMETRY, b"1", 1),
                message(DESIRED, b"2", 2),
                message(DESIRED, b"3", 3),
                message(DESIRED, b"4"),
            )
            peer.send(message(TELEMETRY, b"5", 5))
            assert (await peer.expect(p.Ack)).packet_id == 1
            await until(lambda: house.log.appended >= 3, "what is to be appended is")
            await peer.ping()
            assert peer.packets == []
            requests.open.set()
            assert [x.packet_id for x in await peer.take(p.Ack, 3)] == [2, 3, 5]
            assert requests.done == [2, 3, 4]
            assert [each["payload"]["value"] for each in await house.envelopes()] == [1, 5]
            assert await house.envelopes("shadow") == []


async def test_a_request_that_fails_is_answered_with_its_reason() -> None:
    async with open_house() as house:
        house.requests = requests = Requests()
        requests.fail = {
            1: Conflict("version 3 is newer; read it and repeat"),
            2: MessageRefused("no such key", code="schema_violation"),
            3: LogUnavailable("the store is away"),
        }
        device = await house.device("d1")
        async with Peer(await house.door()) as peer:
            await peer.connect(device)
            peer.send(*(message(DESIRED, str(i).encode(), i) for i in range(1, 5)))
            got = await peer.take(p.Ack, 4)
            assert [(x.packet_id, x.reason) for x in got] == [(1, 0x83), (2, 0x99), (3, 0x83), (4, 0)]
            assert got[0].properties.reason_string == "version 3 is newer; read it and repeat"
            assert [each["reason"] for each in await house.dead_letters()] == ["schema_violation"]
            assert requests.done == [4]


async def test_a_request_that_fails_for_now_is_not_acknowledged_over_3_1_1() -> None:
    async with open_house() as house:
        house.requests = requests = Requests()
        requests.fail = {1: Conflict("version 3 is newer"), 2: LogUnavailable("the store is away")}
        device = await house.device("d1")
        async with Peer(await house.door(), p.MQTT_3_1_1) as peer:
            await peer.connect(device)
            await peer.subscribe("iotsphere/devices/d1/errors")
            peer.send(message(DESIRED, b"1", 1))
            await peer.expect(p.Ack)
            notice = await peer.expect(p.Publish)
            assert json.loads(notice.payload)["payload"]["error"] == "conflict"
            peer.send(message(DESIRED, b"2", 2))
            await peer.end()
            assert [x for x in peer.packets if isinstance(x, p.Ack)] == []


async def test_a_request_that_breaks_ends_the_connection() -> None:
    async with open_house() as house:
        house.requests = requests = Requests()
        requests.fail = {1: ZeroDivisionError("a defect")}
        device = await house.device("d1")
        async with Peer(await house.door()) as peer:
            await peer.connect(device)
            peer.send(message(DESIRED, b"1", 1))
            assert (await peer.expect(p.Disconnect)).reason == 0x80
            await peer.end()
        assert house.gateway.counts["requests_broken"] == 1


async def test_too_many_requests_under_way_pause_the_socket() -> None:
    async with open_house() as house:
        house.requests = requests = Requests()
        requests.open.clear()
        device = await house.device("d1")
        async with Peer(await house.door(MqttLimits(requests_under_way=2))) as peer:
            await peer.connect(device)
            peer.send(*(message(DESIRED, str(i).encode(), i) for i in range(1, 4)))
            await until(lambda: house.gateway.counts["paused_for_log"] == 1, "it is read no further")
            peer.send(p.PingReq())
            await asyncio.sleep(0.05)
            assert peer.packets == []
            requests.open.set()
            await peer.take(p.Ack, 3)
            await peer.expect(p.PingResp)
