"""Shadows over a database: locks, repetition, batches, many writers, evidence, expiry, and edits by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from iotsphere.adapters.shadow.body import ShadowDocument
from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.entities.errors import (
    DatabaseUnavailable,
    IotSphereError,
    MessageRefused,
    NotFound,
    RateLimited,
    RequestInvalid,
    VersionConflict,
)
from iotsphere.entities.shadow import MAX_SHADOW_BYTES, Answer, Mark, Shadow, ShadowKey, Wish
from iotsphere.use_cases.ports.database import Outcome, Write
from iotsphere.use_cases.shadow import writer as shadow_writer
from iotsphere.use_cases.shadow.shadows import Shadows
from iotsphere.use_cases.shadow.writer import MAX_TRIES, SHADOWS, UNFAIR_TRIES
from tests.use_cases.shadow_house import (
    DOMAIN,
    KEY,
    KINDS,
    House,
    at_offset,
    no_log,
    open_house,
    place_of,
    said,
    wanted,
)


@pytest.fixture(params=KINDS)
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    async with open_house(place_of(request)) as opened:
        yield opened


async def test_a_wish_is_kept_and_told_with_its_version(house: House) -> None:
    answer = await house.shadows.desire(KEY, wanted({"led": True}, message_id="m1"))
    assert answer == Answer(1, 1, changed=True)
    (body,) = await house.catch_up()
    assert (body["version"], body["deltaSequence"], body["desired"]) == (1, 1, {"led": True})
    assert (body["author"], body["cause"], body["device"], body["schema"]) == ("ui", "m1", "dev-s", 1)
    shadow = await house.shadow()
    assert shadow.delta == {"led": True}
    assert shadow.created_at == shadow.updated_at == house.clock.now()


async def test_what_changes_nothing_is_not_written(house: House) -> None:
    await house.shadows.desire(KEY, wanted({"a": 1}))
    await house.shadows.fold([(KEY, said({"a": 1, "b": [1]}))])
    await house.catch_up()
    assert await house.shadows.desire(KEY, wanted({"a": 1.0})) == Answer(2, 2, changed=False)
    assert await house.shadows.fold([(KEY, said({"b": [1], "zz": None}))]) == [Answer(2, 2, changed=False)]
    assert await house.shadows.expire() == 0
    assert await house.catch_up() == []


async def test_b22_a_wrong_base_is_refused_with_the_state_and_a_repetition_gets_its_answer(house: House) -> None:
    await house.shadows.fold([(KEY, said({"n": number})) for number in range(221)])
    await house.shadows.desire(KEY, wanted({"windowOpen": True}, version=221))
    assert (await house.shadow()).version == 222
    request = wanted({"windowOpen": False}, version=221, message_id="00000000-0000-4000-8000-0000000000b2")
    with pytest.raises(VersionConflict) as conflict:
        await house.shadows.desire(KEY, request)
    assert conflict.value.facts["version"] == 222
    assert conflict.value.facts["state"] == {"reported": {"n": 220}, "desired": {"windowOpen": True}}
    assert (await house.shadow()).version == 222
    current = wanted({"windowOpen": False}, version=222, message_id="00000000-0000-4000-8000-0000000000b3")
    first = await house.shadows.desire(KEY, current)
    assert await house.neighbour().shadows.desire(KEY, current) == first == Answer(223, 2, changed=True)
    gone = await house.shadows.delete(KEY, wanted({}))
    assert gone.version == 224
    with pytest.raises(VersionConflict):
        await house.shadows.desire(KEY, wanted({"windowOpen": True}, version=223))
    with pytest.raises(NotFound):
        await house.shadow()
    assert (await house.shadows.desire(KEY, wanted({"windowOpen": True}))).version == 225
    told = [body["version"] for body in await house.catch_up()]
    assert told == list(range(1, 226))


async def test_b21_fifty_writers_make_a_thousand_versions_and_lose_nothing(house: House) -> None:
    houses = [house, *(house.neighbour() for _ in range(7))]

    async def write(number: int) -> None:
        shadows = houses[number % len(houses)].shadows
        for count in range(20):
            answer = await shadows.desire(KEY, wanted({f"writer{number}": count}, message_id=f"{number}/{count}"))
            assert answer.changed

    async with asyncio.timeout(300):
        await asyncio.gather(*(write(number) for number in range(50)))
    shadow = await house.shadow()
    assert shadow.version == 1_000
    assert shadow.desired == {f"writer{number}": 19 for number in range(50)}
    told = await house.catch_up()
    assert [body["version"] for body in told] == list(range(1, 1_001))
    assert len({body["cause"] for body in told}) == 1_000
    # What each version says was done in it: the steps between the states.
    done = [(body["cause"], body["desired"]) for body in told]
    assert all(desired[f"writer{cause.split('/')[0]}"] == int(cause.split("/")[1]) for cause, desired in done)
    assert len(house.told) < 1_000


async def test_a_slice_of_reports_is_one_write_for_each_shadow_and_a_version_for_each_report(house: House) -> None:
    other = ShadowKey(DOMAIN, "d2", "radio")
    reports = [(key, said({"n": number}, place=at_offset(2 * number + index))) for number in range(3)
               for index, key in enumerate((KEY, other), 1)]  # fmt: skip
    answers = await house.shadows.fold(reports)
    assert answers == [Answer(version, 0, changed=True) for version in (1, 1, 2, 2, 3, 3)]
    bodies = await house.catch_up()
    assert len(house.told) == 2
    assert [(body["device"], body["version"], body["reported"]["n"]) for body in bodies] == [
        (device, version, version - 1) for device in (change.key.split("/")[1] for change in house.told)
        for version in (1, 2, 3)
    ]  # fmt: skip
    # After a crash the slice comes again, and perhaps more with it.
    again = await house.neighbour().shadows.fold([*reports, (KEY, said({"n": 9}, place=at_offset(7)))])
    assert [answer.changed for answer in again if isinstance(answer, Answer)] == [False] * 6 + [True]
    assert (await house.shadow()).reported == {"n": 9}
    assert (await house.shadow()).version == 4


async def test_a_report_that_is_refused_leaves_the_others(house: House) -> None:
    answers = await house.shadows.fold(
        [
            (KEY, said({"a": 1})),
            (KEY, said({"text": "x" * MAX_SHADOW_BYTES})),
            (KEY, said({"a": 2}, version=7)),
            (KEY, said({"b": 2}, version=1)),
        ]
    )
    first, large, conflict, last = answers
    assert (first, last) == (Answer(1, 0, changed=True), Answer(2, 0, changed=True))
    assert isinstance(large, MessageRefused)
    assert large.code == "payload_too_large"
    assert isinstance(conflict, VersionConflict)
    assert conflict.facts["version"] == 1
    assert (await house.shadow()).reported == {"a": 1, "b": 2}


async def test_more_changes_than_one_write_may_hold_become_several(house: House) -> None:
    answers = await house.shadows.fold([(KEY, said({"n": number})) for number in range(200)])
    assert answers[-1] == Answer(200, 0, changed=True)
    assert [body["version"] for body in await house.catch_up()] == list(range(1, 201))
    assert 3 <= len(house.told) <= 4
    await house.shadows.fold([(KEY, said({f"k{number % 2}": str(number) * 9_000})) for number in range(10)])
    assert [body["version"] for body in await house.catch_up()] == list(range(201, 211))


async def test_many_shadows_are_wished_for_at_once(house: House) -> None:
    await house.shadows.desire(ShadowKey(DOMAIN, "d1"), wanted({"fw": "1"}))
    answers = await house.shadows.desire_many(
        [(ShadowKey(DOMAIN, f"d{number}"), wanted({"fw": "2"}, version=0)) for number in range(300)]
    )
    assert isinstance(answers[1], VersionConflict)
    assert [answer for answer in answers if isinstance(answer, Answer)] == [Answer(1, 1, changed=True)] * 299
    found, after = await house.shadows.page(DOMAIN, limit=100)
    assert (len(found), after) == (100, f"{DOMAIN}/d188")
    rest, after = await house.shadows.page(DOMAIN, after, limit=1_000)
    assert (len(rest), after) == (200, "")


async def test_evidence_is_kept_without_a_version(house: House) -> None:
    await house.shadows.desire(KEY, wanted({"a": 1}))
    await house.shadows.deliver([(KEY, 1, "delivered"), (KEY, 1, "acknowledged")])
    assert (await house.shadow()).wishes["/a"].status == "acknowledged"
    assert (await house.shadow()).version == 1
    bodies = await house.catch_up()
    assert [(body["version"], body["wishes"]["/a"]["status"]) for body in bodies] == [
        (1, "pending"),
        (1, "acknowledged"),
    ]
    await house.shadows.deliver([(KEY, 1, "delivered")])
    assert await house.catch_up() == []


async def test_wishes_expire_when_their_time_has_come(house: House) -> None:
    now = house.clock.now()
    keys = [ShadowKey(DOMAIN, f"d{number}") for number in range(700)]
    await house.shadows.desire_many([(key, wanted({"a": 1, "b": 1}, expires={"/a": now + 1_000})) for key in keys])
    await house.shadows.desire(KEY, wanted({"a": 1}, expires_at=now + 2_000))
    assert await house.shadows.expire() == 0
    house.clock.advance(1_000)
    assert await house.shadows.expire() == 700
    assert await house.shadows.expire() == 0
    shadow = await house.shadow(keys[5])
    assert (shadow.delta, shadow.version, shadow.wishes["/a"].status) == ({"b": 1}, 2, "expired")
    house.clock.advance(1_000)
    assert await house.shadows.expire() == 1
    assert (await house.shadow()).delta == {}


async def test_a_device_has_a_main_shadow_and_named_ones(house: House) -> None:
    keys = [ShadowKey(DOMAIN, "d1"), ShadowKey(DOMAIN, "d1", "a"), ShadowKey(DOMAIN, "d1", "b")]
    for key in (*reversed(keys), ShadowKey(DOMAIN, "d10"), ShadowKey(DOMAIN, "d1", "gone")):
        await house.shadows.desire(key, wanted({"name": key.name}))
    await house.shadows.delete(ShadowKey(DOMAIN, "d1", "gone"), wanted({}))
    assert [shadow.key for shadow in await house.shadows.of_device(DOMAIN, "d1")] == keys
    assert await house.shadows.of_device(DOMAIN, "d2") == []
    found = await house.shadows.get_many([*keys, ShadowKey(DOMAIN, "d1", "gone"), ShadowKey(DOMAIN, "d2")])
    assert {key: shadow.desired["name"] for key, shadow in found.items()} == {key: key.name for key in keys}


# Written by hand


async def adopted(house: House) -> list[Answer | None]:
    """Do with each change what the listener does."""
    await house.catch_up(keep=False)
    told, house.told = house.told, []
    return [await house.shadows.adopt(KEY, change.before, change.after) for change in told]


async def test_an_edit_with_the_tools_of_the_database_becomes_a_version(house: House) -> None:
    await house.shadows.desire(KEY, wanted({"a": 1, "b": 1}))
    await house.shadows.fold([(KEY, said({"a": 1}))])
    await house.shadows.deliver([(KEY, 1, "delivered")])
    assert await adopted(house) == [None, None, None]
    await house.by_hand(KEY, desired={"a": 5.0, "c": True})
    assert await adopted(house) == [Answer(3, 3, changed=True)]
    before, after = {"version": 2, "desired": {"a": 1}}, {"version": 2, "desired": {"a": 5}}
    assert await house.shadows.adopt(KEY, before, after) == Answer(3, 3, changed=False)  # again, after a crash
    shadow = await house.shadow()
    assert (shadow.author, shadow.delta) == ("database", {"a": 5.0, "c": True})
    assert shadow.wishes["/a"] == Wish("pending", house.clock.now(), 3, "database", 3)
    assert shadow.marks["/a"].author == "dev-s"
    assert await adopted(house) == [None]
    await house.by_hand(KEY, reported={"a": 5, "r": 1})
    assert await adopted(house) == [Answer(4, 4, changed=True)]
    assert (await house.shadow()).marks["/r"] == Mark(house.clock.now(), 4, "database")


async def test_an_edit_that_somebody_has_built_upon_is_told_again(house: House) -> None:
    await house.shadows.desire(KEY, wanted({"a": 1}))
    await house.catch_up()
    house.told = []
    await house.by_hand(KEY, desired={"a": 2})
    await house.shadows.fold([(KEY, said({"other": 1}))])
    assert await adopted(house) == [Answer(3, 2, changed=True), None]
    assert (await house.shadow()).delta == {"a": 2}


async def test_a_document_made_or_removed_by_hand_keeps_its_versions_growing(house: House) -> None:
    await house.by_hand(KEY, desired={"a": 1})
    assert await adopted(house) == [Answer(1, 1, changed=True)]
    assert (await house.shadow()).delta == {"a": 1}
    stored = await house.database.get("shadows", KEY.text)
    await house.database.put("shadows", Write(KEY.text, stored, None))
    assert await adopted(house) == [None, Answer(2, 2, changed=True)]
    with pytest.raises(NotFound):
        await house.shadow()
    assert (await house.shadows.desire(KEY, wanted({"b": 1}))).version == 3
    stored = await house.database.get("shadows", KEY.text)
    await house.database.put("shadows", Write(KEY.text, stored, {"reported": {"x": 1}}))  # replaced as a whole
    assert [answer.version for answer in await adopted(house) if answer is not None] == [4]
    assert (await house.shadow()).reported == {"x": 1}
    assert [body["version"] for body in await house.catch_up()] == [4]


async def test_documents_that_are_no_shadows_harm_nobody(house: House) -> None:
    await house.shadows.desire(KEY, wanted({"a": 1}, expires_at=house.clock.now() + 10))
    for key, body in (
        ("loose", {"due": 1, "version": 3}),
        (f"{DOMAIN}/batch", {"due": 2, "version": 1}),
        (f"{DOMAIN}/d1/reported", {"due": 3}),
        (f"{DOMAIN}/d1/a/b", {"due": 4}),
        (f"{DOMAIN}/d2", {"due": 5, "version": 2.0, "reported": 7, "wishes": [], "marks": {"/a": 1}, "updatedAt": 1}),
        (f"{DOMAIN}/d3", {"version": "x", "desired": {"a": 1}, "wishes": {"/a": {"status": "sold"}}, "recent": [1]}),
    ):
        await house.database.put("shadows", Write(key, None, body))
    house.clock.advance(10)
    assert await house.shadows.expire() == 1
    await house.catch_up()
    found, _ = await house.shadows.page(DOMAIN)
    assert [(shadow.key.device, shadow.version) for shadow in found] == [("d2", 2), ("d3", 1), ("dev-s", 2)]
    assert [shadow.key.device for shadow in await house.shadows.of_device(DOMAIN, "d2")] == ["d2"]


# Faults


class Faulty(MemoryDatabase):
    """A database that fails as told."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.away = False
        self.forgets_to_answer = False
        self.conflicts = 0
        self.reads = 0

    async def get_many(self, collection: str, keys: Sequence[str]) -> Any:
        self.reads += 1
        if self.away:
            raise DatabaseUnavailable("it is away")
        return await super().get_many(collection, keys)

    async def write(self, collection: str, writes: Sequence[Write]) -> Sequence[Outcome]:
        if self.conflicts > 0:
            self.conflicts -= 1
            return [Outcome(False, await self.get(collection, write.key)) for write in writes]
        outcomes = await super().write(collection, writes)
        if self.forgets_to_answer:
            raise DatabaseUnavailable("the answer is lost")
        return outcomes


@pytest.fixture
async def faulty() -> Faulty:
    database = Faulty(ManualClock())
    await database.ensure((SHADOWS,))
    return database


@pytest.fixture
def shadows(faulty: Faulty) -> Shadows:
    return Shadows(faulty, ShadowDocument(), ManualClock(), no_log)


async def test_while_the_database_is_away_everybody_is_told_so(faulty: Faulty, shadows: Shadows) -> None:
    faulty.away = True
    with pytest.raises(DatabaseUnavailable):
        await shadows.desire(KEY, wanted({"a": 1}))
    with pytest.raises(DatabaseUnavailable):
        await shadows.fold([(KEY, said({"a": 1})), (ShadowKey(DOMAIN, "d2"), said({"a": 1}))])
    faulty.away = False
    assert await shadows.desire(KEY, wanted({"a": 1})) == Answer(1, 1, changed=True)
    assert shadows.writer.waiting == 0


async def test_a_lost_answer_may_be_asked_for_again(faulty: Faulty, shadows: Shadows) -> None:
    faulty.forgets_to_answer = True
    with pytest.raises(DatabaseUnavailable):
        await shadows.desire(KEY, wanted({"a": 1}, message_id="m1"))
    with pytest.raises(DatabaseUnavailable):
        await shadows.fold([(KEY, said({"n": 1}, place=at_offset(1))), (KEY, said({"n": 2}, place=at_offset(2)))])
    faulty.forgets_to_answer = False
    assert await shadows.desire(KEY, wanted({"a": 1}, message_id="m1")) == Answer(1, 1, changed=True)
    again = await shadows.fold([(KEY, said({"n": 1}, place=at_offset(1))), (KEY, said({"n": 2}, place=at_offset(2)))])
    assert again == [Answer(3, 1, changed=False)] * 2
    assert (await shadows.get(KEY)).reported == {"n": 2}


async def test_conflicts_are_tried_again_up_to_a_bound(
    faulty: Faulty, shadows: Shadows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_writer, "LAST_PAUSE_S", 0.001)
    faulty.conflicts = 20
    assert await shadows.desire(KEY, wanted({"a": 1})) == Answer(1, 1, changed=True)
    assert (shadows.writer.conflicts, shadows.writer.writes) == (20, 1)
    faulty.conflicts = 1_000
    with pytest.raises(DatabaseUnavailable, match="others keep changing the shadow"):
        await shadows.desire(KEY, wanted({"a": 2}))
    assert shadows.writer.waiting == 0
    faulty.conflicts = 0
    assert (await shadows.desire(KEY, wanted({"a": 2}))).version == 2


async def test_who_has_lost_often_writes_at_once_on_what_the_conflict_told(
    faulty: Faulty, shadows: Shadows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round trip ahead of all who read first, and without a pause: so nobody loses for ever."""
    monkeypatch.setattr(shadow_writer, "LAST_PAUSE_S", 0.001)
    await shadows.desire(KEY, wanted({"a": 1}))
    for conflicts, reads in ((1, 1), (2, 2), (UNFAIR_TRIES - 1, UNFAIR_TRIES - 1), (UNFAIR_TRIES, UNFAIR_TRIES - 1)):
        faulty.conflicts, faulty.reads = conflicts, 0
        await shadows.desire(KEY, wanted({"a": conflicts + 1}))
        assert faulty.reads == reads
    faulty.conflicts, faulty.reads = MAX_TRIES, 0
    await shadows.desire(KEY, wanted({"a": 0}))
    assert faulty.reads == UNFAIR_TRIES - 1


async def test_a_document_that_cannot_be_stored_fails_alone(faulty: Faulty, shadows: Shadows) -> None:
    def spoil(shadow: Shadow, at: int) -> tuple[Shadow, Answer]:
        return Shadow(key=shadow.key, version=1, reported={"$bad": at}), Answer(1, 0, changed=True)

    bad, good = await shadows.writer.many(
        [
            (ShadowKey(DOMAIN, "bad"), spoil),
            (KEY, lambda shadow, at: (Shadow(key=shadow.key, version=1, updated_at=at), Answer(1, 0, changed=True))),
        ]
    )
    assert isinstance(bad, RequestInvalid)
    assert good == Answer(1, 0, changed=True)
    assert await faulty.get("shadows", f"{DOMAIN}/bad") is None


async def test_a_change_that_fails_fails_alone(shadows: Shadows) -> None:
    def broken(shadow: Shadow, at: int) -> tuple[Shadow, Answer]:
        raise ZeroDivisionError(f"{shadow.key.text} at {at}")

    fault, answer = await asyncio.gather(
        shadows.writer(KEY, broken), shadows.desire(KEY, wanted({"a": 1})), return_exceptions=True
    )
    assert isinstance(fault, ZeroDivisionError)
    assert answer == Answer(1, 1, changed=True)


async def test_an_error_that_nobody_has_foreseen_reaches_those_who_wait_and_nobody_else(
    faulty: Faulty, shadows: Shadows, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> Any:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    def spoiled(*_: object) -> Any:
        raise ZeroDivisionError

    for place, method, fault in (
        (faulty, "get_many", broken),
        (faulty, "write", broken),
        (ShadowDocument, "read", spoiled),
        (ShadowDocument, "write", spoiled),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(place, method, fault)
            first = asyncio.ensure_future(shadows.desire(KEY, wanted({"a": 1})))
            await asyncio.sleep(0)
            second = asyncio.ensure_future(shadows.desire(KEY, wanted({"b": 1})))
            results = await asyncio.gather(first, second, return_exceptions=True)
            assert [type(result) for result in results] == [ZeroDivisionError] * 2
    assert await shadows.desire(KEY, wanted({"a": 1})) == Answer(1, 1, changed=True)
    assert shadows.writer.waiting == 0


async def test_whoever_gives_up_waiting_is_not_waited_for(shadows: Shadows) -> None:
    tasks = [asyncio.ensure_future(shadows.desire(KEY, wanted({"n": number}))) for number in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    assert (await tasks[0], (await tasks[2]).version) == (Answer(1, 1, changed=True), 2)
    assert shadows.writer.waiting == 0


async def test_requests_are_refused_when_too_many_wait(shadows: Shadows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_writer, "MAX_WAITING", 5)
    results = await asyncio.gather(
        *(shadows.desire(KEY, wanted({"n": number})) for number in range(7)), return_exceptions=True
    )
    assert [isinstance(result, RateLimited) for result in results] == [False] * 5 + [True] * 2
    assert not [result for result in results[:5] if isinstance(result, IotSphereError)]


async def test_a_deletion_buries_what_was_sent_before_it_by_its_place(house: House) -> None:
    await house.shadows.fold([(KEY, said({"r": 1}, place=at_offset(3)))])
    house.ends = {"shadow/0": (1, 5)}
    await house.shadows.delete(KEY, wanted({}))
    house.clock.advance(-3_600_000)  # the clock had run ahead
    late, new = await house.shadows.fold(
        [(KEY, said({"r": 2}, place=at_offset(5))), (KEY, said({"r": 3}, place=at_offset(6)))]
    )
    assert not isinstance(late, IotSphereError)
    assert not isinstance(new, IotSphereError)
    assert (late.outcome, new.outcome, new.version) == ("superseded", "applied", 3)
    assert (await house.shadow()).reported == {"r": 3}


async def test_places_beyond_the_end_of_the_log_are_put_right(house: House) -> None:
    other = ShadowKey(DOMAIN, "dev-t")
    await house.shadows.fold([(KEY, said({"r": 1}, place=at_offset(9))), (other, said({"r": 1}, place=at_offset(2)))])
    assert await house.shadows.clamp(DOMAIN, "shadow/0", 1, 4) == 1
    assert await house.shadows.clamp(DOMAIN, "shadow/0", 1, 4) == 0
    before = (await house.shadow()).version
    old, new = await house.shadows.fold(
        [(KEY, said({"r": 2}, place=at_offset(4))), (KEY, said({"r": 3}, place=at_offset(5)))]
    )
    assert not isinstance(old, IotSphereError)
    assert not isinstance(new, IotSphereError)
    assert (old.changed, new.version) == (False, before + 1)
    assert (await house.shadow()).reported == {"r": 3}
