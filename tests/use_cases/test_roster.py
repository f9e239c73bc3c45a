"""The roster follows the register, and keeps labels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from iotsphere.entities.errors import Conflict, IotSphereError, NotFound, RequestInvalid
from iotsphere.entities.fleet import parse_fleet_filter
from iotsphere.entities.shadow import ShadowKey
from iotsphere.entities.shadow_reports import Place, Report
from iotsphere.use_cases import roster as module
from iotsphere.use_cases.fleet import GONE_AFTER_MS, Fleet
from iotsphere.use_cases.ports.database import Write
from iotsphere.use_cases.roster import MAX_LABELS, REMEMBERED_MS, Roster
from tests.support.rooms import Rooms, open_rooms

DOMAIN = "iotsphere"


@pytest.fixture
async def rooms() -> AsyncIterator[Rooms]:
    async with open_rooms() as opened:
        for device_id in ("d1", "d2", "d3"):
            await opened.devices.register(DOMAIN, device_id)
        await opened.devices.register("other", "d1")
        yield opened


@pytest.fixture
def roster(rooms: Rooms) -> Roster:
    return rooms.state.roster


async def listed(rooms: Rooms, prefix: str = "") -> list[str]:
    return [stored.key for stored in await rooms.database.scan("devices", prefix)]


async def test_labels_are_merged_and_taken_away(rooms: Rooms, roster: Roster) -> None:
    assert await roster.keep(DOMAIN, "d1", {"site": "north", "model": "p2"}) == {"site": "north", "model": "p2"}
    assert await roster.keep(DOMAIN, "d1", {"site": None, "floor": "2", "none": None}) == {"model": "p2", "floor": "2"}
    assert await roster.labels(DOMAIN, ["d1", "d2"]) == {"d1": {"model": "p2", "floor": "2"}}
    assert await roster.labels("other", ["d1"]) == {}
    assert await listed(rooms) == ["iotsphere/d1"]


class Meddled:
    """A database in which somebody else writes whenever a document was read, so many times."""

    def __init__(self, rooms: Rooms, times: int) -> None:
        self._rooms = rooms
        self.left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rooms.database, name)

    async def get(self, collection: str, key: str) -> Any:
        found = await self._rooms.database.get(collection, key)
        if self.left:
            self.left -= 1
            await self._rooms.state.roster.keep(DOMAIN, key.partition("/")[2], {f"other{self.left}": "x"})
        return found


async def test_labels_count_that_others_give_meanwhile(rooms: Rooms) -> None:
    """A device is registered with labels while the roster is brought up to date: nobody's write costs another's."""
    database: Any = Meddled(rooms, 3)
    roster = Roster(database, rooms.devices, [DOMAIN], rooms.clock, rooms.state.roster._forget)
    kept = await roster.keep(DOMAIN, "d1", {"site": "north"})
    assert kept == {"site": "north", "other0": "x", "other1": "x", "other2": "x"}
    assert (await rooms.state.roster.labels(DOMAIN, ["d1"]))["d1"] == kept
    database.left = 1_000
    with pytest.raises(Conflict):
        await roster.keep(DOMAIN, "d1", {"site": "south"})


@pytest.mark.parametrize(
    "labels",
    [{"a b": "x"}, {"": "x"}, {"a" * 65: "x"}, {"a.b": "x"}, {"a": "x" * 129}, {"a": "ü"}, {"a": "x\n"}],
)
async def test_labels_out_of_bounds_are_refused(rooms: Rooms, roster: Roster, labels: dict[str, str]) -> None:
    with pytest.raises(RequestInvalid, match="labels"):
        await roster.keep(DOMAIN, "d1", labels)
    assert await listed(rooms) == []


async def test_a_device_has_a_bounded_number_of_labels(roster: Roster) -> None:
    await roster.keep(DOMAIN, "d1", {f"l{number}": "x" for number in range(MAX_LABELS)})
    with pytest.raises(RequestInvalid):
        await roster.keep(DOMAIN, "d1", {"more": "x"})
    assert await roster.keep(DOMAIN, "d1", {"more": "x", "l0": None})
    assert len((await roster.labels(DOMAIN, ["d1"]))["d1"]) == MAX_LABELS


async def test_who_is_not_registered_is_not_on_the_roster(rooms: Rooms, roster: Roster) -> None:
    for domain, device_id in ((DOMAIN, "d9"), ("other", "d2")):
        with pytest.raises(NotFound):
            await roster.keep(domain, device_id, {"site": "north"})
    assert await listed(rooms) == []


async def test_it_catches_up_with_the_register(rooms: Rooms, roster: Roster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    await roster.keep(DOMAIN, "d2", {"site": "north"})
    await rooms.database.put("devices", Write(f"{DOMAIN}/gone", None, {"labels": {}}))
    assert await roster.catch_up(DOMAIN) == 3
    rooms.clock.advance(GONE_AFTER_MS)
    assert await roster.catch_up(DOMAIN) == 1
    assert await roster.catch_up(DOMAIN) == 0
    rooms.clock.advance(REMEMBERED_MS)
    assert await roster.catch_up(DOMAIN) == 1
    assert await listed(rooms) == ["iotsphere/d1", "iotsphere/d2", "iotsphere/d3"]
    assert await roster.labels(DOMAIN, ["d1", "d2"]) == {"d1": {}, "d2": {"site": "north"}}
    assert await roster.catch_up(DOMAIN) == 0
    await rooms.devices.remove(DOMAIN, "d2")
    assert await roster.catch_up(DOMAIN) == 1
    assert await roster.catch_up("other") == 1
    assert await roster.labels(DOMAIN, ["d1", "d2"]) == {"d1": {}}
    for passed in (GONE_AFTER_MS, REMEMBERED_MS):
        rooms.clock.advance(passed)
        assert await roster.catch_up(DOMAIN) == 1
    assert await listed(rooms) == ["iotsphere/d1", "iotsphere/d3", "other/d1"]


async def test_a_device_that_leaves_is_no_part_of_a_fleet_and_may_come_again(rooms: Rooms, roster: Roster) -> None:
    fleet = Fleet(rooms.database, rooms.state.shadows)
    for device in ("d1", "d2"):
        await roster.keep(DOMAIN, device, {"site": "north"})
    for _ in range(2):  # it is safe to repeat
        await roster.drop(DOMAIN, "d1")
    for wanted in ({"glob": "*"}, {"ids": ["d1", "d2"]}):
        pages = [list(page) async for page in fleet.select(DOMAIN, parse_fleet_filter(wanted))]
        assert pages == [["d2"]]
    assert await roster.keep(DOMAIN, "d1", {"floor": "2"}) == {"floor": "2"}
    await roster.drop(DOMAIN, "d1")
    assert await roster.catch_up(DOMAIN) == 2  # it is registered still, as d3 is
    assert await roster.labels(DOMAIN, ["d1"]) == {"d1": {}}


async def folded(rooms: Rooms, device: str, name: str, offset: int, logged_at: int = 0) -> list[str]:
    """Fold reports of a device into its main shadow and a named one, and one of another device; the outcomes."""
    place = Place("shadow/0", 1, offset)
    facts: Any = {"at": rooms.clock.now(), "place": place, "logged_at": logged_at or rooms.clock.now()}
    reports = [
        (ShadowKey(DOMAIN, who, which), Report(patch={"n": offset}, author=who, **facts))
        for who, which in ((device, ""), (device, name), ("d2", ""), ("unregistered", ""))
    ]
    answers = await rooms.state.shadows.fold(reports)
    assert not [answer for answer in answers if isinstance(answer, IotSphereError)]
    return [answer.outcome for answer in answers if not isinstance(answer, IotSphereError)]


async def test_what_a_removed_device_had_still_sent_makes_no_shadow_anew(rooms: Rooms, roster: Roster) -> None:
    shadows = rooms.state.shadows
    assert await folded(rooms, "d1", "radio", 1) == ["applied"] * 4
    await rooms.devices.remove(DOMAIN, "d1")
    await roster.drop(DOMAIN, "d1")
    # Also in a shadow that there never was, and however often it comes.
    for offset in (2, 3):
        assert await folded(rooms, "d1", "schedule", offset) == ["superseded", "superseded", "applied", "applied"]
    assert await shadows.of_device(DOMAIN, "d1") == []
    assert (await shadows.get(ShadowKey(DOMAIN, "d2"))).reported == {"n": 3}
    # Registered anew it is a device like any other, at once and not only when the roster knows of it.
    await rooms.devices.register(DOMAIN, "d1")
    assert await folded(rooms, "d1", "schedule", 4) == ["applied"] * 4
    assert [(each.key.name, each.version) for each in await shadows.of_device(DOMAIN, "d1")] == [
        ("", 3),
        ("schedule", 1),
    ]


async def test_a_removal_is_known_of_a_device_that_was_never_on_the_roster(rooms: Rooms, roster: Roster) -> None:
    await rooms.devices.remove(DOMAIN, "d3")
    await roster.drop(DOMAIN, "d3")
    assert (await folded(rooms, "d3", "radio", 1))[:2] == ["superseded", "superseded"]
    for passed in (GONE_AFTER_MS, REMEMBERED_MS):
        rooms.clock.advance(passed)
        await roster.catch_up(DOMAIN)
    assert await listed(rooms) == ["iotsphere/d1", "iotsphere/d2"]


async def test_what_a_removed_device_had_sent_makes_no_shadow_however_late_it_is_folded(
    rooms: Rooms, roster: Roster
) -> None:
    """The processors were down for a day. What comes under its name later, from behind a bridge, is another life."""
    await roster.keep(DOMAIN, "d1", {})
    await rooms.devices.remove(DOMAIN, "d1")
    await roster.drop(DOMAIN, "d1")
    rooms.clock.advance(2_000)
    last_words = rooms.clock.now()
    for passed in (GONE_AFTER_MS, 24 * 3600 * 1000):
        rooms.clock.advance(passed)
        await roster.catch_up(DOMAIN)
    assert (await folded(rooms, "d1", "radio", 1, last_words))[:2] == ["superseded", "superseded"]
    assert await rooms.state.shadows.of_device(DOMAIN, "d1") == []
    assert await folded(rooms, "d1", "radio", 2) == ["applied"] * 4


async def test_labels_that_people_wrote_in_another_form_are_none(rooms: Rooms, roster: Roster) -> None:
    await rooms.database.put("devices", Write(f"{DOMAIN}/d1", None, {"labels": "north"}))
    await rooms.database.put("devices", Write(f"{DOMAIN}/d2", None, {"labels": {"site": 7, "model": "p2"}}))
    assert await roster.labels(DOMAIN, ["d1", "d2"]) == {"d1": {}, "d2": {"model": "p2"}}
    assert await roster.keep(DOMAIN, "d1", {"site": "north"}) == {"site": "north"}
