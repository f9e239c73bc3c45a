"""The roster follows the register, and keeps labels."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from iotsphere.entities.errors import NotFound, RequestInvalid
from iotsphere.entities.fleet import parse_fleet_filter
from iotsphere.use_cases import roster as module
from iotsphere.use_cases.fleet import Fleet
from iotsphere.use_cases.ports.database import Write
from iotsphere.use_cases.roster import GONE_AFTER_MS, MAX_LABELS, Roster
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
    assert await listed(rooms) == ["iotsphere/d1", "iotsphere/d2", "iotsphere/d3"]
    assert await roster.labels(DOMAIN, ["d1", "d2"]) == {"d1": {}, "d2": {"site": "north"}}
    assert await roster.catch_up(DOMAIN) == 0
    await rooms.devices.remove(DOMAIN, "d2")
    assert await roster.catch_up(DOMAIN) == 1
    assert await roster.catch_up("other") == 1
    assert await roster.labels(DOMAIN, ["d1", "d2"]) == {"d1": {}}
    rooms.clock.advance(GONE_AFTER_MS)
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


async def test_labels_that_people_wrote_in_another_form_are_none(rooms: Rooms, roster: Roster) -> None:
    await rooms.database.put("devices", Write(f"{DOMAIN}/d1", None, {"labels": "north"}))
    await rooms.database.put("devices", Write(f"{DOMAIN}/d2", None, {"labels": {"site": 7, "model": "p2"}}))
    assert await roster.labels(DOMAIN, ["d1", "d2"]) == {"d1": {}, "d2": {"model": "p2"}}
    assert await roster.keep(DOMAIN, "d1", {"site": "north"}) == {"site": "north"}
