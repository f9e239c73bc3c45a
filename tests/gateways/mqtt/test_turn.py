"""Plain messages that go into the log with those of others: the same answers and records as on each client's own way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotsphere.adapters.mqtt import packets as p
from iotsphere.adapters.mqtt.codec import Parser
from iotsphere.adapters.mqtt.encode import encode
from iotsphere.adapters.mqtt.life import ONLINE, Offer
from iotsphere.adapters.mqtt.properties import Properties
from iotsphere.adapters.mqtt.reasons import Reason
from iotsphere.entities.errors import LogFull
from iotsphere.gateways.mqtt import MqttLimits
from iotsphere.gateways.mqtt.client import MqttClient
from iotsphere.gateways.mqtt.door import MqttDoor
from tests.support.waiting import until

from .house import House, open_house
from .peer import message

LIMITS = MqttLimits(close_on_denial=False, offer=Offer(receive_maximum=100))
NOWHERE = "iotsphere/devices/somebody-else/telemetry"


class Line:
    """A client without a socket: what a test gives it is a read, and what it writes is taken apart."""

    def __init__(self, door: MqttDoor, version: int = p.MQTT_5) -> None:
        self.client = MqttClient(door, self, "127.0.0.1")
        self.version = version
        self.writes = 0
        self.reading = True
        self.packets: list[Any] = []
        self._parser = Parser(version)
        assert door.admission.opened(self.client)
        door.enter(self.client)

    async def connect(self, house: House, name: str) -> None:
        credential = await house.device(name)
        password = credential.password.encode()
        connect = p.Connect(self.version, name, username=credential.username, password=password)
        self.client.receive(encode(connect, self.version))
        await until(lambda: self.client.session.state == ONLINE, "it is welcome")
        await until(lambda: not house.publish.pending_bytes, "its presence is told")
        self.packets.clear()
        self.writes = 0

    def read(self, *packets: p.Packet) -> None:
        self.client.receive(b"".join(encode(packet, self.version) for packet in packets))

    @property
    def answers(self) -> list[p.Ack]:
        return [packet for packet in self.packets if isinstance(packet, p.Ack)]

    # -- the wire -----------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.packets += _alone(self._parser.feed(data))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        asyncio.get_running_loop().call_soon(self.client.lost, "the test is over")

    def abort(self) -> None:
        self.close()


def _alone(items: list[Any]) -> list[Any]:
    """Every acknowledgement by itself."""
    return [
        one
        for item in items
        for one in ([p.Ack(p.PUBACK, each) for each in item.packet_ids] if isinstance(item, p.Acks) else [item])
    ]


def topic(name: str, metric: str = "t") -> str:
    return f"iotsphere/devices/{name}/telemetry/{metric}"


async def payloads(house: House, name: str, channel: str = "telemetry") -> dict[str, list[Any]]:
    """What the log has of a device, by the last level of the topic."""
    found: dict[str, list[Any]] = {}
    for envelope in await house.envelopes(channel):
        if envelope["metadata"]["source"] == name:
            found.setdefault(envelope["metadata"]["topic"].rpartition("/")[2], []).append(envelope["payload"])
    return found


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as opened:
        await opened.door(LIMITS)
        yield opened


@pytest.fixture
def door(house: House) -> MqttDoor:
    return house.gateway._door


async def lines(house: House, door: MqttDoor, *names: str, version: int = p.MQTT_5) -> list[Line]:
    """Clients that have published once, so that their topics are known."""
    found = [Line(door, version) for _ in names]
    for line, name in zip(found, names, strict=True):
        await line.connect(house, name)
        line.read(message(topic(name), b"0", 99))
        await until(lambda line=line: line.answers, "the first one is answered")  # type: ignore[misc]  # line is bound
        line.packets.clear()
        line.writes = 0
    return found


# -- what it is for ---------------------------------------------------------------------------------------------------


async def test_the_reads_of_all_clients_are_one_append_and_one_write_each(house: House, door: MqttDoor) -> None:
    names = [f"d{i}" for i in range(5)]
    clients = await lines(house, door, *names)
    batches = house.publish.batches
    for value in (1, 2):
        for line, name in zip(clients, names, strict=True):
            line.read(message(topic(name), b"%d" % value, value))
    await until(lambda: all(len(line.answers) == 2 for line in clients), "all are answered")
    assert house.publish.batches == batches + 1
    assert [line.writes for line in clients] == [1] * 5
    for line, name in zip(clients, names, strict=True):
        assert line.answers == [p.Ack(p.PUBACK, 1), p.Ack(p.PUBACK, 2)]
        assert await payloads(house, name) == {"t": [{"value": 0}, {"value": 1}, {"value": 2}]}


async def test_what_comes_while_an_append_is_under_way_joins_one_answer(house: House, door: MqttDoor) -> None:
    (line,) = await lines(house, door, "d1")
    house.log.open.clear()
    line.read(message(topic("d1"), b"1", 1))
    await until(lambda: house.log.waiting, "the append begins")
    for packet_id in range(2, 6):
        line.read(message(topic("d1"), b"1", packet_id))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert line.answers == []
    house.log.open.set()
    await until(lambda: len(line.answers) == 5, "all are answered")
    assert (line.writes, [each.packet_id for each in line.answers]) == (2, [1, 2, 3, 4, 5])
    assert house.gateway.counts["submitted"] == 6


# -- order ------------------------------------------------------------------------------------------------------------


async def test_what_is_unusual_is_answered_behind_what_was_gathered(house: House, door: MqttDoor) -> None:
    (line,) = await lines(house, door, "d1")
    house.log.open.clear()
    line.read(message(topic("d1"), b"1", 1))
    line.read(message(topic("d1"), b"", 2))  # nothing to append, so nothing to wait for
    line.read(p.Publish(topic("d1").encode(), b"3", 3, 4))
    line.read(message(NOWHERE, b"4", 4))
    line.read(message(topic("d1"), b"{", 5), message(topic("d1"), b"6", 6))
    await until(lambda: house.log.waiting, "the append begins")
    await asyncio.sleep(0)
    assert line.answers == []
    house.log.open.set()
    await until(lambda: len(line.answers) == 6, "all are answered")
    assert [(each.kind, each.packet_id, each.reason) for each in line.answers] == [
        (p.PUBACK, 1, 0),
        (p.PUBACK, 2, 0),
        (p.PUBREC, 3, 0),
        (p.PUBACK, 4, Reason.NOT_AUTHORIZED),
        (p.PUBACK, 5, Reason.PAYLOAD_FORMAT_INVALID),
        (p.PUBACK, 6, 0),
    ]
    assert await payloads(house, "d1") == {"t": [{"value": each} for each in (0, 1, 3, 6)]}
    assert [letter["reason"] for letter in await house.dead_letters()] == ["acl_denied", "payload_not_json"]


async def test_a_read_behind_an_unusual_one_of_the_same_turn_is_answered_behind_it(
    house: House, door: MqttDoor
) -> None:
    line, other = await lines(house, door, "d1", "d2")
    line.read(message(topic("d1"), b"1", 1))
    line.read(message(topic("d1"), b"2", 2), message(topic("d1"), b"{", 3), message(topic("d1"), b"4", 4))
    other.read(message(topic("d2"), b"5", 5))
    line.read(message(topic("d1"), b"6", 6))
    await until(lambda: len(line.answers) == 5 and other.answers, "all are answered")
    assert [each.packet_id for each in line.answers] == [1, 2, 3, 4, 6]
    assert await payloads(house, "d1") == {"t": [{"value": each} for each in (0, 1, 2, 4, 6)]}
    assert await payloads(house, "d2") == {"t": [{"value": 0}, {"value": 5}]}


PLAIN, QUIET, OTHER, BROKEN, DENIED, EMPTY, CLEARED, ONCE, STATED, PING = range(10)
KINDS = st.sampled_from([PLAIN] * 6 + [QUIET, OTHER, BROKEN, DENIED, EMPTY, CLEARED, ONCE, STATED, PING])
NOTHING, TURN, SETTLE, SHUT, OPEN = range(5)
STEPS = st.tuples(st.integers(1, 400), st.sampled_from([NOTHING] * 3 + [TURN, SETTLE, SHUT, OPEN]))


def packet_of(kind: int, name: str, packet_id: int, version: int) -> p.Packet:
    mine, payload = topic(name), b"%d" % packet_id
    match kind:
        case 1:
            return message(mine, payload)
        case 2:
            return message(topic(name, f"m{packet_id % 3}"), payload, packet_id)
        case 3:
            return message(mine, b'{"a":1,"a":2}', packet_id)
        case 4:
            return message(NOWHERE, payload, packet_id)
        case 5:
            return message(mine, b"", packet_id)
        case 6:
            return message(mine, b"", packet_id, retain=True)
        case 7:
            return p.Publish(mine.encode(), payload, packet_id, 4)
        case 8 if version == p.MQTT_5:
            return message(mine, payload, packet_id)._replace(properties=Properties(correlation_data=b"c1"))
        case 9:
            return p.PingReq()
    return message(mine, payload, packet_id)


class Outcome(NamedTuple):
    """What became of a client's packets."""

    answers: list[tuple[int, int, int]]
    records: dict[str, list[Any]]
    letters: list[str]
    pongs: int
    under_way: tuple[int, int]
    still: tuple[bool, bool]


class Script(NamedTuple):
    """What a client does: packets by kind, and after how many bytes a read ends, with what follows it."""

    version: int
    kinds: list[int]
    steps: list[tuple[int, int]]


async def play(house: House, door: MqttDoor, name: str, script: Script) -> Outcome:
    """Send packets in reads that are cut anywhere, with turns of the loop and a log that stops between them."""
    version, kinds, steps = script
    (line,) = await lines(house, door, name, version=version)
    packets = [packet_of(kind, name, number, version) for number, kind in enumerate(kinds, 1)]
    data = b"".join(encode(packet, version) for packet in packets)
    visit, session = line.client.visit, line.client.session
    assert visit is not None
    for size, step in [*steps, (len(data), OPEN)]:
        part, data = data[:size], data[size:]
        if part:
            line.client.receive(part)
        if step == TURN:
            await asyncio.sleep(0)
        elif step == SETTLE and house.log.open.is_set():
            await visit.settle()
        elif step == SHUT:
            house.log.open.clear()
        elif step == OPEN:
            house.log.open.set()
    await visit.settle()
    outcome = Outcome(
        [(each.kind, each.packet_id, each.reason) for each in line.answers],
        await payloads(house, name),
        [letter["reason"] for letter in await house.dead_letters() if letter["source"] == name],
        sum(isinstance(packet, p.PingResp) for packet in line.packets),
        (visit.ingress.bytes_under_way if visit.ingress is not None else 0, session.incoming.unanswered),
        (session.state == ONLINE, line.reading),
    )
    line.client.cut()
    return outcome


VERSIONS = st.sampled_from((p.MQTT_5, p.MQTT_3_1_1))
SCRIPTS = st.builds(Script, VERSIONS, st.lists(KINDS, min_size=1, max_size=24), st.lists(STEPS, max_size=12))


def test_any_packets_in_any_reads_are_answered_and_kept_as_on_the_clients_own_way() -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        house = runner.run(stack.enter_async_context(open_house()))
        doors: list[MqttDoor] = []
        for _ in range(2):
            runner.run(house.door(LIMITS))
            doors.append(house.gateway._door)
        doors[1].turn = None
        seen = Counter[str]()

        @settings(max_examples=60, deadline=None)
        @given(SCRIPTS)
        def check(script: Script) -> None:
            seen["examples"] += 1
            one, other = (
                runner.run(play(house, door, f"d{seen['examples']}-{index}", script))
                for index, door in enumerate(doors)
            )
            assert one == other
            packets = [packet_of(kind, "d", number, script.version) for number, kind in enumerate(script.kinds, 1)]
            assert [packet_id for _, packet_id, _ in one.answers] == [
                packet.packet_id for packet in packets if isinstance(packet, p.Publish) and packet.packet_id
            ]
            assert (one.under_way, one.still) == ((0, 0), (True, True))

        check()
        runner.run(stack.aclose())


# -- when it ends badly -----------------------------------------------------------------------------------------------


async def test_a_full_log_is_told_to_each_client_in_order(house: House, door: MqttDoor) -> None:
    first, second = await lines(house, door, "d1", "d2")
    house.log.failure = LogFull("the log is full: trim it")
    first.read(message(topic("d1"), b"1", 1), message(topic("d1"), b"2", 2))
    second.read(message(topic("d2"), b"1", 7))
    await until(lambda: second.answers, "both are answered")
    quota = Reason.QUOTA_EXCEEDED
    assert [(each.packet_id, each.reason) for each in first.answers] == [(1, quota), (2, quota)]
    assert [(each.packet_id, each.reason) for each in second.answers] == [(7, quota)]
    house.log.failure = None
    first.read(message(topic("d1"), b"3", 3))
    await until(lambda: len(first.answers) == 3, "it goes on")
    assert (first.answers[2], first.client.session.incoming.unanswered) == (p.Ack(p.PUBACK, 3), 0)
    assert await payloads(house, "d1") == {"t": [{"value": 0}, {"value": 3}]}


async def test_a_full_log_closes_a_client_that_has_no_words_for_it(house: House, door: MqttDoor) -> None:
    (line,) = await lines(house, door, "d1", version=p.MQTT_3_1_1)
    house.log.failure = LogFull("the log is full: trim it")
    line.read(message(topic("d1"), b"1", 1))
    await until(lambda: line.client.ended, "it is closed")
    house.log.failure = None
    assert line.client.ended is not None
    assert (line.client.ended.reason, line.answers) == (Reason.QUOTA_EXCEEDED, [])


async def test_what_a_client_sent_before_it_was_gone_is_kept_and_not_answered(house: House, door: MqttDoor) -> None:
    gone, other = await lines(house, door, "d1", "d2")
    house.log.open.clear()
    gone.read(message(topic("d1"), b"1", 1))
    other.read(message(topic("d2"), b"1", 1))
    gone.client.lost("the connection was lost")
    house.log.open.set()
    await until(lambda: gone.client not in door.clients, "it is forgotten")
    await until(lambda: other.answers, "the other one is answered")
    assert (gone.answers, gone.writes) == ([], 0)
    assert await payloads(house, "d1") == {"t": [{"value": 0}, {"value": 1}]}


async def test_who_leaves_gets_the_answers_to_what_was_gathered_first(house: House, door: MqttDoor) -> None:
    (line,) = await lines(house, door, "d1")
    house.log.open.clear()
    line.read(message(topic("d1"), b"1", 1))
    leaving = asyncio.create_task(line.client.leave())
    await until(lambda: house.log.waiting, "the append begins")
    assert line.client.session.state == ONLINE
    house.log.open.set()
    await leaving
    assert [type(packet) for packet in line.packets] == [p.Ack, p.Disconnect]


async def test_a_client_with_enough_under_way_is_read_no_further(house: House, door: MqttDoor) -> None:
    (line,) = await lines(house, door, "d1")
    house.log.open.clear()
    line.read(*(message(topic("d1"), b"1", packet_id) for packet_id in range(1, 101)))
    await until(lambda: not line.reading, "it is paused")
    house.log.open.set()
    await until(lambda: line.reading, "it is read again")
    assert len(line.answers) == 100
    payload = orjson.dumps({"text": "x" * 20_000})
    house.log.open.clear()
    for packet_id in range(1, 11):
        line.read(message(topic("d1"), payload, packet_id))
    assert house.gateway.counts["paused_for_log"] == 1
    for packet_id in range(11, 15):
        line.read(message(topic("d1"), payload, packet_id))
    await until(lambda: not line.reading, "it is paused for its bytes")
    house.log.open.set()
    await until(lambda: line.reading, "it is read again")
