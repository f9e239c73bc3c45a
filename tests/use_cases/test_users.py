"""What is kept for users: notifications until they are read, preferences under a lock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.entities.errors import Conflict, MessageRefused, NotFound, VersionConflict
from iotsphere.use_cases import users
from iotsphere.use_cases.ports.database import Write
from iotsphere.use_cases.users import (
    KEPT_AFTER_READING_MS,
    KEPT_MS,
    NOTIFICATIONS,
    PREFERENCES,
    Fact,
    Notifications,
    PreferenceChange,
    Preferences,
)

DOMAIN = "iotsphere"


class House:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.database = MemoryDatabase(self.clock)
        self.notifications = Notifications(self.database, self.clock)
        self.preferences = Preferences(self.database, self.clock)

    def fact(self, number: int, user: str = "ann", domain: str = DOMAIN) -> Fact:
        return Fact(domain, user, f"n{number}", "alarms", number, {"text": f"note {number}"})

    async def change(self, patch: Mapping[str, Any], expected: int | None = None, cause: str = "") -> Mapping[str, Any]:
        return await self.preferences.update(PreferenceChange(DOMAIN, "ann", patch, expected, cause))


@pytest.fixture
async def house() -> House:
    made = House()
    await made.database.ensure([NOTIFICATIONS, PREFERENCES])
    return made


def ids(found: Sequence[Mapping[str, Any]]) -> list[str]:
    return [each["id"] for each in found]


async def test_notifications_are_kept_in_the_order_of_their_times(house: House) -> None:
    facts = [house.fact(number) for number in (3, 1, 2)]
    await house.notifications.keep([*facts, house.fact(9, user="bob"), house.fact(8, domain="other")])
    await house.notifications.keep(facts)  # again, after a crash
    assert ids(await house.notifications.unread(DOMAIN, "ann")) == ["n1", "n2", "n3"]
    assert ids(await house.notifications.unread(DOMAIN, "ann", after=1, limit=1)) == ["n2"]
    assert ids(await house.notifications.unread(DOMAIN, "bob")) == ["n9"]
    assert ids(await house.notifications.unread("other", "ann")) == ["n8"]


async def test_one_that_is_read_is_kept_for_a_week_and_never_unread_again(house: House) -> None:
    await house.notifications.keep([house.fact(1), house.fact(2)])
    begun = house.clock.now()
    house.clock.advance(1_000)
    read = await house.notifications.read(DOMAIN, "ann", "n1")
    assert (read["readAt"], read["removeAt"]) == (begun + 1_000, begun + 1_000 + KEPT_AFTER_READING_MS)
    house.clock.advance(1_000)
    assert await house.notifications.read(DOMAIN, "ann", "n1") == read
    await house.notifications.keep([house.fact(1)])
    assert ids(await house.notifications.unread(DOMAIN, "ann")) == ["n2"]
    found = await house.notifications.all(DOMAIN, "ann")
    assert [(each["id"], "unread" in each) for each in found] == [("n1", False), ("n2", True)]
    assert found[1]["removeAt"] == begun + KEPT_MS
    for user, number in (("bob", "n1"), ("ann", "n7")):
        with pytest.raises(NotFound):
            await house.notifications.read(DOMAIN, user, number)


async def test_what_somebody_wrote_into_the_database_is_listed_by_its_key(house: House) -> None:
    body = {"domain": DOMAIN, "user": "ann", "unread": True, "at": 5.0, "content": {"text": "by hand"}}
    await house.database.put("notifications", Write(f"{DOMAIN}/ann/n5", None, body))
    (found,) = await house.notifications.unread(DOMAIN, "ann")
    assert (found["id"], found["at"], found["content"]) == ("n5", 5, {"text": "by hand"})
    read = await house.notifications.read(DOMAIN, "ann", "n5")
    assert read["id"] == "n5"
    assert await house.notifications.unread(DOMAIN, "ann") == []


async def test_preferences_grow_by_patches_and_versions_by_one(house: House) -> None:
    assert await house.preferences.get(DOMAIN, "ann") == {"preferences": {}, "version": 0}
    first = await house.change({"theme": "dark", "lang": "de"})
    assert (first["preferences"], first["version"]) == ({"theme": "dark", "lang": "de"}, 1)
    same = await house.change({"theme": "dark"})
    assert same["version"] == 1
    second = await house.change({"lang": None, "size": 12}, expected=1)
    assert (second["preferences"], second["version"]) == ({"theme": "dark", "size": 12}, 2)
    assert await house.preferences.get(DOMAIN, "ann") == second
    assert (await house.preferences.get("other", "ann"))["version"] == 0


async def test_a_patch_for_another_version_is_refused_with_what_is_there(house: House) -> None:
    await house.change({"theme": "dark"})
    with pytest.raises(VersionConflict) as caught:
        await house.change({"theme": "light"}, expected=0)
    assert caught.value.facts == {"version": 1, "state": {"preferences": {"theme": "dark"}, "version": 1}}


async def test_a_repeated_request_counts_once_even_behind_its_own_version(house: House) -> None:
    first = await house.change({"theme": "dark"}, expected=0, cause="c1")
    assert await house.change({"theme": "dark"}, expected=0, cause="c1") == first


async def test_preferences_that_people_wrote_in_another_form_begin_anew(house: House) -> None:
    await house.database.put("preferences", Write(f"{DOMAIN}/ann", None, {"preferences": "dark", "version": "x"}))
    assert (await house.preferences.get(DOMAIN, "ann"))["preferences"] == {}
    assert (await house.change({"theme": "dark"}, expected=0))["version"] == 1


async def test_preferences_are_bounded(house: House) -> None:
    with pytest.raises(MessageRefused) as caught:
        await house.change({"text": "x" * 65_536})
    assert caught.value.code == "payload_too_large"
    assert (await house.preferences.get(DOMAIN, "ann"))["version"] == 0


async def test_many_at_once_lose_nothing(house: House) -> None:
    await asyncio.gather(*(house.change({f"k{number}": number}) for number in range(15)))
    found = await house.preferences.get(DOMAIN, "ann")
    assert (found["version"], len(found["preferences"])) == (15, 15)


async def test_who_never_gets_a_turn_is_told(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "ATTEMPTS", 0)
    with pytest.raises(Conflict):
        await house.change({"theme": "dark"})
