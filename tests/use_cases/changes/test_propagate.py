"""Change propagation on drivers in memory: told once, in order, across crashes, losses and lookups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import orjson
import pytest

from iotsphere.adapters.message_id import derived, is_derived
from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.errors import ChangesLost, Unavailable
from iotsphere.entities.message import Record
from iotsphere.entities.position import Position
from iotsphere.use_cases.changes.hold import HEARTBEATS
from iotsphere.use_cases.changes.propagate import ChangeStores, PropagateChanges
from iotsphere.use_cases.changes.told import digest_of
from iotsphere.use_cases.ports.database import Change, Collection, Stored, Write
from iotsphere.use_cases.ports.message_log import Appended
from iotsphere.use_cases.publish import MessagePublishUseCase
from tests.use_cases.stage import DOMAIN, Stage, soon

THINGS = Collection("things", watched=True)
KEY = f"{DOMAIN}/t1"


class Teller:
    """One message per change: which version of which thing."""

    def __init__(self, log: MemoryLog) -> None:
        self._partition = log.partitions(DOMAIN, "shadow")[0]
        self._system = log.partitions(DOMAIN, "system")[0]
        self.losses: list[tuple[int, int, int]] = []
        self.made = 0

    channels = frozenset(("shadow", "system"))

    def may_be_own(self, message_id: str) -> bool:
        return is_derived(message_id)

    def records(self, change: Change) -> Sequence[Record]:
        facts = {"key": change.key, "n": None if change.after is None else change.after["n"]}
        message_id = derived(sha256(change.token.encode()).digest()[:16])
        topic = f"{DOMAIN}/devices/t1/shadow/document"
        self.made += 1
        body = orjson.dumps({"metadata": {"timestamp": self.made}, "payload": facts})
        return [Record(self._partition, topic, message_id, body, 1, retain=True)]

    def lost(self, since: int, until: int, told: int) -> Record:
        self.losses.append((since, until, told))
        return Record(self._system, f"{DOMAIN}/system/alerts", derived(b"%16d" % since), b"{}", 1)


class Lookups(MemoryDatabase):
    """A store that keeps no states around its changes while ``bare``, and forgets its history on demand."""

    bare = False
    lost = False

    async def changes(self, after: str, collections: Sequence[str] = ()) -> AsyncGenerator[Change, None]:
        if self.lost:
            self.lost = False
            raise ChangesLost("the history is gone")
        async for change in super().changes(after, collections):
            if self.bare and change.kind in ("insert", "update"):
                yield change._replace(before=None, after=None, whole=False, revision=0)
            else:
                yield change


class Cut(MessagePublishUseCase):
    """Loses the log right before, or right after, it has ``reached`` it."""

    def __init__(self, log: MemoryLog, reached: bool) -> None:
        super().__init__(log)
        self._reached = reached

    async def __call__(self, records: Sequence[Record]) -> Appended:
        if self._reached:
            await super().__call__(records)
        raise Unavailable("the log is gone")


class Scene:
    def __init__(self, stage: Stage, database: Lookups) -> None:
        self.stage = stage
        self.database = database
        self.teller = Teller(stage.log)
        self.kept: list[Change] = []

    def listener(self, *further: Collection, publish: MessagePublishUseCase | None = None) -> PropagateChanges:
        stores = ChangeStores(self.database, self.stage.log, self.stage.documents, [THINGS], further)
        return PropagateChanges(stores, publish or self.stage.publish, self.teller, self._keep, self.stage.clock)

    async def _keep(self, changes: Sequence[Change]) -> None:
        self.kept += changes

    async def put(self, number: int, key: str = KEY) -> Stored:
        before = await self.database.get("things", key)
        stored = await self.database.put("things", Write(key, before, {"n": number}))
        assert stored is not None
        return stored

    async def told(self) -> list[int | None]:
        partition = self.stage.log.partitions(DOMAIN, "shadow")[0]
        part = await self.stage.log.read(partition, Position(0, 0), limit=10_000)
        return [orjson.loads(entry.record.body)["payload"]["n"] for entry in part.entries]

    async def until(self, expected: Sequence[int | None]) -> None:
        deadline = asyncio.get_running_loop().time() + 60
        while (told := await self.told()) != expected:
            assert asyncio.get_running_loop().time() < deadline, f"{told} instead of {expected}"
            await asyncio.sleep(0.005)

    async def noted(self, *keys: str, state: int | None = None) -> None:
        """Wait until it is written down that these were told, with what state if one is given, and how far that was."""
        digest = None if state is None else (digest_of({"n": state}) or "").encode()
        deadline = asyncio.get_running_loop().time() + 60
        while True:
            notes = [await self.stage.documents.get("changes", f"told/things/{key}") for key in keys]
            place = await self.stage.documents.get("changes", "listener")
            if place and all(note and digest in (None, note.value) for note in notes):
                return
            assert asyncio.get_running_loop().time() < deadline, (place, notes)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(listener: PropagateChanges) -> AsyncIterator[PropagateChanges]:
    task = asyncio.get_running_loop().create_task(listener.run())
    try:
        yield listener
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.fixture
async def scene() -> Scene:
    clock = ManualClock()
    stage = Stage(clock)
    await stage.make()
    database = Lookups(clock, quiet=0.05)
    await database.ensure([THINGS, HEARTBEATS])
    return Scene(stage, database)


async def test_each_change_is_told_once_and_in_order(scene: Scene) -> None:
    async with running(scene.listener()) as listener:
        await soon(lambda: listener._heard_at, "listening")
        for number in range(50):
            await scene.put(number)
        await scene.database.put("things", Write(KEY, await scene.database.get("things", KEY), None))
        await scene.until([*range(50), None])
        await soon(lambda: len(scene.kept) == 51, "what follows")
        assert listener.told == 51
        assert [change.kind for change in scene.kept] == ["insert", *["update"] * 49, "delete"]


async def test_how_far_it_is_behind_is_known_and_passes(scene: Scene) -> None:
    async with running(scene.listener()) as listener:
        await soon(lambda: listener._heard_at, "listening")
        await scene.put(1)
        await scene.noted(KEY)
    await scene.put(2)
    assert isinstance(scene.stage.clock, ManualClock)
    scene.stage.clock.advance(7_000)  # nobody listens
    cut_off = scene.listener(publish=Cut(scene.stage.log, reached=False))
    with pytest.raises(Unavailable):
        await cut_off.run()
    assert cut_off.lag == 7_000  # also while nothing can be told
    lags: list[tuple[Any, int]] = []

    async def keep(changes: Sequence[Change]) -> None:
        lags.extend((change.after, late.lag) for change in changes)

    stores = ChangeStores(scene.database, scene.stage.log, scene.stage.documents, [THINGS], ())
    late = PropagateChanges(stores, scene.stage.publish, scene.teller, keep, scene.stage.clock)
    async with running(late):
        await scene.until([1, 2])
        await soon(lambda: lags, "what follows")
        assert lags[-1] == ({"n": 2}, 7_000)
        await soon(lambda: late.lag == 0, "the feed to be quiet")


async def test_what_was_there_before_the_first_start_is_told_as_it_is(scene: Scene) -> None:
    await scene.put(1)
    await scene.put(2)
    async with running(scene.listener()):
        await scene.until([2])
        await scene.put(3)
        await scene.until([2, 3])


async def test_what_was_in_a_further_collection_before_it_was_named_is_not_told(scene: Scene) -> None:
    further = Collection("orders", watched=True)
    await scene.database.ensure([Collection("orders")])
    await scene.put(0)
    async with running(scene.listener()):
        await scene.until([0])
        await scene.noted(KEY)
    old = await scene.database.put("orders", Write(f"{DOMAIN}/o1", None, {"n": 1}))
    await scene.database.put("orders", Write(f"{DOMAIN}/o2", None, {"n": 2}))
    await scene.database.ensure([further])
    second = scene.listener(further)
    async with running(second):
        deadline = asyncio.get_running_loop().time() + 60
        while not await scene.stage.documents.get("changes", f"told/orders/{DOMAIN}/o2"):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.005)
        await scene.database.put("orders", Write(f"{DOMAIN}/o1", old, {"n": 3}))
        await scene.until([0, 3])
    scene.database.lost = True
    stored = await scene.database.get("orders", f"{DOMAIN}/o2")
    await scene.database.put("orders", Write(f"{DOMAIN}/o2", stored, {"n": 4}))
    async with running(scene.listener(further)):
        await scene.until([0, 3, 4])


async def test_a_restart_goes_on_where_the_last_one_stopped(scene: Scene) -> None:
    async with running(scene.listener()):
        await scene.put(1)
        await scene.until([1])
        await scene.noted(KEY)
    await scene.put(2)
    await scene.put(3)
    async with running(scene.listener()):
        await scene.until([1, 2, 3])


async def test_what_was_appended_and_not_saved_is_not_told_again_however_late(scene: Scene) -> None:
    async with running(scene.listener()):
        await scene.put(1)
        await scene.until([1])
        await scene.noted(KEY)
        place = await scene.stage.documents.get("changes", "listener")
        assert place is not None
        for number in range(2, 6):
            await scene.put(number)
        await scene.until([1, 2, 3, 4, 5])
    await scene.stage.documents.put("changes", "listener", place.value)  # the crash lost the later saves
    scene.stage.clock.advance(24 * 3600 * 1000)  # and the log's window for duplicates has passed
    second = scene.listener()
    async with running(second):
        await scene.put(6)
        await scene.until([1, 2, 3, 4, 5, 6])
        await scene.noted(KEY, state=6)
        assert second.told == 1
        assert second.repeated >= 4


@pytest.mark.parametrize("reached", [False, True])
async def test_what_a_crash_interrupts_is_told_once_by_the_next_process(scene: Scene, reached: bool) -> None:
    async with running(scene.listener()):
        await scene.put(1)
        await scene.noted(KEY)
    cut = scene.listener(publish=Cut(scene.stage.log, reached))
    for number in (2, 3):
        await scene.put(number)
    with pytest.raises(Unavailable):
        await cut.run()
    assert await scene.told() == ([1, 2, 3] if reached else [1])
    scene.stage.clock.advance(24 * 3600 * 1000)  # the log's window for duplicates has passed
    async with running(scene.listener()):
        await scene.put(4)
        await scene.until([1, 2, 3, 4])


async def test_what_goes_after_a_crash_in_the_first_start_is_told_as_gone(scene: Scene) -> None:
    stored = await scene.put(1)
    with pytest.raises(Unavailable):
        await scene.listener(publish=Cut(scene.stage.log, reached=True)).run()
    assert await scene.told() == [1]
    assert await scene.database.put("things", Write(KEY, stored, None)) is None
    async with running(scene.listener()):
        await scene.until([1, None])
        await scene.put(2, key=f"{DOMAIN}/t2")
        await scene.until([1, None, 2])


async def test_a_restart_reads_no_more_of_the_log_than_it_must(scene: Scene) -> None:
    async with running(scene.listener()):
        await scene.put(1)
        await scene.until([1])
        await scene.noted(KEY)
    topic = f"{DOMAIN}/devices/t1/shadow/reported"
    await scene.stage.log.append([scene.stage.record(topic) for _ in range(50)])
    scene.stage.clock.advance(10_000)
    async with running(scene.listener()):
        await scene.put(2)
        await scene.noted(KEY)
        deadline = asyncio.get_running_loop().time() + 60
        ends = [[*p, *(await scene.stage.log.bounds(p)).last] for p in scene.stage.log.partitions(DOMAIN, "shadow")]
        while True:
            place = await scene.stage.documents.get("changes", "listener")
            assert place is not None
            positions = orjson.loads(place.value)["positions"]
            if all(end in positions for end in ends):
                break
            assert asyncio.get_running_loop().time() < deadline, (ends, positions)
            await asyncio.sleep(0.005)
            ends = [[*p, *(await scene.stage.log.bounds(p)).last] for p in scene.stage.log.partitions(DOMAIN, "shadow")]
    assert {channel for _, channel, *_ in positions} == {"shadow", "system"}


async def test_a_lost_history_ends_in_the_present_state_and_one_announced_gap(scene: Scene) -> None:
    async with running(scene.listener()):
        await scene.put(1)
        await scene.put(1, f"{DOMAIN}/t2")
        await scene.put(1, f"{DOMAIN}/t3")
        await scene.until([1, 1, 1])
        await scene.noted(KEY, f"{DOMAIN}/t2", f"{DOMAIN}/t3")
    for number in range(2, 9):
        await scene.put(number)
    await scene.database.put("things", Write(f"{DOMAIN}/t2", await scene.database.get("things", f"{DOMAIN}/t2"), None))
    scene.database.lost = True
    async with running(scene.listener()) as listener:
        await scene.until([1, 1, 1, 8, None])
        await soon(lambda: scene.teller.losses, "the announcement")
        await scene.put(9)
        await scene.until([1, 1, 1, 8, None, 9])
        assert listener.gaps == 1
    assert [told for _, _, told in scene.teller.losses] == [2]


@pytest.mark.parametrize("later", [1, 2])
async def test_a_state_that_was_told_and_not_noted_is_not_told_again_after_a_loss(scene: Scene, later: int) -> None:
    states = [0, 1, 0][: later + 1]
    async with running(scene.listener()):
        await scene.put(0)
        await scene.until([0])
        await scene.noted(KEY)
        note = await scene.stage.documents.get("changes", f"told/things/{KEY}")
        place = await scene.stage.documents.get("changes", "listener")
        assert note is not None
        assert place is not None
        for number in range(1, later + 1):  # back and forth: only what was told last counts
            await scene.put(number % 2)
        await scene.until(states)
    await scene.stage.documents.put_many("changes", {f"told/things/{KEY}": note.value, "listener": place.value})
    scene.database.lost = True
    scene.kept.clear()
    async with running(scene.listener()) as listener:
        await soon(lambda: scene.teller.losses, "the announcement")
        assert await scene.told() == states
        assert [told for _, _, told in scene.teller.losses] == [0]
        assert [change.after for change in scene.kept] == ([{"n": 1}] if later == 1 else [])
        await scene.put(5)
        await scene.until([*states, 5])
        await soon(lambda: listener.told == 1, "the count of the one that was told")


async def test_what_was_told_and_has_changed_back_meanwhile_is_told_after_a_loss(scene: Scene) -> None:
    async with running(scene.listener()):
        await scene.put(0)
        await scene.until([0])
        await scene.noted(KEY)
        place = await scene.stage.documents.get("changes", "listener")
        assert place is not None
        await scene.put(1)
        await scene.until([0, 1])
        await scene.put(3, f"{DOMAIN}/t2")
        await scene.noted(f"{DOMAIN}/t2")  # and so is what was told before
    await scene.stage.documents.put_many("changes", {"listener": place.value})
    await scene.put(0)
    scene.database.lost = True
    async with running(scene.listener()):
        await scene.until([0, 1, 3, 0])
        await soon(lambda: scene.teller.losses, "the announcement")
    assert [told for _, _, told in scene.teller.losses] == [1]


async def test_b20_states_that_have_to_be_looked_up_never_go_backwards(scene: Scene) -> None:
    async with running(scene.listener()):
        await scene.put(0)
        await scene.until([0])
        await scene.noted(KEY)
    scene.database.bare = True
    for number in range(1, 5):
        await scene.put(number)
    async with running(scene.listener()):
        await scene.until([0, 4])
        await scene.noted(KEY, state=4)
        scene.database.bare = False
    await scene.put(5)
    await scene.database.put("things", Write(KEY, await scene.database.get("things", KEY), None))
    async with running(scene.listener()):
        await scene.until([0, 4, 5, None])


async def test_a_document_that_went_before_it_could_be_looked_up_is_told_as_gone(scene: Scene) -> None:
    scene.database.bare = True
    async with running(scene.listener()):
        stored = await scene.put(1)
        await scene.database.put("things", Write(KEY, stored, None))
        deadline = asyncio.get_running_loop().time() + 60
        while not (told := await scene.told()) or told[-1] is not None:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.005)


async def test_only_one_process_listens_and_the_next_takes_over(scene: Scene) -> None:
    first = scene.listener()
    second = scene.listener()
    async with running(second):
        await soon(lambda: second._heard_at, "the first one to listen")
        async with running(first):
            await scene.put(1)
            await scene.until([1])
            await scene.noted(KEY)
            assert first._heard_at is None
            await first.ready()
    async with running(first):
        await scene.put(2)
        await scene.until([1, 2])
        await scene.noted(KEY, state=2)
    assert (first.told, second.told) == (1, 1)


async def test_silence_of_the_feed_makes_the_listener_unready(scene: Scene) -> None:
    listener = scene.listener()
    async with running(listener):
        await soon(lambda: listener._heard_at, "listening")
        await listener.ready()
        listener._heard_at = asyncio.get_running_loop().time() - 31
        with pytest.raises(Unavailable, match="silent"):
            await listener.ready()
