"""What a shadow was, by version and by time; and which devices a filter selects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from iotsphere.entities.errors import NotFound, RequestInvalid, Unavailable
from iotsphere.entities.fleet import parse_fleet_filter
from iotsphere.entities.shadow import ShadowKey
from iotsphere.use_cases import fleet
from iotsphere.use_cases.ports.database import Write
from tests.use_cases.shadow_house import DOMAIN, KEY, KINDS, House, open_house, place_of, said, wanted


@pytest.fixture(params=KINDS)
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    async with open_house(place_of(request)) as opened:
        yield opened


async def lived(house: House) -> list[int]:
    """A shadow with a history; returns when each of its versions was made."""
    times = []
    for step in range(4):
        house.clock.advance(1_000)
        times.append(house.clock.now())
        await house.shadows.desire(KEY, wanted({"step": step, f"only{step}": {"x": step}}))
    house.clock.advance(1_000)
    times += [house.clock.now()] * 3
    # Three reports in one write are three versions, of the same time.
    await house.shadows.fold([(KEY, said({"r": number})) for number in range(3)])
    house.clock.advance(1_000)
    times.append(house.clock.now())
    await house.shadows.delete(KEY, wanted({}))
    house.clock.advance(1_000)
    times.append(house.clock.now())
    await house.shadows.desire(KEY, wanted({"anew": True}))
    await house.catch_up()
    return times


async def test_each_version_can_be_had_again(house: House) -> None:
    await lived(house)
    versions = [await house.history.at_version(KEY, version) for version in range(1, 10)]
    assert [shadow.version for shadow in versions] == list(range(1, 10))
    assert [shadow.desired.get("step") for shadow in versions] == [0, 1, 2, 3, 3, 3, 3, None, None]
    assert [shadow.reported.get("r") for shadow in versions] == [None, None, None, None, 0, 1, 2, None, None]
    assert [shadow.deleted for shadow in versions] == [False] * 7 + [True, False]
    assert versions[2].superseded["/step"].status == "superseded"
    assert versions[2].wishes["/step"].version == 3
    for version in (0, 10):
        with pytest.raises(NotFound):
            await house.history.at_version(KEY, version)
    with pytest.raises(NotFound):
        await house.history.at_version(ShadowKey(DOMAIN, "nobody"), 1)


async def test_the_versions_come_in_pages(house: House) -> None:
    await lived(house)
    first = await house.history.versions(KEY, limit=4)
    rest = await house.history.versions(KEY, after=first[-1].version)
    assert [shadow.version for shadow in (*first, *rest)] == list(range(1, 10))
    assert await house.history.versions(ShadowKey(DOMAIN, "dev-s", "radio")) == []


async def test_as_of_a_time(house: House) -> None:
    times = await lived(house)
    for time, version in ((times[0], 1), (times[1] - 1, 1), (times[1], 2), (times[4] - 1, 4), (times[4], 7),
                          (times[7], 8), (times[8] - 1, 8), (times[8], 9), (times[8] + 10**9, 9)):  # fmt: skip
        assert (await house.history.at_time(KEY, time)).version == version, time
    with pytest.raises(NotFound):
        await house.history.at_time(KEY, times[0] - 1)


async def test_as_of_a_time_while_the_latest_versions_are_not_kept_yet(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iotsphere.use_cases.shadow.history.LOOKS", 2_400)  # until they are kept, however slow that is
    times = await lived(house)
    house.clock.advance(1_000)
    await house.shadows.fold([(KEY, said({"n": number})) for number in range(60)])
    house.clock.advance(1_000)
    await house.shadows.fold([(KEY, said({"n": -number})) for number in range(1, 60)])
    assert (await house.history.at_time(KEY, times[8] + 5_000)).version == 128
    # An older version that is kept would be a wrong past: at that time there were newer ones, or nobody knows yet.
    asked = {times[8]: 9, times[8] + 999: 9, times[8] + 1_000: 69, times[8] + 1_999: 69}
    asking = [asyncio.ensure_future(house.history.at_time(KEY, time)) for time in asked]
    await asyncio.sleep(0.1)
    assert not any(each.done() for each in asking)
    await house.catch_up()
    assert [(await each).version for each in asking] == list(asked.values())


async def test_as_of_a_time_after_a_clock_that_ran_ahead_is_what_stood_before_it_did(house: House) -> None:
    begin = house.clock.now()
    for ahead, number in ((0, 1), (3_600_000, 2), (1_000, 3), (2_000, 4), (3_601_000, 5)):
        house.clock.time = begin + ahead
        await house.shadows.desire(KEY, wanted({"n": number}))
    await house.catch_up()
    kept = await house.history.versions(KEY)
    assert [each.updated_at - begin for each in kept] == [0, 3_600_000, 3_600_000, 3_600_000, 3_601_000]
    for after, version in ((0, 1), (2_000, 1), (3_599_999, 1), (3_600_000, 4), (3_601_000, 5)):
        assert (await house.history.at_time(KEY, begin + after)).version == version, after
    assert (await house.history.at_version(KEY, 3)).desired == {"n": 3}


async def test_what_is_kept_no_more_is_said_to_be_so(house: House) -> None:
    times = await lived(house)
    for version in (1, 2, 3):
        stored = await house.database.get("shadow_history", f"{KEY.text}@{version:012d}")
        await house.database.put("shadow_history", Write(f"{KEY.text}@{version:012d}", stored, None))
    with pytest.raises(RequestInvalid, match="version 2 of this shadow is not kept: it can be had from version 4 on"):
        await house.history.at_version(KEY, 2)
    with pytest.raises(RequestInvalid, match="that time of this shadow is not kept: it can be had from version 4 on"):
        await house.history.at_time(KEY, times[2])
    assert (await house.history.at_time(KEY, times[3])).version == 4


async def test_who_asks_for_a_version_that_is_only_being_written_waits_for_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iotsphere.use_cases.shadow.history.LOOKS", 2_400)  # until it is kept, however slow that is
    times: list[int] = []
    for number in range(3):
        house.clock.advance(1_000)
        times.append(house.clock.now())
        await house.shadows.desire(KEY, wanted({"n": number}))
    asking = [asyncio.ensure_future(house.history.at_version(KEY, 2)),
              asyncio.ensure_future(house.history.at_time(KEY, times[0]))]  # fmt: skip
    await asyncio.sleep(0.1)
    assert not any(each.done() for each in asking)
    await house.catch_up()
    assert [(await each).version for each in asking] == [2, 1]


async def test_who_asks_while_nobody_writes_versions_is_told_to_ask_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iotsphere.use_cases.shadow.history.LOOK_AGAIN_S", 0.0)
    for number in range(2):
        await house.shadows.desire(KEY, wanted({"n": number}))
    with pytest.raises(Unavailable, match="version 1 of this shadow is being written: ask again in a moment"):
        await house.history.at_version(KEY, 1)
    house.clock.advance(60_001)
    with pytest.raises(RequestInvalid, match="it can be had in no earlier version than the present one"):
        await house.history.at_version(KEY, 1)


# The fleet


async def selected(house: House, said: dict[str, Any], after: str = "") -> list[str]:
    return [device async for page in house.fleet.select(DOMAIN, parse_fleet_filter(said), after) for device in page]


async def test_a_filter_selects_devices(house: House) -> None:
    for number in range(8):
        await house.register(f"pump-{number}", site="north" if number % 2 else "south")
        await house.shadows.fold([(ShadowKey(DOMAIN, f"pump-{number}"), said({"battery": number * 10}))])
    await house.register("tank-1", site="north")
    await house.database.put("devices", Write("other/pump-9", None, {"device": "pump-9", "labels": {"site": "north"}}))
    await house.database.put("devices", Write(f"{DOMAIN}/pump-x", None, {"labels": "by hand"}))
    assert await selected(house, {"glob": "*"}) == [*(f"pump-{number}" for number in range(8)), "pump-x", "tank-1"]
    assert await selected(house, {"glob": "*"}, after="pump-6") == ["pump-7", "pump-x", "tank-1"]
    assert await selected(house, {"labels": {"site": "north"}}) == ["pump-1", "pump-3", "pump-5", "pump-7", "tank-1"]
    assert await selected(house, {"ids": ["tank-1", "pump-3", "nobody"]}) == ["pump-3", "tank-1"]
    assert await selected(house, {"ids": ["tank-1", "pump-3"]}, after="pump-3") == ["tank-1"]
    low = {"where": [{"reported": "/battery", "is": "<", "value": 30}]}
    assert await selected(house, low) == ["pump-0", "pump-1", "pump-2"]
    assert await selected(house, {**low, "labels": {"site": "north"}}) == ["pump-1"]
    assert await selected(house, {**low, "shadow": "radio"}) == []
    silent = {"prefix": "tank-", "where": [{"reported": "/battery", "is": "exists", "value": False}]}
    assert await selected(house, silent) == ["tank-1"]


async def test_a_large_fleet_comes_in_pages(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "PAGE", 7)
    for number in range(20):
        await house.register(f"d{number:02}")
    devices = [f"d{number:02}" for number in range(20)]
    assert await selected(house, {"glob": "*"}) == devices
    assert await selected(house, {"ids": devices}) == devices
    pages = [len(page) async for page in house.fleet.select(DOMAIN, parse_fleet_filter({"glob": "*"}))]
    assert pages == [7, 7, 6]
