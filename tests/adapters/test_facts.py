"""Facts from the log: answers move commands on, notifications are kept, and what answers nothing is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from iotsphere.adapters.command_messages import CommandMessages
from iotsphere.adapters.database.changes import DatabaseChangeAdapter
from iotsphere.adapters.facts import CommandFacts, NotificationFacts
from iotsphere.entities.errors import DatabaseUnavailable, IotSphereError, NotFound, Unavailable
from iotsphere.entities.message import Entry
from iotsphere.entities.position import Position
from iotsphere.entities.principal import Principal, device, parse_grant
from iotsphere.entities.shadow import ShadowKey
from iotsphere.use_cases.command.order import Order
from iotsphere.use_cases.ports.database import Change, Write
from tests.support.rooms import Rooms, open_rooms

ID = "00000000-0000-4000-8000-0000000000c3"
RESPONSE = "iotsphere/devices/d1/commands/response"
NOTES = "iotsphere/users/ann/notifications"


@dataclass
class Stage:
    rooms: Rooms
    answers: CommandFacts
    notes: NotificationFacts

    async def answer(self, payload: Any, command_id: str | None = ID, device_id: str = "d1") -> Entry:
        metadata = {} if command_id is None else {"correlationId": command_id}
        body = orjson.dumps({"metadata": metadata, "payload": payload})
        topic = RESPONSE.replace("d1", device_id)
        return await self.rooms.say(topic, body, device("iotsphere", device_id))

    async def fold(self, *payloads: Any) -> list[str]:
        return codes(await self.answers([await self.answer(payload) for payload in payloads]))

    async def state(self) -> tuple[str, Any]:
        command = await self.rooms.state.commands.get("iotsphere", ID)
        return command.state, command.answer


def codes(outcomes: list[str | IotSphereError]) -> list[str]:
    return [outcome.code if isinstance(outcome, IotSphereError) else outcome for outcome in outcomes]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_rooms() as rooms:
        await rooms.devices.register("iotsphere", "d1")
        state = rooms.state
        order = Order(id=ID, domain="iotsphere", device="d1", caller="iotsphere/user/ann", payload={"n": 1})
        await state.commands.send(order)
        answers = CommandFacts(state.commands, CommandMessages(rooms.edge), state.shadows)
        yield Stage(rooms, answers, NotificationFacts(state.notifications))


async def test_answers_move_a_command_on_in_their_order(stage: Stage) -> None:
    assert await stage.fold(
        {"status": "running", "progress": 40},
        {"status": "succeeded", "result": [1], "reported": {"door": "open"}},
    ) == ["applied", "applied"]
    assert await stage.state() == ("succeeded", {"result": [1]})
    shadow = await stage.rooms.state.shadows.get(ShadowKey("iotsphere", "d1"))
    assert (shadow.reported, shadow.version) == ({"door": "open"}, 1)


async def test_a_state_that_nests_too_deep_for_a_shadow_is_refused_and_the_answer_counts(stage: Stage) -> None:
    deep: object = 1
    for _ in range(20):
        deep = {"a": deep}
    assert await stage.fold({"status": "succeeded", "reported": deep}) == ["json_too_deep"]
    assert (await stage.state())[0] == "succeeded"
    with pytest.raises(NotFound):
        await stage.rooms.state.shadows.get(ShadowKey("iotsphere", "d1"))


async def test_a_repeated_slice_changes_nothing(stage: Stage) -> None:
    entries = [await stage.answer({"status": "failed", "reason": "stuck", "reported": {"door": "stuck"}})]
    assert [codes(await stage.answers(entries)) for _ in range(2)] == [["applied"], ["applied"]]
    assert await stage.state() == ("failed", {"reason": "stuck"})
    assert (await stage.rooms.state.shadows.get(ShadowKey("iotsphere", "d1"))).version == 1


@pytest.mark.parametrize(
    ("payload", "state"),
    [
        ({"door": "open"}, ("succeeded", {"result": {"door": "open"}})),
        ({"result": 7}, ("succeeded", {"result": 7})),
        (42, ("succeeded", {"result": {"value": 42}})),
        ({"status": "rejected", "reason": "no"}, ("rejected", {"reason": "no"})),
    ],
)
async def test_forms_of_an_answer(stage: Stage, payload: Any, state: tuple[str, Any]) -> None:
    assert await stage.fold(payload) == ["applied"]
    assert await stage.state() == state


async def test_the_command_may_be_named_in_the_payload(stage: Stage) -> None:
    entry = await stage.answer({"correlationId": ID, "status": "succeeded"}, None)
    assert codes(await stage.answers([entry])) == ["applied"]
    assert await stage.state() == ("succeeded", {})


async def test_what_answers_nothing_is_refused_and_holds_up_no_other(stage: Stage) -> None:
    entries = [
        await stage.answer({"status": "succeeded"}, None),
        await stage.answer({"status": "succeeded"}, ID.replace("c3", "ff")),
        await stage.answer({"status": "succeeded"}, device_id="d2"),
        await stage.answer({"status": "done"}),
        await stage.answer({"status": ["running"]}),
        await stage.answer({"status": "running", "progress": 101}),
        await stage.answer({"status": "running", "progress": True}),
        await stage.answer({"status": "running", "percent": 1}),
        await stage.answer({"status": "failed", "reason": 5}),
        await stage.answer({"status": "succeeded", "reported": [1]}),
        await stage.rooms.say("iotsphere/devices/d1/commands/status", {"state": "sent"}),
        await stage.answer({"status": "running"}),
    ]
    assert codes(await stage.answers(entries)) == [
        "unknown_command",
        "unknown_command",
        "topic_mismatch",
        *["schema_violation"] * 7,
        "applied",
        "applied",
    ]
    assert (await stage.state())[0] == "running"


async def test_a_command_that_people_broke_is_refused_and_holds_up_no_other(stage: Stage) -> None:
    key = f"iotsphere/{ID}"
    stored = await stage.rooms.database.get("commands", key)
    assert stored is not None
    await stage.rooms.database.put("commands", Write(key, stored, {"schema": 1}))
    assert await stage.fold({"status": "succeeded"}) == ["unknown_command"]


async def test_an_unavailable_database_is_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = await stage.answer({"status": "succeeded"})

    async def away(collection: str, key: str) -> None:
        raise DatabaseUnavailable(f"{collection} {key}")

    monkeypatch.setattr(stage.rooms.database, "get", away)
    with pytest.raises(Unavailable):
        await stage.answers([entry])


async def test_notifications_are_kept_once(stage: Stage) -> None:
    entries = [
        await stage.rooms.say(NOTES, {"text": "Filter is due"}),
        await stage.rooms.say(NOTES, "plain"),
        await stage.rooms.say("iotsphere/users/ann/preferences", {"preferences": {}}),
    ]
    entries.append(Entry(Position(1, 9), 1, entries[0].record._replace(body=b"")))
    for _ in range(2):
        assert codes(await stage.notes(entries)) == ["applied"] * 4
    found = await stage.rooms.state.notifications.all("iotsphere", "ann")
    assert [(each["id"], each["content"], each["source"], each["at"]) for each in found] == [
        (entries[0].record.message_id, {"text": "Filter is due"}, "operator", entries[0].record.timestamp),
        (entries[1].record.message_id, {"value": "plain"}, "operator", entries[1].record.timestamp),
    ]


async def test_what_the_gateway_tells_of_the_database_is_not_kept_again(stage: Stage) -> None:
    rooms = stage.rooms
    tell = DatabaseChangeAdapter(rooms.edge, rooms.clock, rooms.log.domains)
    written = {"content": {"text": "by hand", "author": "ann"}, "unread": True}
    (record,) = tell.records(Change("t", 1, "insert", "notifications", "iotsphere/ann/n1", 1, None, written))
    assert codes(await stage.notes([Entry(Position(1, 1), 1, record)])) == ["applied"]
    assert await rooms.state.notifications.all("iotsphere", "ann") == []


async def test_a_service_may_be_called_gateway(stage: Stage) -> None:
    grant = parse_grant("publish:iotsphere/#", domain="iotsphere")
    entry = await stage.rooms.say(NOTES, {"n": 1}, Principal("service", "gateway", "iotsphere", (grant,)))
    await stage.notes([entry])
    assert [each["source"] for each in await stage.rooms.state.notifications.all("iotsphere", "ann")] == ["gateway"]
