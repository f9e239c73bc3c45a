"""Commands on a database in memory: accepted once, moved on by evidence alone, ended by time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.entities.command import Command, derived_id
from iotsphere.entities.errors import Conflict, LogUnavailable, MessageRefused, NotFound, RequestInvalid
from iotsphere.entities.message import Record
from iotsphere.entities.position import Partition, Position
from iotsphere.use_cases.command.commands import Commands
from iotsphere.use_cases.command.documents import COMMANDS
from iotsphere.use_cases.command.order import Order
from iotsphere.use_cases.ports.message_log import Appended
from tests.use_cases.stage import soon

ID = "00000000-0000-4000-8000-0000000000c3"
PARTITION = Partition("iotsphere", "commands", 0)


class House:
    """``log``: the ids that were appended, as the log keeps them: each once."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.database = MemoryDatabase(self.clock)
        self.log: list[str] = []
        self.calls = 0
        self.away = False
        self.commands = Commands(self.database, self._append, self._compose, self._known, self.clock)

    async def _append(self, records: Sequence[Record]) -> Appended:
        if self.away:
            raise LogUnavailable("away")
        self.calls += 1
        positions = []
        for record in records:
            if record.message_id not in self.log:
                self.log.append(record.message_id)
            positions.append(Position(1, self.log.index(record.message_id) + 1))
        return Appended(positions, frozenset())

    def _compose(self, command: Command, now: int) -> Record:
        topic = f"{command.domain}/devices/{command.device}/commands/request"
        return Record(PARTITION, topic, command.id, b"{}", now)

    async def _known(self, domain: str, device: str) -> bool:
        return domain == "iotsphere" and device.startswith("d")

    def order(self, number: int = 0, **changes: Any) -> Order:
        order = Order(
            id=f"{number:08x}-0000-4000-8000-000000000000" if number else ID,
            domain="iotsphere",
            device="d1",
            caller="iotsphere/service/ui",
            payload={"action": "unlock"},
            stated_at=self.clock.now(),
        )
        return replace(order, **changes)

    async def state(self, command_id: str = ID) -> str:
        return (await self.commands.get("iotsphere", command_id)).state


@pytest.fixture
async def house() -> House:
    made = House()
    await made.database.ensure([COMMANDS])
    return made


async def test_a_command_is_written_then_logged_then_queued(house: House) -> None:
    sent = await house.commands.send(house.order())
    assert (sent.command.state, sent.repeated) == ("queued", False)
    assert [step.state for step in sent.command.steps] == ["accepted", "queued"]
    assert house.log == [ID]
    assert sent.command.order == "0000000001-0000000000000001"


async def test_c13_a_repeated_command_is_answered_as_before_and_done_once(house: House) -> None:
    order = house.order()
    outcomes = await asyncio.gather(*(house.commands.send(order) for _ in range(100)))
    assert sum(not sent.repeated for sent in outcomes) == 1
    assert house.log == [ID]
    appended = house.calls
    await house.commands.learn("iotsphere", ID, "succeed", {"result": 7})
    house.clock.advance(23 * 3600 * 1000)
    again = await house.commands.send(order)
    assert again.repeated
    assert (again.command.state, again.command.answer) == ("succeeded", {"result": 7})
    assert house.calls == appended


async def test_c13_an_old_statement_is_refused_and_an_id_belongs_to_one_command(house: House) -> None:
    with pytest.raises(MessageRefused) as caught:
        await house.commands.send(house.order(stated_at=house.clock.now() - 5 * 60 * 1000 - 1))
    assert caught.value.code == "expired"
    assert house.log == []
    await house.commands.send(house.order())
    for other in (house.order(device="d2"), house.order(payload={"action": "lock"}), house.order(caller="x/user/y")):
        with pytest.raises(Conflict):
            await house.commands.send(other)
    assert house.log == [ID]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"device": "unknown"}, NotFound),
        ({"expires_at": 1}, RequestInvalid),
        ({"timeout": 24 * 3600 * 1000 + 1}, RequestInvalid),
        ({"timeout": -1}, RequestInvalid),
    ],
)
async def test_what_cannot_be_is_refused_and_leaves_nothing(
    house: House, change: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await house.commands.send(house.order(**change))
    assert house.log == []
    assert await house.database.scan("commands") == []


async def test_a_command_that_is_repeated_after_a_crash_lies_in_the_log_before_those_behind_it(house: House) -> None:
    house.away = True
    with pytest.raises(LogUnavailable):
        await house.commands.send(house.order(1))
    house.away = False
    again = await house.commands.send(house.order(1))
    assert (again.command.state, again.repeated) == ("queued", True)
    await house.commands.send(house.order(2))
    assert house.log == [house.order(1).id, house.order(2).id]
    await house.commands.send(house.order(1))
    assert house.calls == 2


async def test_a_command_that_is_over_is_known_when_it_is_repeated_after_its_expiry(house: House) -> None:
    order = house.order(expires_at=house.clock.now() + 1_000)
    await house.commands.send(order)
    await house.commands.learn("iotsphere", ID, "succeed", {"result": 1})
    house.clock.advance(1_000)
    again = await house.commands.send(order)
    assert (again.command.state, again.command.answer, again.repeated) == ("succeeded", {"result": 1}, True)
    with pytest.raises(Conflict):
        await house.commands.send(replace(order, payload={"action": "lock"}))
    with pytest.raises(RequestInvalid):
        await house.commands.send(replace(order, id=house.order(1).id))


@pytest.mark.parametrize("later", [0, 5_000])
async def test_what_expired_before_it_was_logged_is_expired_when_it_is_repeated(house: House, later: int) -> None:
    order = house.order(expires_at=house.clock.now() + 1_000)
    house.away = True
    with pytest.raises(LogUnavailable):
        await house.commands.send(order)
    house.away = False
    house.clock.advance(1_000)
    again = await house.commands.send(replace(order, expires_at=order.expires_at + later))
    assert (again.command.state, again.repeated) == ("expired", True)
    assert [step.state for step in again.command.steps] == ["accepted", "expired"]
    assert house.log == []
    assert await house.state() == "expired"


async def test_a_crash_between_the_database_and_the_log_is_healed(house: House) -> None:
    house.away = True
    with pytest.raises(LogUnavailable):
        await house.commands.send(house.order())
    assert await house.state() == "accepted"
    house.away = False
    assert await house.commands.tend() == 0
    house.clock.advance(2_000)
    assert await house.commands.tend() == 1
    assert await house.state() == "queued"
    assert house.log == [ID]


async def test_the_life_of_a_command_that_succeeds(house: House) -> None:
    await house.commands.send(house.order())
    for evidence, answer, state in (
        ("sent", None, "sent"),
        ("acknowledged", None, "acknowledged"),
        ("sent", None, "acknowledged"),
        ("progress", {"progress": 40}, "running"),
        ("progress", {"progress": 80}, "running"),
        ("succeed", {"result": {"opened": True}}, "succeeded"),
        ("fail", {"reason": "late"}, "succeeded"),
    ):
        command = await house.commands.learn("iotsphere", ID, evidence, answer)
        assert command.state == state
    assert command.answer == {"result": {"opened": True}}
    assert command.late == ({"reason": "late"},)
    assert [step.state for step in command.steps] == [
        "accepted",
        "queued",
        "sent",
        "acknowledged",
        "running",
        "succeeded",
    ]


async def test_time_ends_what_was_not_sent_and_what_was_not_answered(house: House) -> None:
    await house.commands.send(house.order(1, expires_at=house.clock.now() + 10_000))
    await house.commands.send(house.order(2, timeout=5_000))
    await house.commands.learn("iotsphere", house.order(2).id, "sent")
    house.clock.advance(4_000)
    await house.commands.learn("iotsphere", house.order(2).id, "progress", {"progress": 1})
    house.clock.advance(4_999)
    assert await house.commands.tend() == 0
    house.clock.advance(1)
    assert await house.commands.tend() == 1
    assert await house.state(house.order(2).id) == "timed_out"
    house.clock.advance(1_000)
    assert await house.commands.tend() == 1
    assert await house.state(house.order(1).id) == "expired"
    assert [command.id for command in await house.commands.outstanding("iotsphere", "d1")] == []


async def test_only_what_the_device_was_not_sent_can_be_taken_back(house: House) -> None:
    await house.commands.send(house.order(1))
    assert (await house.commands.cancel("iotsphere", house.order(1).id)).state == "cancelled"
    await house.commands.cancel("iotsphere", house.order(1).id)
    await house.commands.send(house.order(2))
    await house.commands.learn("iotsphere", house.order(2).id, "sent")
    with pytest.raises(Conflict, match="with the device"):
        await house.commands.cancel("iotsphere", house.order(2).id)
    with pytest.raises(NotFound):
        await house.commands.cancel("iotsphere", ID)


async def test_outstanding_commands_come_in_the_order_of_the_log(house: House) -> None:
    for number in range(1, 12):
        await house.commands.send(house.order(number))
    await house.commands.learn("iotsphere", house.order(3).id, "acknowledged")
    await house.commands.learn("iotsphere", house.order(5).id, "sent")
    await house.commands.cancel("iotsphere", house.order(7).id)
    found = [command.id for command in await house.commands.outstanding("iotsphere", "d1")]
    assert found == [house.order(number).id for number in (1, 2, 4, 5, 6, 8, 9, 10, 11)]
    assert await house.commands.outstanding("iotsphere", "d2") == []


async def test_who_waits_is_told_at_once_and_at_the_deadline(house: House) -> None:
    await house.commands.send(house.order())
    waiting = asyncio.create_task(house.commands.wait("iotsphere", ID, 60))
    await soon(lambda: house.commands.waiting, "somebody waits")
    await house.commands.learn("iotsphere", ID, "succeed", {"result": 1})
    assert (await waiting).state == "succeeded"
    await house.commands.send(house.order(2))
    assert (await house.commands.wait("iotsphere", house.order(2).id, 0.01)).state == "queued"
    assert house.commands.waiting == 0


def test_an_idempotency_key_stands_for_one_id_of_one_caller() -> None:
    one = derived_id("iotsphere", "iotsphere/user/a", "k1")
    assert one == derived_id("iotsphere", "iotsphere/user/a", "k1")
    others = {derived_id("iotsphere", "iotsphere/user/b", "k1"), derived_id("iotsphere", "iotsphere/user/a", "k2")}
    assert one not in others
