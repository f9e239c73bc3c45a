"""History gives every retained message of its filters once, in order per key, however it is paged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.entities.channel import Retention
from iotsphere.entities.cursor import Cursor
from iotsphere.entities.errors import Forbidden
from iotsphere.entities.message import Entry
from iotsphere.entities.position import Gap
from iotsphere.entities.principal import Principal, device, parse_grant
from iotsphere.entities.subscription import Start
from iotsphere.entities.topic import TopicFilter, parse_filter
from iotsphere.use_cases import history as module
from tests.support.examples import tried
from tests.support.rooms import Rooms, open_rooms

EARLIEST = Start("earliest")


def filters(*texts: str) -> tuple[TopicFilter, ...]:
    return tuple(parse_filter(text) for text in texts)


async def everything(
    rooms: Rooms, wanted: tuple[TopicFilter, ...], start: Start, limit: int
) -> tuple[list[Entry], list[Gap]]:
    entries: list[Entry] = []
    gaps: list[Gap] = []
    while True:
        page = await rooms.history(rooms.operator, wanted, start, limit)
        assert len(page.entries) <= limit
        entries += page.entries
        gaps += page.gaps
        if not page.more:
            return entries, gaps
        start = Start("cursor", Cursor("", page.positions))


async def test_messages_of_several_partitions_come_in_the_order_of_acceptance(rooms: Rooms) -> None:
    said = [await rooms.say(f"iotsphere/devices/d{i % 7}/telemetry", {"n": i}) for i in range(40)]
    page = await rooms.history(rooms.operator, filters("iotsphere/devices/+/telemetry"), EARLIEST, 100)
    assert list(page.entries) == said
    assert len({entry.record.partition for entry in said}) > 1
    assert (page.gaps, page.more) == ([], False)


@given(
    topics=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["telemetry", "telemetry/t", "shadow/reported"])), max_size=40
    ),
    limit=st.integers(1, 12),
    trimmed=st.integers(0, 20),
)
@tried(60)
async def test_pages_give_each_message_once_and_tell_what_is_gone(
    topics: list[tuple[int, str]], limit: int, trimmed: int
) -> None:
    async with open_rooms() as rooms:
        said = [await rooms.say(f"iotsphere/devices/d{i}/{rest}", {"n": n}) for n, (i, rest) in enumerate(topics)]
        wanted = filters("iotsphere/devices/+/telemetry/#", "iotsphere/devices/d1/#", "iotsphere/devices/d1/telemetry")
        first = await rooms.history(rooms.operator, wanted, EARLIEST, limit)
        gone = said[:trimmed]
        for entry in gone:
            rooms.log.shelf(entry.record.partition).trim(entry.position.offset)
        rest, gaps = ([], []) if not first.more else await everything(
            rooms, wanted, Start("cursor", Cursor("", first.positions)), limit
        )  # fmt: skip
        got = [*first.entries, *rest]
        missing = {(gap.partition, offset) for gap in gaps for offset in range(gap.first, gap.last + 1)}
        for entry in said:
            if any(f.matches(entry.record.topic) for f in wanted):
                place = (entry.record.partition, entry.position.offset)
                assert got.count(entry) + (place in missing) == 1
        assert all(any(f.matches(entry.record.topic) for f in wanted) for entry in got)
        for key in range(6):
            mine = [entry for entry in got if f"/d{key}/" in entry.record.topic]
            for partition in {entry.record.partition for entry in mine}:
                offsets = [entry.position.offset for entry in mine if entry.record.partition == partition]
                assert offsets == sorted(offsets)


async def test_a_time_begins_with_what_was_accepted_then(rooms: Rooms) -> None:
    said = [await rooms.say("iotsphere/devices/d1/telemetry", {"n": i}) for i in range(6)]
    start = Start("time", time=said[4].appended_at)
    page = await rooms.history(rooms.operator, filters("iotsphere/devices/#"), start, 10)
    assert list(page.entries) == said[4:]


async def test_a_cursor_of_an_empty_log_still_tells_what_is_lost_later(rooms: Rooms) -> None:
    wanted = filters("iotsphere/devices/d1/telemetry")
    page = await rooms.history(rooms.operator, wanted, EARLIEST, 10)
    said = [await rooms.say("iotsphere/devices/d1/telemetry", {"n": i}) for i in range(3)]
    partition = said[0].record.partition
    await rooms.log.retain(partition, Retention(0, 0, 0, 0), rooms.clock.now() + 1)
    after = await rooms.history(rooms.operator, wanted, Start("cursor", Cursor("", page.positions)), 10)
    assert (list(after.entries), list(after.gaps)) == ([], [Gap(partition, 1, 3, "retention")])
    again = await rooms.history(rooms.operator, wanted, Start("cursor", Cursor("", after.positions)), 10)
    assert list(again.gaps) == []


async def test_a_filter_with_a_key_reads_one_partition_of_its_channels_only(rooms: Rooms) -> None:
    for text, partitions in (
        ("iotsphere/devices/d1/telemetry/+", 1),
        ("iotsphere/devices/d1/#", 4),
        ("iotsphere/devices/+/telemetry", 4),
        ("iotsphere/users/ann/notifications", 1),
        ("iotsphere/devices/batch/alerts", 1),
        ("iotsphere/system/status", 1),
        ("iotsphere/#", 11),
    ):
        page = await rooms.history(rooms.operator, filters(text), EARLIEST, 10)
        assert len(page.positions) == partitions, text


@pytest.mark.parametrize(
    "topic",
    ["devices/d1/telemetry", "devices/d1/telemetry/t", "devices/d1/shadow/reported", "devices/d1/commands/response",
     "devices/d1/presence", "devices/batch/alerts", "users/ann/notifications", "system/status"],
)  # fmt: skip
async def test_an_exact_filter_finds_its_topic(rooms: Rooms, topic: str) -> None:
    said = await rooms.say(f"iotsphere/{topic}", {"n": 1})
    page = await rooms.history(rooms.operator, filters(f"iotsphere/{topic}"), EARLIEST, 10)
    assert list(page.entries) == [said]


async def test_a_page_ends_at_its_bytes_and_after_scanning_in_vain(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PAGE_BYTES", 3_000)
    monkeypatch.setattr(module, "MAX_SCANNED", 10)
    for i in range(9):
        await rooms.say("iotsphere/devices/d1/telemetry", {"n": i, "x": "y" * 1_000})
    page = await rooms.history(rooms.operator, filters("iotsphere/devices/d1/telemetry"), EARLIEST, 100)
    assert (len(page.entries), page.more) == (3, True)
    for i in range(30):
        await rooms.say("iotsphere/devices/d1/telemetry/t", {"n": i})
    wanted = filters("iotsphere/devices/d1/telemetry/other")
    page = await rooms.history(rooms.operator, wanted, EARLIEST, 100)
    assert (len(page.entries), page.more) == (0, True)
    assert await everything(rooms, wanted, EARLIEST, 100) == ([], [])


async def test_a1_history_and_last_values_need_a_grant_for_the_whole_filter(rooms: Rooms) -> None:
    held = parse_grant("subscribe:iotsphere/devices/+/telemetry/#", domain="iotsphere")
    ann = Principal("user", "ann", "iotsphere", (held,))
    for text in ("iotsphere/devices/#", "iotsphere/#", "other/devices/d1/telemetry", "iotsphere/devices/d1/shadow/+"):
        with pytest.raises(Forbidden):
            await rooms.history(ann, filters("iotsphere/devices/+/telemetry", text), EARLIEST, 10)
        with pytest.raises(Forbidden):
            rooms.history.latest(ann, filters("iotsphere/devices/+/telemetry", text))
    with pytest.raises(Forbidden):
        await rooms.history(device("iotsphere", "d2"), filters("iotsphere/devices/d1/telemetry"), EARLIEST, 10)


async def test_last_values_are_paged_by_topic(rooms: Rooms) -> None:
    for i in range(5):
        await rooms.say(f"iotsphere/devices/d{i}/telemetry", {"n": 0})
    said = [await rooms.say(f"iotsphere/devices/d{i}/telemetry", {"n": 1}) for i in range(5)]
    await rooms.say("other/devices/d1/telemetry", {"n": 1})
    wanted = filters("iotsphere/devices/#")
    first = rooms.history.latest(rooms.operator, wanted, limit=3)
    assert (list(first.entries), first.after) == (said[:3], "iotsphere/devices/d2/telemetry")
    rest = rooms.history.latest(rooms.operator, wanted, after=first.after or "", limit=3)
    assert (list(rest.entries), rest.after) == (said[3:], None)
