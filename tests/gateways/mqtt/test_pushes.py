"""What the gateway itself sends to a device, commands and deltas: on its way until it is answered, across connections
and crashes, and a command is never run twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.containers.state import COLLECTIONS, Ground, State
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.entities.errors import DatabaseUnavailable
from iotsphere.entities.shadow import ShadowKey
from iotsphere.entities.shadow_changes import Wanted as Desired
from iotsphere.use_cases.command.order import Order
from iotsphere.use_cases.ports.database import Outcome, Write
from tests.support.waiting import until

from .house import House, open_house
from .peer import Peer, ack
from .test_exactly_once import complete, gone, never, received, release

VERSIONS = (p.MQTT_3_1_1, p.MQTT_5)
COMMANDS = "iotsphere/devices/d1/commands/request"
DELTAS = "iotsphere/devices/d1/shadow/#"
DELTA = "iotsphere/devices/d1/shadow/delta"
SHADOW = ShadowKey("iotsphere", "d1")
KEPT = Properties(session_expiry_interval=3600)


class Database(MemoryDatabase):
    """A database that takes no answers of devices while it is ``deaf``."""

    deaf = False

    async def write(self, collection: str, writes: Sequence[Write]) -> Sequence[Outcome]:
        if self.deaf and collection == "commands":
            raise DatabaseUnavailable("the database is away: repeat it")
        return await super().write(collection, writes)


class Home:
    """A door with a database behind it, and one device. ``state`` is made anew when the process is."""

    def __init__(self, house: House, database: Database) -> None:
        self.house = house
        self.database = database
        self.credential: Any = None
        self.caring: asyncio.Task[None] | None = None
        self.address = ("", 0)

    def begin(self) -> None:
        house = self.house
        ground = Ground(self.database, house.edge, house.publish, house.devices, house.clock)
        self.state = State(ground, house.log, house.documents)
        house.care = self.state.care
        self.caring = asyncio.create_task(self.state.care.run())

    async def crash(self, peer: Peer) -> None:
        """Take the process away as kill -9 would: what it has not written is lost."""
        await peer.ping()
        crashed: Any = self.house.doors.pop()
        crashed._door.use.sessions.exactly_once.keep = never
        crashed._door.use.sessions.leave = never
        assert self.caring is not None
        evidence: Any = self.state.care._evidence
        evidence._waiting.clear()
        self.caring.cancel()
        await asyncio.wait((self.caring,))
        await crashed.close()
        self.house._begin_again()
        self.begin()

    async def send(self, *numbers: int) -> list[str]:
        ids = [f"{number:08x}-0000-4000-8000-000000000000" for number in numbers]
        for number, command_id in zip(numbers, ids, strict=True):
            order = Order(
                id=command_id, domain="iotsphere", device="d1", caller="iotsphere/service/ui", payload={"n": number}
            )
            await self.state.commands.send(order)
        return ids

    async def is_(self, command_id: str, state: str) -> None:
        deadline = asyncio.get_running_loop().time() + 60
        while (now := (await self.state.commands.get("iotsphere", command_id)).state) != state:
            assert asyncio.get_running_loop().time() < deadline, now
            await asyncio.sleep(0.005)

    async def come(self, version: int = p.MQTT_5, qos: int = 2, *filters: str) -> Peer:
        """The device with its kept session; it subscribes when it has none."""
        if not self.house.doors:
            self.address = await self.house.door()
        peer = Peer(self.address, version)
        await peer.__aenter__()
        kept = KEPT if version == p.MQTT_5 else Properties()
        connack = await peer.connect(self.credential, clean_start=False, properties=kept)
        if not connack.session_present:
            assert await peer.subscribe(*(p.Request(each, qos) for each in filters or (COMMANDS,))) == (qos,)
        return peer


@asynccontextmanager
async def open_home() -> AsyncIterator[Home]:
    async with open_house() as house:
        database = Database(house.clock)
        await database.ensure(COLLECTIONS)
        home = Home(house, database)
        home.begin()
        home.credential = await house.device("d1")
        yield home
        await house.close()
        if home.caring is not None:
            home.caring.cancel()
            await asyncio.wait((home.caring,))


@pytest.fixture
async def home() -> AsyncIterator[Home]:
    async with open_home() as opened:
        yield opened


def n(packet: p.Publish) -> Any:
    return json.loads(packet.payload)["payload"]["n"]


def facts(packets: list[p.Publish]) -> list[tuple[Any, int, bool, int]]:
    """(number, packet id, DUP, QoS) of commands."""
    return [(n(each), each.packet_id, bool(each.flags & p.DUP), each.qos) for each in packets]


async def nothing_more(peer: Peer) -> None:
    """All that could come has come."""
    for _ in range(3):
        await peer.ping()
        await asyncio.sleep(0.02)
    assert peer.packets == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("how", ["lost", "killed"])
async def test_a_command_that_was_not_answered_comes_again_under_its_packet_id(
    home: Home, version: int, qos: int, how: str
) -> None:
    peer = await home.come(version, qos)
    ids = await home.send(1, 2, 3)
    first = await peer.take(p.Publish, 3)
    assert [each[0] for each in facts(first)] == [1, 2, 3]
    answer = received if qos == 2 else ack
    peer.send(answer(first[0].packet_id))
    if qos == 2:
        await peer.expect(p.Ack, lambda x: x == release(first[0].packet_id))
        peer.send(complete(first[0].packet_id))
    await home.is_(ids[0], "acknowledged")
    if how == "killed":
        await home.crash(peer)
    await peer.drop()
    if how == "lost":
        await until(lambda: home.house.gateway.connections == 0, "the session is saved")
    peer = await home.come(version, qos)
    kept = [(2, first[1].packet_id, True, qos), (3, first[2].packet_id, True, qos)]
    if how == "killed" and qos == 2:
        await peer.expect(p.Ack, lambda x: x == release(first[0].packet_id))
        peer.send(complete(first[0].packet_id))
    assert facts(await peer.take(p.Publish, 2)) == kept
    for each in first[1:]:
        peer.send(answer(each.packet_id))
        if qos == 2:
            assert await peer.expect(p.Ack) == release(each.packet_id)
            peer.send(complete(each.packet_id))
    for command in ids:
        await home.is_(command, "acknowledged")
    await nothing_more(peer)
    await peer.drop()


@pytest.mark.parametrize("qos", [1, 2])
async def test_an_answer_that_only_the_session_knows_is_not_forgotten_by_a_crash(home: Home, qos: int) -> None:
    """The device has answered, and the process dies before the database knows."""
    peer = await home.come(qos=qos)
    (command,) = await home.send(1)
    first = await peer.expect(p.Publish)
    home.database.deaf = True
    peer.send(received(first.packet_id) if qos == 2 else ack(first.packet_id))
    if qos == 2:
        await peer.expect(p.Ack, lambda x: x == release(first.packet_id))
    await home.crash(peer)
    home.database.deaf = False
    await peer.drop()
    peer = await home.come(qos=qos)
    if qos == 2:
        await peer.expect(p.Ack, lambda x: x == release(first.packet_id))
        peer.send(complete(first.packet_id))
        await home.is_(command, "acknowledged")
    else:  # a PUBACK is on no record: it is asked for once more
        again = await peer.expect(p.Publish)
        assert facts([again]) == [(1, first.packet_id, True, 1)]
        peer.send(ack(again.packet_id))
        await home.is_(command, "acknowledged")
    await nothing_more(peer)
    await peer.drop()


async def test_a_command_that_was_marked_and_never_left_is_handed_over_by_the_next_connection(home: Home) -> None:
    peer = await home.come()
    peer.send(p.Disconnect())
    await gone(home.house, peer)
    (command,) = await home.send(1)
    session = json.loads((await home.house.documents.scan("sessions"))[0].value)["salt"]
    await home.state.commands.claim("iotsphere", "d1", command, carrier=session)  # and then the process was killed
    peer = await home.come()
    assert facts([await peer.expect(p.Publish)]) == [(1, 1, False, 2)]
    await peer.drop()


async def test_at_qos_2_what_another_session_may_have_is_not_handed_over(home: Home) -> None:
    peer = await home.come()
    peer.send(p.Disconnect())
    await gone(home.house, peer)
    (command,) = await home.send(1)
    await home.state.commands.claim("iotsphere", "d1", command, carrier="another")
    peer = await home.come()
    await nothing_more(peer)
    await peer.drop()


@pytest.mark.parametrize(("qos", "again"), [(1, [1, 2]), (2, [2])])
async def test_without_a_session_what_never_left_is_queued_again(home: Home, qos: int, again: list[int]) -> None:
    """A device that takes one message at a time: the first lies at its socket, the second still at the gateway."""
    address = await home.house.door()
    ids = await home.send(1, 2)
    async with Peer(address) as peer:
        await peer.connect(home.credential, properties=Properties(receive_maximum=1))
        await peer.subscribe(p.Request(COMMANDS, qos))
        assert facts([await peer.expect(p.Publish)]) == [(1, 1, False, qos)]
        await home.is_(ids[1], "sent")
        await nothing_more(peer)
    await home.is_(ids[1], "queued")
    async with Peer(address) as peer:
        await peer.connect(home.credential)
        await peer.subscribe(p.Request(COMMANDS, qos))
        assert [n(each) for each in await peer.take(p.Publish, len(again))] == again
        await nothing_more(peer)
    await home.is_(ids[0], "sent")


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_command_that_is_over_is_let_go(home: Home, qos: int) -> None:
    peer = await home.come(qos=qos)
    (command,) = await home.send(1)
    first = await peer.expect(p.Publish)
    await peer.drop()
    await until(lambda: home.house.gateway.connections == 0, "the session is saved")
    await home.state.commands.learn("iotsphere", command, "time_out")
    peer = await home.come(qos=qos)
    if qos == 2:  # its id must not stay taken at the device
        assert await peer.expect(p.Ack) == release(first.packet_id)
        peer.send(complete(first.packet_id))
    await nothing_more(peer)
    (other,) = await home.send(2)
    assert facts([await peer.expect(p.Publish)])[0][0] == 2
    await home.is_(other, "sent")
    await peer.drop()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("how", ["lost", "killed"])
async def test_a_delta_that_was_not_answered_comes_again_under_its_packet_id(home: Home, qos: int, how: str) -> None:
    await home.state.shadows.desire(SHADOW, Desired(patch={"n": 1}, author="ui"))
    peer = await home.come(p.MQTT_5, qos, DELTAS)
    first = await peer.expect(p.Publish)
    assert first.topic.decode() == DELTA
    if how == "killed":
        await home.crash(peer)
    await peer.drop()
    if how == "lost":
        await until(lambda: home.house.gateway.connections == 0, "the session is saved")
    peer = await home.come(p.MQTT_5, qos, DELTAS)
    again = await peer.expect(p.Publish)
    assert (again.packet_id, bool(again.flags & p.DUP), again.qos) == (first.packet_id, True, qos)
    assert json.loads(again.payload)["payload"] == json.loads(first.payload)["payload"]
    await nothing_more(peer)
    await peer.drop()


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_delta_that_the_shadow_has_left_behind_gives_way_to_the_newer_one(home: Home, qos: int) -> None:
    await home.state.shadows.desire(SHADOW, Desired(patch={"n": 1}, author="ui"))
    peer = await home.come(p.MQTT_5, qos, DELTAS)
    first = await peer.expect(p.Publish)
    await peer.drop()
    await until(lambda: home.house.gateway.connections == 0, "the session is saved")
    await home.state.shadows.desire(SHADOW, Desired(patch={"n": 2}, author="ui"))
    peer = await home.come(p.MQTT_5, qos, DELTAS)
    if qos == 2:
        assert await peer.expect(p.Ack) == release(first.packet_id)
        peer.send(complete(first.packet_id))
    newer = await peer.expect(p.Publish)
    assert json.loads(newer.payload)["payload"]["delta"] == {"n": 2}
    assert not newer.flags & p.DUP
    await nothing_more(peer)
    await peer.drop()


async def test_without_a_filter_for_it_a_command_is_let_go(home: Home) -> None:
    peer = await home.come()
    await home.send(1)
    first = await peer.expect(p.Publish)
    peer.send(p.Unsubscribe(9, (COMMANDS,)))
    await peer.expect(p.UnsubAck)
    await peer.drop()
    await until(lambda: home.house.gateway.connections == 0, "the session is saved")
    peer = await home.come()
    assert await peer.expect(p.Ack) == release(first.packet_id)
    await nothing_more(peer)
    await peer.drop()
