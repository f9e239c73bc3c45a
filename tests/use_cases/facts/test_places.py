"""What the database knows of the log: facts are folded in again beside an older copy, and an older log is noticed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from iotsphere.drivers.clock import ManualClock
from iotsphere.drivers.memory.database import MemoryDatabase
from iotsphere.drivers.memory.log import MemoryLog
from iotsphere.entities.channel import ChannelSpec
from iotsphere.entities.errors import DatabaseUnavailable, IotSphereError, MessageRefused
from iotsphere.entities.message import Entry, Record
from iotsphere.entities.position import Partition, Position
from iotsphere.use_cases.facts import places as module
from iotsphere.use_cases.facts.places import PLACES, StatePlaces
from iotsphere.use_cases.facts.tools import Claim
from iotsphere.use_cases.ports.database import Write

P0 = Partition("iotsphere", "shadow", 0)
CLAIM = Claim("iotsphere/shadows", P0, 1, lambda: None)
KEY = "iotsphere/shadows/shadow/0"


class Handler:
    """Notes what it is given; chokes on one, refuses another, is away for a while."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.away = False

    def handles(self, topic: str) -> bool:
        return topic.endswith("/reported")

    async def __call__(self, entries: Sequence[Entry]) -> list[str | IotSphereError]:
        if self.away:
            raise DatabaseUnavailable("it is away")
        bodies = [entry.record.body.decode() for entry in entries]
        if "poison" in bodies:
            raise ValueError("poison")
        self.seen += bodies
        return [MessageRefused("no", code="poison") if body == "refused" else "applied" for body in bodies]


class House:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock)
        self.database = MemoryDatabase(self.clock)
        self.handler = Handler()
        self.behind: list[tuple[Partition, Position]] = []
        self.places = StatePlaces(self.database, self.log, self._behind, self.clock)

    async def _behind(self, partition: Partition, last: Position) -> None:
        self.behind.append((partition, last))

    async def append(self, *bodies: str, topic: str = "shadow/reported", expires_at: int = 0) -> Position:
        name = f"iotsphere/devices/d1/{topic}"
        positions = [
            (await self.log.append([Record(P0, name, f"m-{name}-{body}", body.encode(), 1, expires_at)])).positions[0]
            for body in bodies
        ]
        return positions[-1]

    async def catch_up(self, committed: Position) -> None:
        await self.places.catch_up(CLAIM, committed, self.handler)

    async def noted(self) -> tuple[int, int]:
        stored = await self.database.get(PLACES.name, KEY)
        assert stored is not None
        return stored.body["epoch"], stored.body["offset"]

    async def put_back(self, place: Position) -> None:
        """Have the database of another time."""
        stored = await self.database.get(PLACES.name, KEY)
        await self.database.put(PLACES.name, Write(KEY, stored, {"epoch": place.epoch, "offset": place.offset}))


@pytest.fixture
async def house() -> House:
    made = House()
    await made.log.ensure("iotsphere", {"shadow": ChannelSpec(partitions=1)})
    await made.database.ensure([PLACES])
    return made


async def test_a_database_that_was_never_asked_is_believed(house: House) -> None:
    place = await house.append("1", "2")
    await house.catch_up(place)
    assert (house.handler.seen, house.behind) == ([], [])
    assert await house.noted() == tuple(place)


async def test_what_was_folded_since_the_copy_is_folded_again_and_nothing_beyond(house: House) -> None:
    first = await house.append("1")
    await house.append("2", "refused", "poison", "3")
    await house.append("other", topic="shadow/document")
    await house.append("over", expires_at=house.clock.now() + 1)
    committed = await house.append("4")
    house.clock.advance(2)
    await house.append("5")
    await house.put_back(first)
    await house.catch_up(committed)
    assert house.handler.seen == ["2", "refused", "3", "4"]
    assert house.behind == []
    assert await house.noted() == tuple(committed)


async def test_an_old_log_is_noticed_once(house: House) -> None:
    last = await house.append("1", "2")
    await house.put_back(Position(last.epoch, last.offset + 5))
    await house.catch_up(last)
    await house.catch_up(last)
    assert (house.behind, house.handler.seen) == ([(P0, last)], [])
    await house.put_back(Position(last.epoch + 1, 1))
    await house.catch_up(last)
    assert len(house.behind) == 2


async def test_a_place_that_somebody_has_overwritten_is_none(house: House) -> None:
    last = await house.append("1", "2")
    await house.database.put(PLACES.name, Write(KEY, None, {"epoch": "x", "offset": -1}))
    await house.catch_up(last)
    assert (house.handler.seen, house.behind, await house.noted()) == ([], [], tuple(last))


async def test_a_database_that_is_away_is_waited_for(house: House) -> None:
    first, last = await house.append("1"), await house.append("2")
    await house.put_back(first)
    house.handler.away = True
    with pytest.raises(DatabaseUnavailable):
        await house.catch_up(last)
    assert await house.noted() == tuple(first)
    house.handler.away = False
    await house.catch_up(last)
    assert (house.handler.seen, await house.noted()) == (["2"], tuple(last))


async def test_places_are_noted_now_and_then(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTE_EVERY_S", 3_600.0)
    one, two = await house.append("1"), await house.append("2")
    await house.places.passed(CLAIM, one)
    await house.places.passed(CLAIM, two)
    assert await house.noted() == tuple(one)
    monkeypatch.setattr(module, "NOTE_EVERY_S", 0.0)
    await house.places.passed(CLAIM, two)
    assert await house.noted() == tuple(two)
