"""Playing the past: when each message comes, what is left out of silence, and how the present is reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import pytest

from iotsphere.entities.cursor import Cursor
from iotsphere.entities.errors import RequestInvalid
from iotsphere.entities.position import Gap, Partition
from iotsphere.entities.subscription import Start, Subscription
from iotsphere.entities.topic import parse_filter
from iotsphere.use_cases.playback import PlaybackTime, Timing
from iotsphere.use_cases.reader import Reader
from iotsphere.use_cases.subscribe import MessageSubscriptionUseCase
from tests.use_cases.stage import DOMAIN, EVERYTHING, RecordingSink, Stage, open_stage, soon

TEMPERATURE: Final = f"{DOMAIN}/devices/d1/telemetry/temperature"
PRESSURE: Final = f"{DOMAIN}/devices/d1/telemetry/pressure"
OTHER: Final = f"{DOMAIN}/devices/d4/telemetry/temperature"
SILENCE: Final = 10.0


class Theatre:
    """A stage whose time passes exactly as the playback waits: each wait turns both clocks on by what it asked for."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.began = stage.clock.now()
        self.sink = Watch(self)
        self.waits = 0
        self.freeze_at = -1  # time stands still once so many entries were delivered
        timing = Timing(lambda: stage.monotonic, self._sleep, SILENCE)
        self.subscribe = MessageSubscriptionUseCase(stage.log, stage.feed, stage.flow, timing)

    async def _sleep(self, seconds: float, woken: asyncio.Event) -> None:
        self.waits += 1
        if len(self.sink.entries) == self.freeze_at:
            await woken.wait()
            return
        self.stage.monotonic += seconds
        self.stage.clock.advance(round(seconds * 1000))
        await asyncio.sleep(0)

    async def say(self, *at: int, topic: str = TEMPERATURE) -> None:
        """Append a message at each of these times, in ms after the beginning."""
        for time in at:
            self.stage.clock.time = self.began + time
            await self.stage.say(self.stage.record(topic))

    async def open(self, start: Start, speed: float, policy: str = "complete", topics: str = EVERYTHING[0]) -> Reader:
        subscription = Subscription((parse_filter(topics),), start, policy, speed=speed)
        self.sink.opened_at = self.stage.monotonic
        self.sink.reader = reader = await self.subscribe(self.stage.principal, subscription, self.sink)
        assert reader.playback is not None
        reader.playback.told = self.sink.times.append
        return reader

    def time(self, after: int) -> Start:
        return Start("time", time=self.began + after)


class Watch(RecordingSink):
    """Notes at which second each entry came, and what time was told."""

    def __init__(self, theatre: Theatre) -> None:
        super().__init__()
        self._theatre = theatre
        self.opened_at = 0.0
        self.seconds: list[float] = []
        self.times: list[PlaybackTime] = []

    def deliver(self, reader: Reader, batch: object) -> bool:
        taken = super().deliver(reader, batch)  # type: ignore[arg-type]  # it is a Batch, which its base names
        if taken:
            now = round(self._theatre.stage.monotonic - self.opened_at, 2)
            self.seconds += [now] * len(self.batches[-1].entries)
        return taken

    def told(self) -> list[tuple[int, str, int]]:
        """Seconds after the beginning, state, and seconds that were left out."""
        return [((t.time - self._theatre.began) // 1000, t.state, t.skipped // 1000) for t in self.times]

    @property
    def is_live(self) -> bool:
        return bool(self.times) and self.times[-1].state == "live"


@pytest.fixture
async def theatre() -> AsyncIterator[Theatre]:
    async with open_stage(partitions=2) as stage:
        yield Theatre(stage)


async def test_messages_come_at_the_pace_at_which_they_came_once(theatre: Theatre) -> None:
    await theatre.say(1_000, 2_000, 5_000, 8_000)
    theatre.stage.clock.time = theatre.began + 60_000
    await theatre.open(theatre.time(0), speed=2)
    await soon(lambda: len(theatre.sink.entries) == 4, "all are played")
    assert theatre.sink.seconds == [0.5, 1.0, 2.5, 4.0]


async def test_order_across_partitions_is_that_of_acceptance(theatre: Theatre) -> None:
    for number in range(300):
        await theatre.say(number * 100, topic=(TEMPERATURE, OTHER, PRESSURE)[number % 3])
    theatre.stage.clock.time = theatre.began + 60_000
    await theatre.open(theatre.time(0), speed=1)
    await soon(lambda: len(theatre.sink.entries) == 300, "all are played")
    assert len({entry.record.partition for entry in theatre.sink.entries}) == 2
    times = [entry.appended_at for entry in theatre.sink.entries]
    assert times == sorted(times)


async def test_silence_is_cut_short_and_told(theatre: Theatre) -> None:
    await theatre.say(1_000, 3_601_000)
    theatre.stage.clock.time = theatre.began + 7_200_000
    await theatre.open(theatre.time(0), speed=1)
    await soon(lambda: theatre.sink.is_live, "the present is reached")
    assert theatre.sink.seconds == [1.0, 11.0]
    told = theatre.sink.told()
    assert told[0] == (0, "playing", 0)
    assert (3_601, "playing", 3_590) in told
    assert told[-1] == (7_200 + 21, "live", 0)
    assert [second for second, state, _ in told if state == "playing"] == sorted(second for second, *_ in told[:-1])


async def test_the_present_is_reached_without_a_gap_or_a_repetition(theatre: Theatre) -> None:
    await theatre.say(*range(0, 20_000, 100))
    reader = await theatre.open(theatre.time(0), speed=1_000)
    for _ in range(50):  # messages come while it plays
        await theatre.stage.say(theatre.stage.record(TEMPERATURE), theatre.stage.record(OTHER))
    await soon(lambda: theatre.sink.is_live, "the present is reached")
    await theatre.stage.say(theatre.stage.record(TEMPERATURE))
    await soon(lambda: reader.is_live, "it is live")
    said = [entry.record.message_id for entry in theatre.stage.entries()]
    assert sorted(theatre.sink.ids) == sorted(said)
    assert reader.playback is None


async def test_present_is_told_only_when_all_before_it_was_taken(theatre: Theatre) -> None:
    await theatre.say(*range(0, 5_000, 5))
    taken: list[int] = []
    reader = await theatre.open(theatre.time(0), speed=1_000)
    assert reader.playback is not None
    reader.playback.told = lambda time: taken.append(len(theatre.sink.entries)) if time.state == "live" else None
    await soon(lambda: taken, "the present is reached")
    assert taken == [1_000]


async def test_it_follows_at_its_distance_when_it_plays_no_faster_than_time(theatre: Theatre) -> None:
    await theatre.say(0)
    theatre.stage.clock.time = theatre.began + 5_000
    await theatre.open(theatre.time(0), speed=1)
    await soon(lambda: theatre.sink.entries, "the first one is played")
    appended = (await theatre.stage.log.append([theatre.stage.record(TEMPERATURE)])).positions
    said_at = theatre.stage.monotonic - theatre.sink.opened_at
    await soon(lambda: len(theatre.sink.entries) == 2, "the new one is played")
    assert theatre.sink.entries[1].position == appended[0]
    assert theatre.sink.seconds[1] == pytest.approx(said_at + 5, abs=0.1)


async def test_cursor_goes_on_where_the_rewind_was_lost(theatre: Theatre) -> None:
    await theatre.say(1_000, 2_000, 3_000, 4_000)
    theatre.stage.clock.time = theatre.began + 600_000
    reader = await theatre.open(theatre.time(0), speed=1)
    await soon(lambda: len(theatre.sink.entries) == 2, "half is played")
    cursor = Cursor("", dict(reader.positions() or {}))
    reader.close()
    first = theatre.sink
    theatre.sink = Watch(theatre)
    await theatre.open(Start("cursor", cursor=cursor), speed=1)
    await soon(lambda: len(theatre.sink.entries) == 2, "the rest is played")
    assert first.ids + theatre.sink.ids == [entry.record.message_id for entry in theatre.stage.entries()]
    assert theatre.sink.told()[0] == (3, "playing", 0)


async def test_it_can_stand_still_and_go_on_at_another_speed(theatre: Theatre) -> None:
    await theatre.say(1_000, 2_000, 12_000)
    theatre.stage.clock.time = theatre.began + 600_000
    theatre.freeze_at = 2
    reader = await theatre.open(theatre.time(0), speed=1)
    await soon(lambda: len(theatre.sink.entries) == 2, "two are played")
    assert reader.playback is not None
    reader.playback.play(0)
    assert theatre.sink.told()[-1] == (2, "paused", 0)
    for _ in range(50):
        await asyncio.sleep(0)
    waits = theatre.waits
    theatre.stage.monotonic += 1_000
    for _ in range(50):
        await asyncio.sleep(0)
    assert (len(theatre.sink.entries), theatre.waits) == (2, waits)
    theatre.freeze_at = -1
    reader.playback.play(10)
    assert theatre.sink.told()[-1] == (2, "playing", 0)
    await soon(lambda: len(theatre.sink.entries) == 3, "the third one is played")
    assert theatre.sink.seconds[2] == pytest.approx(2 + 1_000 + 1, abs=0.1)


async def test_it_stands_still_at_once_in_the_midst_of_many_messages(theatre: Theatre) -> None:
    await theatre.say(*([0] * 2_000), 60_000)
    theatre.stage.clock.time = theatre.began + 600_000
    reader = await theatre.open(theatre.time(0), speed=1_000)
    await soon(lambda: theatre.sink.entries, "the first ones are played")
    assert reader.playback is not None
    reader.playback.play(0)
    played = len(theatre.sink.entries)
    for _ in range(50):
        await asyncio.sleep(0)
    assert played < len(theatre.sink.entries) + 1 <= played + 201
    reader.playback.play(1_000)
    await soon(lambda: len(theatre.sink.entries) == 2_001, "the rest is played")


async def test_slow_client_slows_the_clock_and_misses_nothing(theatre: Theatre) -> None:
    await theatre.say(1_000, 2_000, 3_000)
    theatre.stage.clock.time = theatre.began + 600_000
    reader = await theatre.open(theatre.time(0), speed=1)
    theatre.sink.room = 1
    await soon(lambda: len(theatre.sink.entries) == 1, "one is played")
    for _ in range(100):
        await asyncio.sleep(0)
    assert reader.positions() == theatre.sink.cursors[-1]
    theatre.stage.monotonic += 100
    theatre.sink.make_room()
    await soon(lambda: len(theatre.sink.entries) == 3, "the rest is played")
    assert theatre.sink.seconds[1:] == [pytest.approx(102, abs=0.1), pytest.approx(103, abs=0.1)]


async def test_latest_sends_the_newest_of_each_topic_of_a_step(theatre: Theatre) -> None:
    for number in range(1_000):
        await theatre.say(number * 10, topic=(TEMPERATURE, PRESSURE)[number % 2])
    theatre.stage.clock.time = theatre.began + 600_000
    reader = await theatre.open(theatre.time(0), speed=100, policy="latest")
    await soon(lambda: theatre.sink.is_live, "the present is reached")
    played = theatre.sink.entries
    assert len(played) + reader.superseded == 1_000
    assert len(played) < 100
    assert {entry.record.message_id for entry in played[-2:]} == {"id-999", "id-1000"}
    assert theatre.stage.flow.superseded == reader.superseded


async def test_what_retention_took_is_told(theatre: Theatre) -> None:
    await theatre.say(1_000, 2_000, 3_000, 4_000)
    theatre.stage.clock.time = theatre.began + 600_000
    (partition,) = {entry.record.partition for entry in theatre.stage.entries()}
    reader = await theatre.open(theatre.time(0), speed=0)
    await soon(lambda: theatre.sink.times, "it stands still at the beginning")
    shelf = theatre.stage.log.shelf(partition)
    shelf.trim(2)
    assert reader.playback is not None
    reader.playback.play(1)
    await soon(lambda: len(theatre.sink.entries) == 2, "what is left is played")
    assert theatre.sink.gaps == [Gap(Partition(DOMAIN, "telemetry", partition.number), 1, 2, "retention")]


async def test_nothing_ahead_is_the_present(theatre: Theatre) -> None:
    await theatre.say(1_000)
    theatre.stage.clock.time = theatre.began + 600_000
    await theatre.open(Start("earliest"), speed=1, topics=f"{DOMAIN}/system/#")
    await soon(lambda: theatre.sink.is_live, "there is nothing to play")
    assert theatre.sink.entries == []


@pytest.mark.parametrize("start", ["live", "latest"])
async def test_only_the_past_can_be_played(theatre: Theatre, start: str) -> None:
    with pytest.raises(RequestInvalid, match="begin in the past"):
        await theatre.subscribe(
            theatre.stage.principal, Subscription((parse_filter(EVERYTHING[0]),), Start(start), speed=1), theatre.sink
        )
