"""The overview of a fleet: what it tells of each device, page by page, and to whom."""

from __future__ import annotations

import pytest

from iotsphere.entities.principal import Principal, parse_grant
from iotsphere.use_cases import overview as module
from iotsphere.use_cases.access.tokens import operator
from iotsphere.use_cases.overview import Overview
from tests.support.rooms import Rooms, open_rooms


def overview_of(rooms: Rooms) -> Overview:
    return Overview(rooms.devices, rooms.state.roster, rooms.last_values)


async def test_a_device_is_shown_with_labels_presence_and_its_newest_telemetry() -> None:
    async with open_rooms() as rooms:
        for name in ("a", "b"):
            await rooms.devices.register("iotsphere", name)
        await rooms.state.roster.keep("iotsphere", "a", {"city": "sf"})
        newest = await rooms.say("iotsphere/devices/a/telemetry/temperature", 21.5)
        newest = await rooms.say("iotsphere/devices/a/telemetry/humidity", 40)
        presence = await rooms.come_online("iotsphere", "a")
        await rooms.say("iotsphere/devices/a/shadow/reported", {"reported": {"x": 1}})
        page = await overview_of(rooms).page(operator("iotsphere"))
        first, second = page.devices
        assert (first.device.device_id, first.labels, page.after) == ("a", {"city": "sf"}, None)
        assert first.newest is not None
        assert first.presence is not None
        assert first.newest.record.message_id == newest.record.message_id
        assert first.presence.record.message_id == presence.message_id
        assert (second.device.device_id, second.labels, second.presence, second.newest) == ("b", {}, None, None)


async def test_pages_follow_each_other_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    async with open_rooms() as rooms:
        names = [f"d{number}" for number in range(8)]
        for name in names:
            await rooms.devices.register("iotsphere", name)
        await rooms.devices.register("other", "d3")
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = await overview_of(rooms).page(operator("iotsphere"), after, 4)
            found += [one.device.device_id for one in page.devices]
            after = page.after
        assert found == names


async def test_only_devices_are_shown_whose_presence_one_may_listen_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    monkeypatch.setattr(module, "MAX_LOOKED_AT", 4)
    async with open_rooms() as rooms:
        for number in range(9):
            await rooms.devices.register("iotsphere", f"d{number}")
        grant = parse_grant("subscribe:iotsphere/devices/d7/#", domain="iotsphere")
        ann = Principal("user", "ann", "iotsphere", (grant,))
        first = await overview_of(rooms).page(ann)
        assert (list(first.devices), first.after) == ([], "d3"), "it does not look at all of a large fleet in one go"
        second = await overview_of(rooms).page(ann, "d3")
        assert [one.device.device_id for one in second.devices] == ["d7"]
        assert await overview_of(rooms).page(Principal("user", "bob", "iotsphere")) == ([], "d3")


async def test_one_device_is_told_of_to_whoever_may_listen_to_some_of_it() -> None:
    async with open_rooms() as rooms:
        await rooms.devices.register("iotsphere", "a")
        await rooms.state.roster.keep("iotsphere", "a", {"city": "sf"})
        await rooms.come_online("iotsphere", "a")
        overview = overview_of(rooms)
        (whole,) = (await overview.one(operator("iotsphere"), "a")).devices
        assert (whole.device.device_id, whole.labels, whole.presence is None) == ("a", {"city": "sf"}, False)
        grant = parse_grant("subscribe:iotsphere/devices/+/telemetry/#", domain="iotsphere")
        (little,) = (await overview.one(Principal("user", "ann", "iotsphere", (grant,)), "a")).devices
        assert (little.device.device_id, little.labels, little.presence) == ("a", {}, None)
        nobody = Principal("user", "bob", "iotsphere")
        for who, name in ((operator("iotsphere"), "nonesuch"), (operator("iotsphere"), "+/a"), (nobody, "a")):
            assert await overview.one(who, name) == ((), None)
