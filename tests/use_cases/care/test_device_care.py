"""Care for devices: one delta, commands one by one and once, and evidence that outlives a database that is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
import pytest

from iotsphere.adapters.envelope import payload_of
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.entities.channel import DEFAULT_CHANNELS
from iotsphere.entities.errors import DatabaseUnavailable
from iotsphere.entities.message import Record
from iotsphere.entities.principal import Principal, device
from iotsphere.entities.shadow import ShadowKey
from iotsphere.entities.shadow_changes import Wanted as Desired
from iotsphere.entities.topic import parse_filter
from iotsphere.use_cases.care import device_care, handover
from iotsphere.use_cases.command.order import Order
from iotsphere.use_cases.ports.database import Outcome, Stored, Write
from iotsphere.use_cases.session.state import Wanted
from tests.support.rooms import Rooms
from tests.use_cases.stage import soon

DEVICE = device("iotsphere", "d1")
TOPIC = "iotsphere/devices/d1"
REQUEST = f"{TOPIC}/commands/request"
KEY = ShadowKey("iotsphere", "d1")


class Flaky(MemoryDatabase):
    """A database that can go away; ``reads``: also for those who only look. ``slow``: seconds until it says so."""

    away = False
    slow = 0.0
    refusals = 0

    async def _check(self) -> None:
        if self.away:
            self.refusals += 1
            await asyncio.sleep(self.slow)
            raise DatabaseUnavailable("away")

    async def get(self, collection: str, key: str) -> Stored | None:
        await self._check()
        return await super().get(collection, key)

    async def write(self, collection: str, writes: Sequence[Write]) -> Sequence[Outcome]:
        await self._check()
        return await super().write(collection, writes)

    async def find(self, collection: str, index: str, equal: Sequence[Any], **options: Any) -> Sequence[Stored]:
        await self._check()
        return await super().find(collection, index, equal, **options)


@dataclass(eq=False)
class Line:
    """One connection of a device: what was pushed to it, and what came first when it was greeted."""

    stage: Stage
    who: Principal = DEVICE
    pushed: list[Record] = field(default_factory=list)

    def push(self, records: Iterable[Record]) -> None:
        self.pushed += records

    def __post_init__(self) -> None:
        self.known_as = self.push

    async def greet(self, *filters: str, qos: int = 1) -> list[Any]:
        wanted = [Wanted(parse_filter(f"{TOPIC}/{text}"), qos) for text in filters or ("#",)]
        return list(map(payload, await self.stage.care.greet(self.who, wanted, self.known_as)))

    def sends(self, record: Record) -> bool:
        """What the outbox does with an entry of the log: ask, and tell."""
        if self.stage.care.skip(self.who, record, self.known_as):
            return False
        self.stage.care.sent(self.who, record, self.known_as)
        return True

    def acknowledge(self, *records: Record, refused: bool = False) -> None:
        for record in records:
            self.stage.care.sent(self.who, record, self.known_as)
            self.stage.care.acknowledged(self.who, record, refused)

    def reaches_the_socket(self) -> None:
        for record in self.pushed:
            self.stage.care.sent(self.who, record, self.known_as)

    def leave(self) -> None:
        self.stage.care.left(self.who, self.known_as)

    @property
    def commands(self) -> list[int]:
        return [payload(record)["n"] for record in self.pushed if record.topic == REQUEST]


class Stage(Rooms):
    def __init__(self) -> None:
        super().__init__()
        self.database: Flaky = Flaky(self.clock)

    async def open(self) -> None:
        for domain in ("iotsphere", "other"):
            await self.log.ensure(domain, DEFAULT_CHANNELS)
        await self.open_state()
        self.care = self.state.care
        for domain in ("iotsphere", "other"):
            await self.devices.register(domain, "d1")

    async def send(self, *numbers: int, domain: str = "iotsphere", **facts: Any) -> list[str]:
        ids = []
        for number in numbers:
            ids.append(f"{number:08x}-0000-4000-8000-000000000000")
            order = Order(
                id=ids[-1], domain=domain, device="d1", caller=f"{domain}/service/ui", payload={"n": number}, **facts
            )
            await self.state.commands.send(order)
        return ids

    async def is_(self, command_id: str, domain: str = "iotsphere") -> str:
        return (await self.state.commands.get(domain, command_id)).state

    async def until(self, command_id: str, state: str) -> None:
        deadline = asyncio.get_running_loop().time() + 60
        while (now := await self.is_(command_id)) != state:
            assert asyncio.get_running_loop().time() < deadline, now
            await asyncio.sleep(0.005)

    def requests(self) -> list[Record]:
        """The requests in the log."""
        found = []
        for partition in self.log.partitions("iotsphere", "commands"):
            found += [entry.record for entry in self.log.shelf(partition).entries]
        return found

    def delta(self, sequence: int) -> Record:
        return self.record(f"{TOPIC}/shadow/delta", {"delta": {"n": sequence}, "sequence": sequence, "version": 1})


def payload(record: Record) -> Any:
    return orjson.loads(payload_of(record.body))


def _has(line: Line, count: int) -> bool:
    return len(line.pushed) >= count


async def settled() -> None:
    """Let everything that can happen in memory happen."""
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    await made.open()
    caring = asyncio.create_task(made.care.run())
    yield made
    caring.cancel()
    await asyncio.wait((caring,))


async def test_a_device_is_greeted_with_one_delta_per_shadow(stage: Stage) -> None:
    for number in range(5):
        await stage.state.shadows.desire(KEY, Desired(patch={"n": number}, author="ui"))
    await stage.state.shadows.desire(ShadowKey("iotsphere", "d1", "radio"), Desired(patch={"band": 5}, author="ui"))
    await stage.state.shadows.desire(ShadowKey("other", "d1"), Desired(patch={"n": 9}, author="ui"))
    line = Line(stage)
    assert await line.greet("shadow/delta") == [{"delta": {"n": 4}, "sequence": 5, "version": 5}]
    assert await line.greet("shadow/delta", "shadow/+/delta") == [{"delta": {"band": 5}, "sequence": 1, "version": 1}]
    assert await line.greet() == []
    assert [line.sends(stage.delta(sequence)) for sequence in (4, 5, 6, 6)] == [False, False, True, False]


async def test_what_one_connection_was_told_says_nothing_about_another(stage: Stage) -> None:
    await stage.state.shadows.desire(KEY, Desired(patch={"n": 0}, author="ui"))
    first, second = Line(stage), Line(stage)
    await first.greet()
    for number in range(1, 4):
        await stage.state.shadows.desire(KEY, Desired(patch={"n": number}, author="ui"))
    assert [delta["sequence"] for delta in await second.greet()] == [4]
    assert [first.sends(stage.delta(sequence)) for sequence in (1, 2, 3, 4)] == [False, True, True, True]
    assert [second.sends(stage.delta(sequence)) for sequence in (2, 3, 4)] == [False, False, False]


async def test_commands_are_marked_before_they_are_handed_over_in_their_order(stage: Stage) -> None:
    ids = await stage.send(1, 2, 3)
    states: list[str] = []

    class Careful(Line):
        def push(self, records: Iterable[Record]) -> None:
            for record in records:
                row = stage.database._rows["commands"][f"iotsphere/{record.message_id}"]
                states.append(orjson.loads(row[1])["state"])
            super().push(records)

    line = Careful(stage)
    assert await line.greet() == []
    await soon(lambda: len(line.pushed) == 3, "all are handed over")
    assert line.commands == [1, 2, 3]
    assert states == ["sent"] * 3
    assert [(record.message_id, payload(record)) for record in line.pushed] == [
        (command_id, {"n": number}) for number, command_id in enumerate(ids, 1)
    ]
    line.acknowledge(line.pushed[0])
    line.acknowledge(line.pushed[1], refused=True)
    await stage.until(ids[0], "acknowledged")
    await stage.until(ids[1], "rejected")
    assert (await stage.state.commands.get("iotsphere", ids[1])).answer == device_care.REFUSED


async def test_a_command_of_the_log_is_handed_over_by_the_database_alone(stage: Stage) -> None:
    line = Line(stage)
    await line.greet()
    await stage.send(1)
    (record,) = stage.requests()
    assert not line.sends(record)
    assert not line.sends(record)  # the feed and the backlog may both come by it
    await soon(lambda: line.commands == [1], "handed over")
    await settled()
    assert line.commands == [1]


async def test_cancelled_and_expired_commands_are_never_pushed(stage: Stage) -> None:
    ids = await stage.send(1, 2)
    (late,) = await stage.send(3, expires_at=stage.clock.now() + 1_000)
    await stage.state.commands.cancel("iotsphere", ids[0])
    stage.clock.advance(1_000)
    line = Line(stage)
    await line.greet()
    for record in stage.requests():
        line.sends(record)
    await soon(lambda: line.pushed, "what is left")
    await settled()
    assert line.commands == [2]
    assert [await stage.is_(command_id) for command_id in (*ids, late)] == ["cancelled", "sent", "expired"]


async def test_two_connections_of_a_device_get_a_command_once(stage: Stage) -> None:
    one, two = Line(stage), Line(stage)
    await stage.send(1)
    await asyncio.gather(one.greet(), two.greet())
    await stage.send(*range(2, 20))
    for record in stage.requests():
        one.sends(record)
        two.sends(record)
    await soon(lambda: len(one.commands) + len(two.commands) == 19, "all are handed over")
    await settled()
    assert sorted(one.commands + two.commands) == list(range(1, 20))


async def test_a_connection_that_wants_no_commands_takes_none_away(stage: Stage) -> None:
    deltas, commands = Line(stage), Line(stage)
    await deltas.greet("shadow/delta")
    await commands.greet("commands/request")
    await stage.send(1)
    (record,) = stage.requests()
    commands.sends(record)
    await soon(lambda: commands.commands == [1], "handed over")
    await settled()
    assert deltas.pushed == []


@pytest.mark.parametrize(("qos", "again"), [(1, [1, 2]), (0, [2]), (2, [2])])
async def test_what_was_not_acknowledged_comes_again_at_qos_1_only(stage: Stage, qos: int, again: list[int]) -> None:
    ids = await stage.send(1)
    first = Line(stage)
    await first.greet(qos=qos)
    await soon(lambda: first.commands == [1], "handed over")
    first.reaches_the_socket()
    first.leave()
    await stage.send(2)
    second = Line(stage)
    await second.greet(qos=qos)
    await soon(lambda: second.commands[-1:] == [2], "handed over")
    assert second.commands == again
    second.acknowledge(*second.pushed)
    if qos == 1:
        await stage.until(ids[0], "acknowledged")
        third = Line(stage)
        await third.greet(qos=qos)
        await settled()
        assert third.commands == []


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_did_not_reach_the_socket_is_queued_again(stage: Stage, qos: int) -> None:
    ids = await stage.send(1, 2, 3)
    first = Line(stage)
    await first.greet(qos=qos)
    await soon(lambda: first.commands == [1, 2, 3], "handed over")
    stage.care.sent(first.who, first.pushed[0], first.known_as)
    first.leave()
    await stage.until(ids[2], "queued")
    assert [await stage.is_(command_id) for command_id in ids] == ["sent", "queued", "queued"]
    stage.clock.advance(3_600_000)  # more than a device has for its answer, less than a command lives
    await stage.state.commands.tend()
    assert [await stage.is_(command_id) for command_id in ids] == ["timed_out", "queued", "queued"]
    second = Line(stage)
    await second.greet(qos=qos)
    await soon(lambda: second.commands == [2, 3], "handed over by the next connection")
    second.acknowledge(*second.pushed)
    await stage.until(ids[2], "acknowledged")


async def test_what_did_not_reach_the_socket_is_cancelled_if_its_rollout_was_called_off(stage: Stage) -> None:
    for rollout, state in (("iotsphere/r1", "aborted"), ("iotsphere/r2", "running")):
        await stage.database.put("rollouts", Write(rollout, None, {"state": state}))
    ids = [*await stage.send(1, rollout="iotsphere/r1"), *await stage.send(2, rollout="iotsphere/r2")]
    line = Line(stage)
    await line.greet(qos=2)
    await soon(lambda: line.commands == [1, 2], "handed over")
    line.leave()
    await stage.until(ids[0], "cancelled")
    await stage.until(ids[1], "queued")


async def test_a_device_that_comes_at_once_gets_what_its_last_connection_did_not_take(stage: Stage) -> None:
    """Also while the database has not heard of that yet, and in the order of the commands."""
    ids = await stage.send(1, 2)
    first = Line(stage)
    await first.greet(qos=2)
    await soon(lambda: first.commands == [1, 2], "handed over")
    stage.database.away = True
    first.leave()
    second = Line(stage)
    greeting = asyncio.create_task(second.greet(qos=2))
    await settled()
    stage.database.away = False
    await stage.send(3)
    await greeting
    await soon(lambda: second.commands == [1, 2, 3], "handed over in order")
    second.reaches_the_socket()
    second.leave()
    third = Line(stage)
    await third.greet(qos=2)
    await settled()
    assert third.commands == []
    assert [await stage.is_(command_id) for command_id in ids] == ["sent", "sent"]


async def test_another_connection_of_the_device_gets_what_the_first_one_did_not_take(stage: Stage) -> None:
    first, second = Line(stage), Line(stage)
    await first.greet(qos=2)
    await second.greet(qos=2)
    ids = await stage.send(1, 2, 3)
    for record in stage.requests():
        assert not first.sends(record)
    await soon(lambda: first.commands == [1, 2, 3], "handed over")
    give_back, places = stage.state.commands.give_back, iter((3, 2, 1))

    async def slowly(domain: str, command_id: str, carrier: str) -> bool:
        for _ in range(50 * next(places)):  # the database answers in another order than it was asked
            await asyncio.sleep(0)
        return await give_back(domain, command_id, carrier)

    stage.state.commands.give_back = slowly  # type: ignore[method-assign]  # only here, and only to be slower
    first.leave()
    await soon(lambda: len(second.commands) == 3, "handed over to the other one")
    assert second.commands == [1, 2, 3]
    assert [await stage.is_(command_id) for command_id in ids] == ["sent"] * 3


async def test_a_claim_that_lands_after_the_connection_is_taken_back(stage: Stage) -> None:
    line = Line(stage)
    await line.greet(qos=2)
    (command,) = await stage.send(1)
    landing = asyncio.Event()
    written: list[str] = []
    write = stage.database.write

    async def slow(collection: str, writes: Sequence[Write]) -> Sequence[Outcome]:
        assert writes[0].body is not None
        if writes[0].body["state"] == "sent":
            await landing.wait()
        written.append(writes[0].body["state"])
        return await write(collection, writes)

    stage.database.write = slow  # type: ignore[method-assign]  # only here, and only to hold one write up
    assert not line.sends(stage.requests()[0])
    await settled()
    line.leave()
    await settled()
    landing.set()
    await soon(lambda: written == ["sent", "queued"], "taken back")
    await stage.until(command, "queued")
    assert line.commands == []


async def test_what_was_handed_over_again_is_not_given_back_by_the_connection_before(stage: Stage) -> None:
    """It has lain at a socket by now, whatever became of it at the first one."""
    (command,) = await stage.send(1)
    first = Line(stage)
    await first.greet(qos=2)
    await soon(lambda: first.commands == [1], "handed over")
    claimed = await stage.state.commands.claim("iotsphere", "d1", command, again=True, carrier="elsewhere")
    assert claimed is not None
    first.leave()
    await soon(lambda: not stage.care._handover._returning, "the database was asked")
    stands = await stage.state.commands.get("iotsphere", command)
    assert (stands.state, stands.carrier) == ("sent", "elsewhere")


async def test_what_is_under_way_on_one_connection_does_not_come_again_on_another(stage: Stage) -> None:
    await stage.send(1)
    first, second = Line(stage), Line(stage)
    await first.greet()
    await soon(lambda: first.commands == [1], "handed over")
    await second.greet()
    await first.greet()  # a further SUBSCRIBE
    await settled()
    assert (first.commands, second.commands) == ([1], [])


async def test_other_devices_and_domains_are_not_this_ones_business(stage: Stage) -> None:
    await stage.send(1, domain="other")
    hub, line = Line(stage, device("iotsphere", "hub")), Line(stage)
    await hub.greet()
    await line.greet()
    (command_id,) = await stage.send(2)
    (record,) = stage.requests()
    assert hub.sends(record)  # whoever may listen to another device's topics simply hears them
    hub.acknowledge(record)
    hub.acknowledge(stage.delta(1))
    await settled()
    assert (hub.pushed, line.pushed) == ([], [])
    assert await stage.is_(command_id) == "queued"
    await stage.care.greet(device("other", "d1"), [Wanted(parse_filter("other/devices/d1/#"), 1)], line.known_as)
    await soon(lambda: line.pushed, "handed over")
    assert [record.topic for record in line.pushed] == ["other/devices/d1/commands/request"]


async def test_evidence_is_kept_while_the_database_is_away(stage: Stage) -> None:
    (command_id,) = await stage.send(1)
    await stage.state.shadows.desire(KEY, Desired(patch={"n": 1}, author="ui"))
    line = Line(stage)
    await line.greet()
    await soon(lambda: line.commands == [1], "handed over")
    stage.database.away = True
    line.acknowledge(*line.pushed, stage.delta(1))
    await soon(lambda: stage.database.refusals >= 2, "tried in vain")
    stage.database.away = False
    await stage.until(command_id, "acknowledged")
    deadline = asyncio.get_running_loop().time() + 60
    while (await stage.state.shadows.get(KEY)).wishes["/n"].status != "acknowledged":
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)
    assert stage.care.dropped == 0


async def test_evidence_about_nothing_is_passed_over(stage: Stage) -> None:
    (command_id,) = await stage.send(1)
    line = Line(stage)
    await line.greet()
    await soon(lambda: line.commands == [1], "handed over")
    gone = line.pushed[0]._replace(message_id="0000ffff-0000-4000-8000-000000000000")
    line.acknowledge(gone, line.pushed[0])
    await stage.until(command_id, "acknowledged")


@pytest.mark.parametrize("slow", [0.0, 1.5], ids=["at once", "after a while"])
async def test_a_device_is_greeted_late_when_the_database_was_away(stage: Stage, slow: float) -> None:
    await stage.send(1, 2)
    await stage.state.shadows.desire(KEY, Desired(patch={"n": 1}, author="ui"))
    stage.database.away, stage.database.slow = True, slow
    line = Line(stage)
    assert await line.greet("commands/request") == []
    assert await line.greet() == []
    gone = Line(stage)
    assert await gone.greet() == []
    gone.leave()
    stage.database.away = False
    deadline = asyncio.get_running_loop().time() + 60
    while len(line.pushed) < 3:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)
    assert (payload(line.pushed[0])["delta"], line.commands) == ({"n": 1}, [1, 2])
    assert gone.pushed == []
    line.leave()
    assert stage.care.connected == 0


async def test_who_leaves_while_it_is_greeted_gets_nothing_and_leaves_nothing(stage: Stage) -> None:
    (command_id,) = await stage.send(1)
    line = Line(stage)
    greeting = asyncio.create_task(line.greet())
    await asyncio.sleep(0)
    line.leave()
    assert await greeting == []
    await settled()
    assert (line.pushed, stage.care.connected) == ([], 0)
    assert await stage.is_(command_id) == "queued"


async def test_a_command_that_people_broke_holds_up_no_other(stage: Stage) -> None:
    ids = await stage.send(1, 2)
    line = Line(stage)
    await line.greet()
    await soon(lambda: len(line.commands) == 2, "handed over")
    (broken, good) = await stage.send(3, 4)
    key = f"iotsphere/{broken}"
    stored = await stage.database.get("commands", key)
    assert stored is not None
    await stage.database.put("commands", Write(key, stored, {**stored.body, "timeout": "soon"}))
    for record in stage.requests():
        line.sends(record)
    await soon(lambda: line.commands[-1:] == [4], "handed over")
    assert line.commands == [1, 2, 4]
    assert await stage.is_(good) == "sent"
    assert len(ids) == 2


async def test_more_than_fits_is_looked_up_when_its_turn_comes(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (device_care, handover):
        monkeypatch.setattr(module, "MAX_WAITING", 4)
    monkeypatch.setattr(handover, "MAX_QUEUED", 2)
    await stage.send(*range(10))
    line = Line(stage)
    await line.greet()
    await stage.send(*range(10, 30))
    for record in stage.requests():
        line.sends(record)
    await settled()
    assert line.commands == [0, 1]  # no more is marked as sent than may wait for the socket
    for turn in range(30):
        await soon(partial(_has, line, turn + 1), "the next one")
        line.acknowledge(line.pushed[turn])
    await settled()
    assert line.commands == list(range(30))


async def test_evidence_is_bounded_and_counted(stage: Stage) -> None:
    (command_id,) = await stage.send(1)
    line = Line(stage)
    await line.greet()
    await soon(lambda: line.commands == [1], "handed over")
    stage.database.away = True
    delta = stage.delta(1)
    for _ in range(10_050):
        stage.care.acknowledged(DEVICE, delta, False)
    assert stage.care.dropped == 50
    stage.database.away = False
    assert await stage.is_(command_id) == "sent"


async def test_what_was_heard_before_the_end_is_written_down() -> None:
    stage = Stage()
    await stage.open()
    caring = asyncio.create_task(stage.care.run())
    await asyncio.sleep(0)
    (command_id,) = await stage.send(1)
    line = Line(stage)
    await line.greet()
    await soon(lambda: line.commands == [1], "handed over")
    line.acknowledge(line.pushed[0])
    caring.cancel()
    await asyncio.wait((caring,))
    assert await stage.is_(command_id) == "acknowledged"
