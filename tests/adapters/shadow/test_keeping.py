"""What follows from changes of shadows: versions are kept, hands become versions, and nothing strange stops it."""

from __future__ import annotations

from typing import Any

import pytest

from iotsphere.adapters.shadow.body import ShadowDocument, versions
from iotsphere.adapters.shadow.keeping import KEPT_MS, ShadowKeeping
from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.entities.errors import DatabaseUnavailable, Unavailable
from iotsphere.entities.shadow import ShadowKey
from iotsphere.entities.shadow_changes import Wanted
from iotsphere.use_cases.ports.database import Body, Change, Write
from iotsphere.use_cases.shadow.history import HISTORY
from iotsphere.use_cases.shadow.shadows import Shadows
from iotsphere.use_cases.shadow.writer import SHADOWS
from tests.use_cases.shadow_house import no_log

KEY = ShadowKey("iotsphere", "d1")


class House:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.database = MemoryDatabase(self.clock)
        self.shadows = Shadows(self.database, ShadowDocument(), self.clock, no_log)
        self.alarms: list[tuple[str, str]] = []
        self.keeping = ShadowKeeping(self.database, self.shadows, self.clock, self.alarm)

    async def alarm(self, change: Change, reason: str) -> None:
        self.alarms.append((change.key, reason))

    async def body(self) -> Body | None:
        stored = await self.database.get("shadows", KEY.text)
        return None if stored is None else stored.body

    async def write(self, body: dict[str, Any] | None) -> Change:
        before = await self.database.get("shadows", KEY.text)
        await self.database.put("shadows", Write(KEY.text, before, body))
        return change(None if before is None else before.body, body)

    async def desire(self, patch: dict[str, Any]) -> Change:
        before = await self.body()
        await self.shadows.desire(KEY, Wanted(patch=patch, author="ui"))
        return change(before, await self.body())

    async def kept(self) -> list[tuple[str, Any]]:
        return [(stored.key, stored.body["desired"]) for stored in await self.database.scan("shadow_history")]


def change(before: Body | None, after: Body | None, key: str = KEY.text, **facts: Any) -> Change:
    kind = "delete" if after is None else "insert" if before is None else "update"
    return Change("t", 1, kind, facts.pop("collection", "shadows"), key, 1, before, after, **facts)


@pytest.fixture
async def house() -> House:
    made = House()
    await made.database.ensure([SHADOWS, HISTORY])
    return made


async def test_each_version_is_kept_once_with_the_time_when_it_may_go(house: House) -> None:
    changes = [await house.desire({"n": number}) for number in range(3)]
    for _ in range(2):
        await house.keeping(changes)
    assert await house.kept() == [
        ("iotsphere/d1@000000000001", {"n": 0}),
        ("iotsphere/d1@000000000002", {"n": 1}),
        ("iotsphere/d1@000000000003", {"n": 2}),
    ]
    (first, *_) = await house.database.scan("shadow_history")
    assert first.body["expires"] == house.clock.now() + KEPT_MS
    assert (await house.shadows.get(KEY)).version == 3


async def test_what_a_hand_changed_becomes_a_version_of_its_own(house: House) -> None:
    await house.keeping([await house.desire({"n": 0})])
    now = await house.body()
    assert now is not None
    by_hand = await house.write({**now, "desired": {"n": 7}})
    await house.keeping([by_hand])
    shadow = await house.shadows.get(KEY)
    assert (shadow.version, shadow.desired, shadow.sequence, shadow.author) == (2, {"n": 7}, 2, "database")
    await house.keeping([by_hand])
    assert (await house.shadows.get(KEY)).version == 2


async def test_what_was_looked_up_says_nothing_of_a_hand(house: House) -> None:
    await house.desire({"n": 0})
    now = await house.body()
    assert now is not None
    looked_up = await house.write({**now, "desired": {"n": 7}})
    await house.keeping([looked_up._replace(before=None, whole=False)])
    assert (await house.shadows.get(KEY)).version == 1


STRANGE: dict[str, dict[str, Any]] = {
    "steps that are no list": {"version": 1, "steps": 5, "desired": {}},
    "steps that are no objects": {"version": 3, "steps": [1, 2], "desired": {}},
    "a version that is a text": {"version": "one", "desired": {"n": 1}},
    "a domain that is a number": {"version": 1, "domain": 5, "device": [], "desired": {}},
    "wishes that are none": {"version": 1, "wishes": {"/a": 5, "/b": {"status": "odd"}}, "marks": [1]},
    "everything as a text": dict.fromkeys(("version", "desired", "reported", "marks", "wishes", "recent"), "x"),
}


@pytest.mark.parametrize("name", STRANGE)
async def test_strange_documents_stop_nothing(house: House, name: str) -> None:
    good = await house.desire({"n": 0})
    strange = await house.write(STRANGE[name])
    await house.keeping(
        [strange, change(None, {"version": 1}, "no key"), change(None, {}, collection="commands"), good]
    )
    assert ("iotsphere/d1@000000000001", {"n": 0}) in await house.kept() or name.startswith("steps that are no list")
    assert versions(None, STRANGE[name])


async def test_what_is_too_large_to_be_kept_is_passed_over_and_counted(house: House) -> None:
    good = change(None, {"version": 4, "desired": {"n": 4}, "updatedAt": 1})
    large = change(None, {"version": 5, "desired": {"text": "x" * 999_950}, "updatedAt": 1})
    await house.keeping([large, good])
    assert house.keeping.unkept == 1
    assert [key for key, _ in house.alarms] == [KEY.text]
    assert await house.kept() == [("iotsphere/d1@000000000004", {"n": 4})]


async def test_an_unavailable_database_is_told(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    good = await house.desire({"n": 0})

    async def away(collection: str, writes: object) -> None:
        raise DatabaseUnavailable(f"{collection} {writes!a:.10}")

    monkeypatch.setattr(house.database, "write", away)
    with pytest.raises(Unavailable):
        await house.keeping([good])
