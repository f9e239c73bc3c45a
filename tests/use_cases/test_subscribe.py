"""Where subscriptions begin, what they are told is missing, and how they end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest

from iotsphere.entities.cursor import Cursor
from iotsphere.entities.errors import Forbidden, LogUnavailable
from iotsphere.entities.position import Gap, Partition, Position
from iotsphere.entities.principal import device
from iotsphere.entities.subscription import Start, Subscription
from iotsphere.entities.topic import parse_filter
from tests.use_cases.stage import DOMAIN, RecordingSink, Stage, open_stage, soon

TOPIC = f"{DOMAIN}/devices/d1/telemetry/temperature"
OTHER = f"{DOMAIN}/devices/d1/telemetry/pressure"
P0 = Partition(DOMAIN, "telemetry", 0)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_stage(partitions=1) as opened:
        yield opened


def numbers(sink: RecordingSink) -> list[int]:
    """The offsets that were delivered."""
    return [entry.position.offset for entry in sink.entries]


def trim(stage: Stage, keep: int) -> None:
    """Let retention take everything but the newest ``keep`` entries, whoever still needs them."""
    shelf = stage.log.shelf(P0)
    shelf.trim(shelf.last - keep)


def has(sink: RecordingSink, count: int) -> bool:
    return len(sink.entries) >= count


async def say(stage: Stage, count: int, topic: str = TOPIC) -> list[Position]:
    return await stage.say(*(stage.record(topic) for _ in range(count)))


async def test_cursor_of_the_very_beginning_still_tells_a_loss(stage: Stage) -> None:
    idle = RecordingSink()
    reader = await stage.open(idle, TOPIC)
    cursor = Cursor("", dict(reader.positions() or {}))
    await say(stage, 5)
    trim(stage, 2)
    late = RecordingSink()
    again = await stage.open(late, TOPIC, start=Start("cursor", cursor=cursor))
    await soon(lambda: len(late.entries) == 2, "what is left arrives")
    assert again.missed_at_start == [Gap(P0, 1, 3, "retention")]
    assert numbers(late) == [4, 5]
    assert late.gaps == []


async def test_earliest_is_no_gap(stage: Stage) -> None:
    await say(stage, 5)
    trim(stage, 2)
    sink = RecordingSink()
    reader = await stage.open(sink, TOPIC, start=Start("earliest"))
    await soon(lambda: len(sink.entries) == 2, "what is left arrives")
    assert reader.missed_at_start == []
    assert numbers(sink) == [4, 5]


async def test_slow_reader_is_told_once_what_retention_took(stage: Stage) -> None:
    sink = RecordingSink(room=0)
    await stage.open(sink, TOPIC)
    await say(stage, 10)
    assert sink.lags == [10]
    trim(stage, 3)
    sink.make_room(0)
    await soon(lambda: sink.gaps, "the gap is told")
    sink.make_room()
    await soon(lambda: sink.lags == [10, 0], "it has caught up")
    assert sink.gaps == [Gap(P0, 1, 7, "retention")]
    assert numbers(sink) == [8, 9, 10]


async def test_rebuilt_log_is_told_as_a_gap_without_an_extent(stage: Stage) -> None:
    await say(stage, 3)
    foreign = Cursor("", {P0: Position(1, 77)})
    sink = RecordingSink()
    reader = await stage.open(sink, TOPIC, start=Start("cursor", cursor=foreign))
    await soon(lambda: len(sink.entries) == 3, "everything arrives")
    assert [(gap.reason, gap.missing) for gap in reader.missed_at_start] == [("rebuilt", 0)]
    assert numbers(sink) == [1, 2, 3]


async def test_latest_gives_a_cursor_with_its_last_value(stage: Stage) -> None:
    await say(stage, 3)
    await say(stage, 1, OTHER)
    for policy in ("complete", "latest"):
        sink = RecordingSink()
        reader = await stage.open(sink, f"{DOMAIN}/#", start=Start("latest"), policy=policy)
        assert reader.positions() is None
        await soon(partial(has, sink, 2), "the last values arrive")
        assert sorted(numbers(sink)) == [3, 4]
        assert sink.cursors[-1] is not None
        assert sink.cursors[-1][P0].offset == 4


async def test_a_client_lost_between_last_values_begins_again_where_it_was(stage: Stage) -> None:
    topics = [f"{DOMAIN}/devices/d{number}/telemetry" for number in range(250)]
    sink = RecordingSink(room=0)
    reader = await stage.open(sink, f"{DOMAIN}/#", policy="latest")
    held = dict(reader.positions() or {})
    await stage.say(*(stage.record(topic) for topic in topics))
    assert reader.positions() == held
    sink.make_room(1)
    await soon(lambda: len(sink.entries) == 200, "a part of the values arrives")
    assert sink.batches[0].values
    assert sink.cursors == [held]
    sink.make_room()
    await soon(lambda: len(sink.entries) == 250, "the others arrive")
    assert sink.cursors[-1] != held
    assert {entry.record.topic for entry in sink.entries} == set(topics)


async def test_expired_messages_are_not_delivered_live_late_or_as_last_values(stage: Stage) -> None:
    live, slow = RecordingSink(), RecordingSink(room=0)
    await stage.open(live, TOPIC)
    await stage.open(slow, TOPIC)
    now = stage.clock.now()
    await stage.say(stage.record(TOPIC, expires_at=now + 10), stage.record(TOPIC, expires_at=now))
    assert numbers(live) == [1]
    stage.clock.advance(20)
    slow.make_room()
    await say(stage, 1)
    await soon(lambda: numbers(slow) == [3], "only what still counts arrives")
    assert stage.feed.expired == 3
    await stage.say(stage.record(OTHER, expires_at=stage.clock.now() + 5))
    stage.clock.advance(10)
    values = RecordingSink()
    await stage.open(values, OTHER, start=Start("latest"))
    assert values.reader is not None
    assert values.reader.is_live
    assert values.entries == []


async def test_max_rate_paces_complete_readers_and_loses_nothing(stage: Stage) -> None:
    sink = RecordingSink()
    reader = await stage.open(sink, TOPIC, max_rate=10)
    await say(stage, 4)
    await say(stage, 30)
    assert numbers(sink) == [1, 2, 3, 4]
    for expected in (14, 24, 34):
        stage.monotonic += 1
        reader.resume()
        await soon(partial(has, sink, expected), "ten more")
        await stage.handed_out()
        assert len(sink.entries) == expected
    assert numbers(sink) == list(range(1, 35))


async def test_a_reader_without_the_right_is_refused_and_leaves_nothing_behind(stage: Stage) -> None:
    subscription = Subscription((parse_filter(f"{DOMAIN}/devices/+/telemetry"),))
    with pytest.raises(Forbidden, match="inside your grants"):
        await stage.subscribe(device(DOMAIN, "d1"), subscription, RecordingSink())
    assert stage.feed._groups == {}


async def test_a_log_that_is_away_at_the_start_is_told_and_leaves_nothing_behind(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> Position:
        raise LogUnavailable("away")

    monkeypatch.setattr(stage.log, "at", away)
    with pytest.raises(LogUnavailable):
        await stage.open(RecordingSink(), TOPIC, start=Start("time", time=1))
    assert stage.feed._groups == {}


async def test_catching_up_goes_on_when_the_log_is_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = RecordingSink(room=0)
    await stage.open(sink, TOPIC)
    await say(stage, 3)
    read, failures = stage.log.read, [LogUnavailable("away")]

    async def unsteady(*arguments: object) -> object:
        if failures:
            raise failures.pop()
        return await read(*arguments)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(stage.log, "read", unsteady)
    sink.make_room()
    await soon(lambda: numbers(sink) == [1, 2, 3], "it goes on")
    assert failures == []


async def test_closed_reader_gets_nothing_more(stage: Stage) -> None:
    sink = RecordingSink(room=0)
    reader = await stage.open(sink, TOPIC)
    await say(stage, 2)
    reader.close()
    reader.close()
    sink.make_room()
    await say(stage, 2)
    assert sink.entries == []
    assert stage.feed._groups == {}
