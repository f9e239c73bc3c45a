"""The contract of a ``Database``'s feed of changes: each change once, in order, from any token that was seen."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from iotsphere.entities.errors import ChangesLost, RequestInvalid
from iotsphere.use_cases.ports.database import Change, Database, Stored, Write

from .database import COLLECTIONS, EVERY_VALUE, insert, typed
from .times import take

Told = tuple[str, str, str, int, Any, Any]
END = "end/of/it"


def told(change: Change) -> Told:
    """What a change tells, without its token and time."""
    assert change.whole
    return change.kind, change.collection, change.key, change.revision, change.before, change.after


async def next_change(feed: AsyncGenerator[Change, None]) -> Change:
    """The next change that is more than ``quiet``."""
    while True:
        change = await take(feed, 60)
        if change.kind != "quiet":
            return change


async def collect(feed: AsyncGenerator[Change, None], count: int) -> list[Told]:
    """What the next changes tell."""
    return [told(await next_change(feed)) for _ in range(count)]


async def up_to_now(database: Database, token: str, collections: Sequence[str] = ()) -> list[Change]:
    """All changes after a token, up to one that is made for that purpose."""
    end = await database.put("things", Write(END, None, {"nonce": secrets.token_hex(8)}))
    assert end is not None
    await database.put("things", Write(END, end, None))
    seen: list[Change] = []
    async with aclosing(database.changes(token, collections)) as feed:
        while (change := await next_change(feed)).after != end.body:
            if change.key != END:
                seen.append(change)
    return seen


class ChangesContract:
    """Needs the fixture ``database``: an open, empty store that was told of COLLECTIONS, with quiet every second or so."""

    async def test_each_change_is_told_with_what_was_before(self, database: Database) -> None:
        token = await database.now()
        async with aclosing(database.changes(token)) as feed:
            made = await database.put("things", Write("d/a", None, {"n": 1}))
            changed = await database.put("things", Write("d/a", made, {"n": 2}))
            again = await database.put("things", Write("d/a", changed, {"n": 2}))
            await database.put("things", Write("d/a", again, None))
            await database.put("things", Write("d/a", None, {"n": 3}))
            assert await collect(feed, 5) == [
                ("insert", "things", "d/a", 1, None, {"n": 1}),
                ("update", "things", "d/a", 2, {"n": 1}, {"n": 2}),
                ("update", "things", "d/a", 3, {"n": 2}, {"n": 2}),
                ("delete", "things", "d/a", 0, {"n": 2}, None),
                ("insert", "things", "d/a", 1, None, {"n": 3}),
            ]

    async def test_what_is_told_is_equal_and_of_its_type(self, database: Database) -> None:
        async with aclosing(database.changes(await database.now())) as feed:
            made = await database.put("things", Write("d/ключ \U0001f511", None, EVERY_VALUE))
            await database.put("things", Write("d/ключ \U0001f511", made, {}))
            first, second = await next_change(feed), await next_change(feed)
        assert first.key == second.key == "d/ключ \U0001f511"
        assert typed(first.after) == typed(second.before) == typed(EVERY_VALUE)
        assert second.after == {}

    async def test_times_are_ms_since_1970_and_do_not_fall(self, database: Database) -> None:
        token = await database.now()
        await insert(database, "things", {f"d/{number}": {} for number in range(5)})
        times = [change.at for change in await up_to_now(database, token)]
        assert len(times) == 5
        assert times == sorted(times)
        assert all(type(time) is int and 1_600_000_000_000 < time < 4_000_000_000_000 for time in times)

    async def test_only_what_is_watched_is_told(self, database: Database) -> None:
        token = await database.now()
        await insert(database, "notes", {"d/a": {"n": 1}})
        await insert(database, "visits", {"d/a": {"n": 2}})
        await insert(database, "things", {"d/a": {"n": 3}})
        assert [change.after for change in await up_to_now(database, token)] == [{"n": 2}, {"n": 3}]
        assert [change.after for change in await up_to_now(database, token, ["things"])] == [{"n": 3}]
        assert [change.after for change in await up_to_now(database, token, ["things", "visits"])] == [
            {"n": 2},
            {"n": 3},
        ]
        for wrong in ("notes", "strangers"):
            with pytest.raises(RequestInvalid, match=wrong):
                await take(database.changes(token, [wrong]))

    async def test_what_was_not_done_is_not_told(self, database: Database) -> None:
        await insert(database, "things", {"d/a": {"n": 1}})
        token = await database.now()
        stale = Stored("d/a", 1, {"n": 0})
        await database.write("things", [Write("d/a", stale, {"n": 9}), Write("d/b", None, None)])
        await database.write("things", [Write("d/a", stale, None), Write("d/b", stale._replace(key="d/b"), {})])
        with pytest.raises(RequestInvalid):
            await database.write("things", [Write("d/c", None, {}), Write("d/d", None, {"": 1})])
        assert await up_to_now(database, token) == []

    async def test_now_leaves_out_what_was_before(self, database: Database) -> None:
        made = await database.put("things", Write("d/a", None, {"n": 1}))
        token = await database.now()
        await database.put("things", Write("d/a", made, {"n": 2}))
        assert list(map(told, await up_to_now(database, token))) == [
            ("update", "things", "d/a", 2, {"n": 1}, {"n": 2})
        ]  # fmt: skip

    async def test_reading_goes_on_after_any_token(self, database: Database) -> None:
        token = await database.now()
        stands: dict[str, Stored | None] = dict.fromkeys(("d/a", "d/b", "d/c"))
        for number in range(30):
            key = ("d/a", "d/b", "d/c")[number % 3]
            body = None if number % 7 == 6 else {"n": number}
            stands[key] = await database.put("things", Write(key, stands[key], body))
        everything = await up_to_now(database, token)
        assert len(everything) == 30
        assert len({change.token for change in everything}) == 30
        for index in (0, 1, 6, 7, 13, 28, 29):
            assert await up_to_now(database, everything[index].token) == everything[index + 1 :]

    async def test_a_token_is_good_for_others_and_for_other_collections(self, database: Database) -> None:
        token = await database.now()
        await insert(database, "visits", {"d/a": {"n": 1}})
        await insert(database, "things", {"d/a": {"n": 2}})
        await insert(database, "visits", {"d/b": {"n": 3}})
        first, second = (await up_to_now(database, token))[:2]
        assert [change.after for change in await up_to_now(database, first.token, ["things"])] == [{"n": 2}]
        assert [change.after for change in await up_to_now(database, second.token)] == [{"n": 3}]

    async def test_quiet_moves_the_token_on(self, database: Database) -> None:
        async with aclosing(database.changes(await database.now(), ["things"])) as feed:
            quiet = await take(feed, 60)
            assert quiet == Change(quiet.token, quiet.at, "quiet")
            await insert(database, "visits", {"d/a": {"n": 1}})
            await insert(database, "things", {"d/a": {"n": 2}})
            assert (await next_change(feed)).after == {"n": 2}
            later = await take(feed, 60)
            assert later.kind == "quiet"
        await insert(database, "things", {"d/b": {"n": 3}})
        assert [change.after for change in await up_to_now(database, later.token)] == [{"n": 3}]
        assert [change.after for change in await up_to_now(database, quiet.token)] == [{"n": 1}, {"n": 2}, {"n": 3}]

    @pytest.mark.parametrize("token", ["", "x", "1.2.3", "00000000.0", ".", "\ud800", "9" * 5_000, "'; --"])
    async def test_a_token_of_another_store_is_lost(self, database: Database, token: str) -> None:
        with pytest.raises(ChangesLost) as caught:
            await take(database.changes(token), 60)
        assert caught.value.facts == {"token": token}
        assert caught.value.retry is False

    async def test_followers_do_not_disturb_each_other(self, database: Database) -> None:
        token = await database.now()

        async def follow(delay: float) -> list[Told]:
            seen: list[Told] = []
            async with aclosing(database.changes(token)) as feed:
                while len(seen) < 40:
                    seen.append(told(await next_change(feed)))
                    await asyncio.sleep(delay)
            return seen

        followers = [asyncio.create_task(follow(delay)) for delay in (0, 0, 0.002)]
        for number in range(40):
            await insert(database, "things", {f"d/{number}": {"n": number}})
        async with asyncio.timeout(300):
            first, second, slow = await asyncio.gather(*followers)
        assert [change[5]["n"] for change in first] == list(range(40))
        assert first == second == slow

    async def test_a_follower_that_leaves_leaves_nothing_behind(self, database: Database) -> None:
        token = await database.now()
        await insert(database, "things", {f"d/{number}": {} for number in range(20)})
        tasks = asyncio.all_tasks()
        half_way, waiting = database.changes(token), database.changes(await database.now())
        await collect(half_way, 3)
        reading = asyncio.ensure_future(take(waiting, 60))
        await asyncio.sleep(0.05)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        for feed in (half_way, waiting):
            await feed.aclose()
        if ending := asyncio.all_tasks() - tasks:
            await asyncio.wait(ending, timeout=60)
        assert asyncio.all_tasks() == tasks
        assert len(await up_to_now(database, token)) == 20

    async def test_per_document_the_changes_of_many_writers_are_in_order(self, database: Database) -> None:
        token = await database.now()

        async def write(name: str) -> None:
            for number in range(20):
                key = f"d/{number % 4}"
                while True:
                    stands = await database.get("things", key)
                    ((done, _),) = await database.write("things", [Write(key, stands, {"by": f"{name}{number}"})])
                    if done:
                        break

        await asyncio.gather(*map(write, "abcdef"))
        seen = await up_to_now(database, token)
        assert len(seen) == 120
        last: dict[str, Change] = {}
        for change in seen:
            before = last.get(change.key)
            assert change.revision == (before.revision if before is not None else 0) + 1
            assert change.before == (before.after if before is not None else None)
            last[change.key] = change
        assert {key: change.after for key, change in last.items()} == {
            document.key: document.body for document in await database.scan("things", "d/")
        }

    async def test_what_expires_is_removed_and_told(self, database: Database) -> None:
        far = 4_000_000_000_000
        async with aclosing(database.changes(await database.now(), ["visits"])) as feed:
            await insert(
                database,
                "visits",
                {
                    "d/over": {"guest": "ann", "until": 1_500_000_000_000},
                    "d/stays": {"guest": "ann", "until": far},
                    "d/for_ever": {"guest": "ann"},
                    "d/text": {"guest": "ann", "until": "1500000000000"},
                },
            )
            seen = {change[2]: change for change in await collect(feed, 4)}
            assert {change[0] for change in seen.values()} == {"insert"}
            assert await collect(feed, 1) == [("delete", "visits", "d/over", 0, seen["d/over"][5], None)]
        left = ["d/for_ever", "d/stays", "d/text"]
        assert [document.key for document in await database.scan("visits")] == left
        assert [document.key for document in await database.find("visits", "by_guest", ["ann"])] == left

    async def test_a_collection_that_is_watched_later_tells_from_then_on(self, database: Database) -> None:
        token = await database.now()
        await insert(database, "notes", {"d/a": {"n": 1}})
        notes = next(one for one in COLLECTIONS if one.name == "notes")
        await database.ensure([notes._replace(watched=True)])
        stands = await database.get("notes", "d/a")
        await database.put("notes", Write("d/a", stands, {"n": 2}))
        assert list(map(told, await up_to_now(database, token))) == [("update", "notes", "d/a", 2, {"n": 1}, {"n": 2})]


class ForgottenChangesContract:
    """For stores that can be made to forget. Needs ``database``, and ``forget``: drop all changes so far."""

    async def test_a_token_whose_future_is_forgotten_is_lost(
        self, database: Database, forget: Callable[[], Awaitable[None]]
    ) -> None:
        token = await database.now()
        await insert(database, "things", {f"d/{number}": {} for number in range(5)})
        last = (await up_to_now(database, token))[-1].token
        slow = database.changes(token)
        await collect(slow, 1)
        await forget()
        with pytest.raises(ChangesLost) as caught:
            await take(database.changes(last), 60)
        assert caught.value.facts == {"token": last}
        await slow.aclose()
        fresh = await database.now()
        await insert(database, "things", {"d/new": {}})
        assert [change.key for change in await up_to_now(database, fresh)] == ["d/new"]

    async def test_nothing_is_lost_where_nothing_was_missed(
        self, database: Database, forget: Callable[[], Awaitable[None]]
    ) -> None:
        await insert(database, "things", {"d/a": {}})
        token = await database.now()
        await forget()
        await insert(database, "things", {"d/b": {}})
        assert [change.key for change in await up_to_now(database, token)] == ["d/b"]


class SharedChangesContract:
    """For stores that several processes share. Needs ``database``, and ``neighbour`` on the same store."""

    async def test_what_the_neighbour_does_is_told(self, database: Database, neighbour: Database) -> None:
        async with aclosing(database.changes(await database.now())) as feed:
            assert (await take(feed, 60)).kind == "quiet"
            stands = await neighbour.put("things", Write("d/a", None, {"n": 1}))
            assert await collect(feed, 1) == [("insert", "things", "d/a", 1, None, {"n": 1})]
            stands = await database.put("things", Write("d/a", stands, {"n": 2}))
            await neighbour.put("things", Write("d/a", stands, {"n": 3}))
            assert [change[5] for change in await collect(feed, 2)] == [{"n": 2}, {"n": 3}]

    async def test_a_token_is_good_at_the_neighbour(self, database: Database, neighbour: Database) -> None:
        token = await database.now()
        await insert(database, "things", {"d/a": {"n": 1}, "d/b": {"n": 2}})
        here = await up_to_now(database, token)
        assert await up_to_now(neighbour, token) == here
        assert await up_to_now(neighbour, here[0].token) == here[1:]
