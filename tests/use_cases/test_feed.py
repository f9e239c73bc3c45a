"""The feed: one pass over the log for everybody, an entry encoded once, and a view that survives restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from iotsphere.entities.channel import ChannelSpec
from iotsphere.entities.position import Gap, Partition, Position
from iotsphere.entities.topic import CHANNELS, parse_filter
from iotsphere.use_cases.feed import READER_NAME, Batch
from iotsphere.use_cases.ports.message_log import Slice
from tests.use_cases.stage import DOMAIN, RecordingSink, Stage, open_stage, soon

TOPIC = f"{DOMAIN}/devices/d1/telemetry/temperature"
P0 = Partition(DOMAIN, "telemetry", 0)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with open_stage(partitions=1) as opened:
        yield opened


async def test_readers_with_equal_filters_share_one_batch(stage: Stage) -> None:
    sinks = [RecordingSink() for _ in range(50)]
    for sink in sinks:
        await stage.open(sink, TOPIC, f"{DOMAIN}/system/#")
    other = RecordingSink()
    await stage.open(other, f"{DOMAIN}/#")
    await stage.say(stage.record(TOPIC))
    shared: list[Batch] = [sink.batches[0] for sink in sinks]
    assert all(batch is shared[0] for batch in shared)
    assert other.batches[0] is not shared[0]
    assert other.batches[0].entries == shared[0].entries


async def test_groups_end_with_their_last_reader(stage: Stage) -> None:
    readers = [await stage.open(RecordingSink(), TOPIC) for _ in range(2)]
    assert len(stage.feed._groups) == 1
    readers[0].close()
    await stage.say(stage.record(TOPIC))
    readers[1].close()
    assert stage.feed._groups == {}
    assert stage.feed._index.match(TOPIC) == ()


async def test_listeners_hear_of_each_slice_until_they_leave(stage: Stage) -> None:
    heard: list[Partition] = []
    stop = stage.feed.listen(heard.append)
    await stage.say(stage.record(TOPIC))
    assert heard == [P0]
    stop()
    await stage.say(stage.record(TOPIC))
    assert heard == [P0]


async def test_a_restarted_feed_knows_the_last_values_and_goes_on_where_it_was(stage: Stage) -> None:
    await stage.say(stage.record(TOPIC), stage.record(TOPIC))
    await stage.feed.save()
    progress = (await stage.log.committed(f"{DOMAIN}/{READER_NAME}"))[P0]
    assert (progress.position.offset, progress.tally.applied) == (2, 2)
    await stage.say(stage.record(TOPIC))
    restarted = stage.new_feed()
    await restarted.start()
    (last,) = restarted.last_values.latest([parse_filter(f"{DOMAIN}/#")])
    assert last.position.offset == 3
    assert restarted.positions == stage.feed.positions


async def test_saving_twice_writes_once_and_counts_once(stage: Stage) -> None:
    await stage.say(stage.record(TOPIC))
    await stage.feed.save()
    await stage.feed.save()
    stored = await stage.documents.get(f"last-values/{DOMAIN}", "$positions")
    assert stored is not None
    assert stored.version == 1
    assert (await stage.log.committed(f"{DOMAIN}/{READER_NAME}"))[P0].tally.applied == 1


async def test_a_domain_that_is_made_later_is_followed(stage: Stage) -> None:
    await stage.log.ensure("later", dict.fromkeys(CHANNELS, ChannelSpec(partitions=1)))
    await stage.feed.domains_changed()
    await stage.say(stage.record("later/devices/d1/telemetry"))
    known = stage.feed.last_values.latest([parse_filter("later/#")])
    assert [entry.record.topic for entry in known] == ["later/devices/d1/telemetry"]


async def test_a_gap_of_the_feed_reaches_its_live_readers_once(stage: Stage) -> None:
    sink, elsewhere = RecordingSink(), RecordingSink()
    await stage.open(sink, TOPIC)
    await stage.open(elsewhere, f"{DOMAIN}/system/#")
    gap = Gap(P0, 1, 4, "retention")
    stage.feed.dispatch(Slice(P0, [], Position(stage.feed.positions[P0].epoch, 4), gap))
    assert sink.gaps == [gap]
    assert elsewhere.gaps == []
    assert list(stage.feed.gaps) == [gap]


async def test_running_ends_with_the_error_of_its_log(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Exception):
        pass

    async def follow(_: object) -> AsyncIterator[Slice]:
        raise Broken
        yield

    monkeypatch.setattr(stage.log, "follow", follow)
    with pytest.raises(Broken):
        await asyncio.wait_for(stage.new_feed().run(), 60)


async def test_lag_counts_messages_between_positions_and_the_feed(stage: Stage) -> None:
    start = stage.feed.positions[P0]
    await stage.say(*(stage.record(TOPIC) for _ in range(7)))
    assert stage.feed.lag({P0: start}) == 7
    sink = RecordingSink(room=0)
    reader = await stage.open(sink, TOPIC)
    await stage.say(*(stage.record(TOPIC) for _ in range(3)))
    assert reader.lag == 3
    sink.make_room()
    await soon(lambda: reader.is_live, "it has caught up")
    assert reader.lag == 0
