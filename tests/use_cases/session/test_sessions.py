from __future__ import annotations

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.documents import MemoryDocuments
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.channel import DEFAULT_CHANNELS
from iotsphere.entities.errors import Conflict
from iotsphere.entities.message import Record
from iotsphere.entities.position import Partition, Position
from iotsphere.entities.principal import device
from iotsphere.entities.topic import parse_filter
from iotsphere.use_cases.ports.message_log import Tally
from iotsphere.use_cases.session.sessions import Sessions
from iotsphere.use_cases.session.state import Kept, UnderWay, Wanted

WHO = device("iotsphere", "d1")
READER = "iotsphere/mqtt/device/d1/c1"
T = "iotsphere/devices/d1/telemetry"
FILTER = Wanted(parse_filter(T), 1, True, True, 7, {Partition("iotsphere", "telemetry", 0): Position(1, 2)})


class Stage:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock)
        self.documents = MemoryDocuments()
        self.sessions = self.node("a")

    def node(self, name: str) -> Sessions:
        return Sessions(self.documents, self.log, self.clock, name)

    async def fill(self, count: int) -> Partition:
        partition = self.log.partitions("iotsphere", "telemetry")[0]
        await self.log.append([Record(partition, T, f"m{i}", b"{}", 0) for i in range(count)])
        return partition

    async def place(self, partition: Partition) -> Position:
        bounds = await self.log.bounds(partition)
        return bounds.last


@pytest.fixture
async def stage() -> Stage:
    made = Stage()
    await made.log.ensure("iotsphere", DEFAULT_CHANNELS)
    return made


async def test_a_session_is_found_again_with_its_filters_and_its_place(stage: Stage) -> None:
    partition = await stage.fill(5)
    hold, kept = await stage.sessions.open(WHO, "c1", False, 60)
    assert kept is None
    start = await stage.place(partition)
    await stage.sessions.subscribe(hold, [FILTER], {partition: start})
    await stage.fill(0)
    under_way = (UnderWay(9, partition, start),)
    await stage.sessions.leave(hold, Kept((FILTER,), {partition: start}, {partition: start}, under_way))
    _, kept = await stage.sessions.open(WHO, "c1", False, 60)
    assert kept == Kept((FILTER,), {partition: start}, {partition: start}, under_way)


async def test_its_place_is_what_the_log_has_committed_and_every_message_is_tallied(stage: Stage) -> None:
    partition = await stage.fill(1)
    start = await stage.place(partition)
    hold, _ = await stage.sessions.open(WHO, "c1", False, 60)
    await stage.sessions.subscribe(hold, [FILTER], {partition: start})
    await stage.log.append([Record(partition, T, f"n{i}", b"{}", 0) for i in range(6)])
    end = await stage.place(partition)
    await stage.sessions.commit(hold, {partition: end}, {partition: Tally(expired=1, lost=2)})
    await stage.sessions.commit(hold, {partition: start}, {partition: Tally(lost=5)})
    progress = (await stage.log.committed(READER))[partition]
    assert progress.tally == Tally(applied=3, expired=1, lost=2)
    assert progress.position == end
    await stage.sessions.leave(hold, Kept((FILTER,)))
    _, kept = await stage.sessions.open(WHO, "c1", False, 60)
    assert kept is not None
    assert kept.positions == {partition: end}


async def test_without_an_expiry_nothing_is_stored(stage: Stage) -> None:
    hold, kept = await stage.sessions.open(WHO, "c1", False, 0)
    await stage.sessions.subscribe(hold, [FILTER], {stage.log.partitions("iotsphere", "telemetry")[0]: Position(1, 0)})
    await stage.sessions.leave(hold, Kept((FILTER,)))
    assert kept is None
    assert await stage.log.readers("iotsphere") == []
    assert await stage.documents.scan("sessions") == []


async def test_clients_of_different_identities_share_nothing(stage: Stage) -> None:
    for name in ("d1", "d2"):
        await stage.sessions.open(device("iotsphere", name), "c1", False, 60)
    keys = [document.key for document in await stage.documents.scan("sessions")]
    assert keys == ["iotsphere/device/d1/c1", "iotsphere/device/d2/c1"]


async def test_a_session_expires_after_its_goodbye_and_not_before(stage: Stage) -> None:
    partition = await stage.fill(1)
    hold, _ = await stage.sessions.open(WHO, "c1", False, 60)
    await stage.sessions.subscribe(hold, [FILTER], {partition: await stage.place(partition)})
    stage.clock.advance(3_600_000)
    assert await stage.sessions.expire() == 0
    await stage.sessions.leave(hold, Kept((FILTER,)))
    stage.clock.advance(59_999)
    assert await stage.sessions.expire() == 0
    assert await stage.log.readers("iotsphere") == [READER]
    stage.clock.advance(1)
    assert await stage.sessions.expire() == 1
    assert await stage.log.readers("iotsphere") == []
    assert await stage.documents.scan("sessions") == []


async def test_an_expired_session_is_not_resumed_even_before_the_sweep(stage: Stage) -> None:
    hold, _ = await stage.sessions.open(WHO, "c1", False, 60)
    await stage.sessions.leave(hold, Kept((FILTER,)))
    stage.clock.advance(60_000)
    _, kept = await stage.sessions.open(WHO, "c1", False, 60)
    assert kept is None


async def test_who_was_taken_over_can_no_longer_write(stage: Stage) -> None:
    old, _ = await stage.sessions.open(WHO, "c1", False, 60)
    new, kept = await stage.node("b").open(WHO, "c1", False, 60)
    assert kept is not None
    with pytest.raises(Conflict):
        await stage.sessions.leave(old, Kept())
    with pytest.raises(Conflict):
        await stage.sessions.subscribe(old, [FILTER], {})
    await stage.node("b").subscribe(new, [FILTER], {})


async def test_after_a_crash_only_the_sessions_of_the_same_node_begin_to_expire(stage: Stage) -> None:
    for node, client in (("a", "c1"), ("b", "c2")):
        await stage.node(node).open(WHO, client, False, 60)
    assert await stage.node("a").recover() == 1
    assert await stage.node("a").recover() == 0
    stage.clock.advance(60_000)
    assert await stage.sessions.expire() == 1
    (left,) = await stage.documents.scan("sessions")
    assert left.key.endswith("/c2")


async def test_readers_that_a_crash_left_without_a_session_are_forgotten(stage: Stage) -> None:
    partition = stage.log.partitions("iotsphere", "telemetry")[0]
    for reader in (READER, "iotsphere/last-values", "iotsphere/mqtt"):
        await stage.log.register(reader, {partition: Position(0, 0)})
    await stage.sessions.open(WHO, "c2", False, 60)
    await stage.log.register("iotsphere/mqtt/device/d1/c2", {partition: Position(0, 0)})
    await stage.sessions.recover()
    assert await stage.log.readers("iotsphere") == [
        "iotsphere/last-values",
        "iotsphere/mqtt",
        "iotsphere/mqtt/device/d1/c2",
    ]


async def test_partitions_that_no_filter_selects_are_let_go_and_the_others_keep_their_place(stage: Stage) -> None:
    one, two = stage.log.partitions("iotsphere", "telemetry")[:2]
    hold, _ = await stage.sessions.open(WHO, "c1", False, 60)
    zero = (await stage.log.bounds(one)).last
    await stage.sessions.subscribe(hold, [FILTER], {one: zero, two: (await stage.log.bounds(two)).last})
    await stage.fill(3)
    end = await stage.place(one)
    await stage.sessions.commit(hold, {one: end}, {})
    await stage.sessions.subscribe(hold, [FILTER], {one: end})
    assert {p: part.position for p, part in (await stage.log.committed(READER)).items()} == {one: end}
    await stage.sessions.subscribe(hold, [], {})
    assert await stage.log.readers("iotsphere") == []
