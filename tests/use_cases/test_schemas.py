"""Documents that a newer gateway wrote, on every store: never misread, never overwritten, and told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from iotsphere.adapters.database.changes import DatabaseChangeAdapter
from iotsphere.adapters.edge import Edge
from iotsphere.adapters.envelope import payload_of
from iotsphere.containers.state import COLLECTIONS
from iotsphere.drivers.memory.documents import MemoryDocuments
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.channel import DEFAULT_CHANNELS
from iotsphere.entities.command import Command, body_of
from iotsphere.entities.documents import at_schema
from iotsphere.entities.errors import DocumentNewer, IotSphereError, MessageRefused
from iotsphere.entities.fleet import parse_fleet_filter
from iotsphere.entities.rollout import Rollout
from iotsphere.entities.rollout import body_of as rollout_body
from iotsphere.entities.shadow import Answer, ShadowKey
from iotsphere.use_cases.access.devices import Devices
from iotsphere.use_cases.access.revocations import Revocations
from iotsphere.use_cases.command.commands import Commands
from iotsphere.use_cases.command.order import Order
from iotsphere.use_cases.command.rollouts import Reach, Rollouts
from iotsphere.use_cases.ports.database import Write
from iotsphere.use_cases.roster import Roster
from iotsphere.use_cases.users import Fact, Notifications, PreferenceChange, Preferences
from tests.use_cases.shadow_house import DOMAIN, KEY, KINDS, House, open_house, place_of, said, wanted

ID = "00000001-0000-4000-8000-000000000000"
OTHER = "00000002-0000-4000-8000-000000000000"


@pytest.fixture(params=KINDS)
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    async with open_house(place_of(request)) as opened:
        await opened.database.ensure(COLLECTIONS)
        yield opened


class Newer:
    """A document of schema 2, and whether it is still what was written."""

    def __init__(self, house: House, collection: str, key: str, body: Mapping[str, Any]) -> None:
        self.house = house
        self.place = collection, key
        self.body = {**body, "schema": 2, "novelty": [1]}

    async def write(self) -> None:
        before = await self.house.database.get(*self.place)
        await self.house.database.put(self.place[0], Write(self.place[1], before, self.body))

    async def stands(self) -> bool:
        stored = await self.house.database.get(*self.place)
        return stored is not None and stored.body == self.body


async def test_a_shadow_of_a_newer_schema_is_left_alone_and_holds_up_no_other(house: House) -> None:
    other = ShadowKey(DOMAIN, "dev-o")
    await house.shadows.desire(KEY, wanted({"a": 1}))
    stored = await house.database.get("shadows", KEY.text)
    assert stored is not None
    newer = Newer(house, "shadows", KEY.text, stored.body)
    await newer.write()
    answers = await house.shadows.fold([(KEY, said({"b": 1})), (other, said({"b": 2}))])
    assert isinstance(answers[0], DocumentNewer)
    assert answers[1] == Answer(1, 0, changed=True)
    for refused in (
        house.shadows.desire(KEY, wanted({"a": 2})),
        house.shadows.get(KEY),
        house.shadows.delete(KEY, wanted({})),
    ):
        with pytest.raises(DocumentNewer, match="has schema 2, and this gateway knows 1"):
            await refused
    with capture_logs() as told:
        assert [shadow.key for shadow in (await house.shadows.page(DOMAIN))[0]] == [other]
        assert await house.shadows.of_device(DOMAIN, KEY.device) == []
    assert [(each["event"], each["document"], each["code"]) for each in told] == [
        ("document_passed_over", KEY.text, "document_newer")
    ] * 2
    await house.shadows.delete_all(DOMAIN, KEY.device, "gateway")
    await house.shadows.expire()
    await house.catch_up()  # nor does what follows from changes take it for one made by hand
    assert await newer.stands()


async def test_an_alert_tells_of_a_document_of_a_newer_schema(house: House) -> None:
    log = MemoryLog(house.clock)
    await log.ensure(DOMAIN, DEFAULT_CHANNELS)
    teller = DatabaseChangeAdapter(Edge(house.clock, log.partitions), house.clock, lambda: [DOMAIN])
    token = await house.database.now()
    keys = {"shadows": KEY.text, "commands": f"{DOMAIN}/{ID}"}
    keys |= {"notifications": f"{DOMAIN}/ann/{ID}", "preferences": f"{DOMAIN}/ann"}
    for collection, key in keys.items():
        await Newer(house, collection, key, {"preferences": {}, "content": {}}).write()
    changes = house.database.changes(token)
    for collection, key in keys.items():
        (record,) = teller.records(await anext(changes))
        assert record.topic == f"{DOMAIN}/system/alerts"
        alert = json.loads(payload_of(record.body))
        assert (alert["alert"], alert["collection"], alert["document"]) == ("change_not_told", collection, key)
        assert "run the newer version" in alert["remedy"]
    await changes.aclose()
    assert teller.failed == 4


async def known(_: str, __: str) -> bool:
    return True


def compose(command: Command, now: int) -> Any:
    raise AssertionError(f"{command.id} was composed at {now}")


async def append(records: Any) -> Any:
    raise AssertionError(f"appended {records}")


async def test_commands_and_rollouts_of_a_newer_schema_are_left_alone(house: House) -> None:
    commands = Commands(house.database, append, compose, known, house.clock)
    rollouts = Rollouts(house.database, Reach(house.fleet, commands, house.shadows), house.clock)
    facts: dict[str, Any] = {"domain": DOMAIN, "caller": f"{DOMAIN}/service/ui", "payload": {"n": 1}}
    now = house.clock.now()
    body = body_of(
        Command(
            id=ID, device="d1", created_at=now, expires_at=now + 9, timeout=9, due=1, state="queued", order="1", **facts
        )
    )
    command = Newer(house, "commands", f"{DOMAIN}/{ID}", body)
    begun = Rollout(id=OTHER, kind="command", filter={"glob": "*"}, rate=1, created_at=now, **facts)
    rollout = Newer(house, "rollouts", begun.key, rollout_body(begun))
    for one in (command, rollout):
        await one.write()
    house.clock.advance(100_000)
    for refused in (
        commands.get(DOMAIN, ID),
        commands.send(Order(id=ID, device="d1", **facts)),
        commands.cancel(DOMAIN, ID),
        commands.claim(DOMAIN, "d1", ID),
        commands.give_back(DOMAIN, ID, "x"),
        rollouts.get(DOMAIN, OTHER),
        rollouts.start(begun),
        rollouts.steer(DOMAIN, OTHER, "cancel"),
    ):
        with pytest.raises(DocumentNewer):
            await refused
    with pytest.raises(MessageRefused, match="has schema 2"):
        await commands.respond(DOMAIN, "d1", ID, "succeed", {})
    assert await commands.tend() == 0
    await rollouts.tend()
    with capture_logs() as told:
        assert await commands.outstanding(DOMAIN, "d1") == []
        assert await rollouts.of_domain(DOMAIN) == []
    assert [(each["event"], each["code"]) for each in told] == [("document_passed_over", "document_newer")] * 2
    assert await command.stands()
    assert await rollout.stands()


async def test_what_users_have_in_a_newer_schema_is_left_alone(house: House) -> None:
    notifications, preferences = (
        Notifications(house.database, house.clock),
        Preferences(house.database, house.clock),
    )
    for number in (ID, OTHER):
        await notifications.keep([Fact(DOMAIN, "ann", number, "ui", 1, {"n": 1})])
    await preferences.update(PreferenceChange(DOMAIN, "ann", {"theme": "dark"}))
    kept = []
    for collection, key in (("notifications", f"{DOMAIN}/ann/{ID}"), ("preferences", f"{DOMAIN}/ann")):
        stored = await house.database.get(collection, key)
        assert stored is not None
        kept.append(Newer(house, collection, key, stored.body))
        await kept[-1].write()
    for refused in (
        notifications.read(DOMAIN, "ann", ID),
        preferences.get(DOMAIN, "ann"),
        preferences.update(PreferenceChange(DOMAIN, "ann", {"theme": "light"})),
    ):
        with pytest.raises(DocumentNewer):
            await refused
    await notifications.keep([Fact(DOMAIN, "ann", ID, "ui", 1, {"n": 2})])
    assert [each["id"] for each in await notifications.unread(DOMAIN, "ann")] == [OTHER]
    assert [each["id"] for each in await notifications.all(DOMAIN, "ann")] == [OTHER]
    assert [await one.stands() for one in kept] == [True, True]


async def test_a_row_of_the_roster_in_a_newer_schema_is_left_alone(house: House) -> None:
    documents = MemoryDocuments()
    devices = Devices(documents, Revocations(documents, house.clock), house.clock, b"d" * 32)
    forgotten: list[str] = []

    async def forget(_: str, device: str) -> None:
        forgotten.append(device)

    roster = Roster(house.database, devices, [DOMAIN], house.clock, forget)
    for device in ("d1", "d2"):
        await devices.register(DOMAIN, device)
        await roster.keep(DOMAIN, device, {"site": "north"})
    row = Newer(house, "devices", f"{DOMAIN}/d1", {"device": "d1", "labels": {"site": "north"}})
    gone = Newer(house, "devices", f"{DOMAIN}/d9", {"device": "d9", "removedAt": 1})
    await row.write()
    await gone.write()
    with pytest.raises(DocumentNewer):
        await roster.keep(DOMAIN, "d1", {"site": "south"})
    await roster.drop(DOMAIN, "d1")
    assert forgotten == ["d1"]  # its shadows and commands are ended all the same
    assert await row.stands()
    assert await roster.catch_up(DOMAIN) == 0
    assert await roster.labels(DOMAIN, ["d1", "d2"]) == {"d2": {"site": "north"}}
    pages = [list(page) async for page in house.fleet.select(DOMAIN, parse_fleet_filter({"labels": {"site": "north"}}))]
    assert pages == [["d2"]]
    assert forgotten == ["d1"]
    assert await row.stands()
    assert await gone.stands()


def test_an_older_document_is_taken_through_each_schema() -> None:
    def split(body: Mapping[str, Any]) -> Mapping[str, Any]:
        first, _, last = body["name"].partition(" ")
        return {"schema": 2, "first": first, "last": last}

    def rename(body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"schema": 3, "given": body["first"], "family": body["last"]}

    read = {"schema": 3, "given": "Ann", "family": "Lee"}
    for body in ({"schema": 1, "name": "Ann Lee"}, {"schema": 2.0, "first": "Ann", "last": "Lee"}, read):
        assert at_schema(body, "the person", 3, {1: split, 2: rename}) == read
    for by_hand in ({"given": "Ann"}, {"schema": "first", "given": "Ann"}):
        assert at_schema(by_hand, "the person", 3, {1: split, 2: rename}) == by_hand
    with pytest.raises(IotSphereError) as newer:
        at_schema({"schema": 4}, "the person", 3)
    assert (newer.value.code, newer.value.retry, newer.value.facts) == ("document_newer", False, {"schema": 4})
