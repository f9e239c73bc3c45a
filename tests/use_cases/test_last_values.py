"""Last and retained values: by event time, then by place in the log; the same after every restart."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.adapters.values import pack_values, unpack_values
from iotsphere.drivers.memory.documents import MemoryDocuments
from iotsphere.entities.errors import LogUnavailable
from iotsphere.entities.message import Entry, Record
from iotsphere.entities.position import Partition, Position
from iotsphere.entities.topic import parse_filter
from iotsphere.use_cases.last_values import LastValues

PARTITION = Partition("iotsphere", "telemetry", 0)
TOPICS = [f"iotsphere/devices/d1/telemetry/{metric}" for metric in ("a", "b", "c")]
EVERYTHING = [parse_filter("iotsphere/#")]


class Sample(NamedTuple):
    topic: str
    timestamp: int
    retain: bool
    empty: bool


SAMPLES = st.lists(
    st.builds(Sample, st.sampled_from(TOPICS), st.integers(0, 5), st.booleans(), st.booleans()), max_size=30
)


def entries(samples: list[Sample]) -> list[Entry]:
    return [
        Entry(
            Position(7, offset),
            1_000 + offset,
            Record(PARTITION, s.topic, f"m{offset}", b"" if s.empty else b"{}", s.timestamp, 0, s.retain or s.empty),
        )
        for offset, s in enumerate(samples, 1)
    ]


def expected_last(log: list[Entry]) -> dict[str, Entry]:
    last: dict[str, Entry] = {}
    for topic in TOPICS:
        known = [entry for entry in log if entry.record.topic == topic and entry.record.body]
        if known:
            last[topic] = max(known, key=lambda entry: (entry.record.timestamp, entry.position))
    return last


def expected_retained(log: list[Entry]) -> dict[str, Entry]:
    """The last one that was to be retained, unless a tombstone came after it."""
    retained: dict[str, Entry] = {}
    for entry in log:
        if not entry.record.body:
            retained.pop(entry.record.topic, None)
        elif entry.record.retain:
            retained[entry.record.topic] = entry
    return retained


def new(documents: MemoryDocuments) -> LastValues:
    return LastValues(documents, pack_values, unpack_values)


def seen(values: LastValues) -> tuple[dict[str, Entry], dict[str, Entry]]:
    return (
        {entry.record.topic: entry for entry in values.latest(EVERYTHING)},
        {entry.record.topic: entry for entry in values.retained(EVERYTHING)},
    )


@given(SAMPLES)
def test_last_is_by_event_time_and_retained_by_place(samples: list[Sample]) -> None:
    log = entries(samples)
    values = new(MemoryDocuments())
    for entry in log:
        values.apply(entry)
    assert seen(values) == (expected_last(log), expected_retained(log))


@given(SAMPLES, st.integers(0, 30), st.integers(0, 30), st.integers(0, 5))
async def test_a_restart_at_any_moment_changes_nothing(
    samples: list[Sample], save_at: int, crash_at: int, behind: int
) -> None:
    log = entries(samples)
    documents = MemoryDocuments()
    values = new(documents)
    for entry in log[:crash_at]:
        values.apply(entry)
        if entry.position.offset == save_at:
            # The positions may be older than the values: the feed moves on while they are being saved.
            await values.save("iotsphere", {PARTITION: Position(7, max(0, save_at - behind))})
    restarted = new(documents)
    positions = await restarted.load("iotsphere")
    for entry in log[positions.get(PARTITION, Position(7, 0)).offset :]:
        restarted.apply(entry)
    assert seen(restarted) == (expected_last(log), expected_retained(log))


async def test_only_what_changed_is_saved_and_older_positions_never_win() -> None:
    documents = MemoryDocuments()
    values = new(documents)
    log = entries([Sample(topic, 1, False, False) for topic in TOPICS])
    for entry in log:
        values.apply(entry)
    assert await values.save("iotsphere", {PARTITION: Position(7, 3)})
    values.apply(entries([Sample(TOPICS[0], 2, False, False)] * 4)[3])
    assert await values.save("iotsphere", {PARTITION: Position(7, 4)})
    stored = {document.key: document.version for document in await documents.scan("last-values/iotsphere")}
    assert stored == {"$positions": 2, TOPICS[0]: 2, TOPICS[1]: 1, TOPICS[2]: 1}
    assert not await values.save("iotsphere", {PARTITION: Position(7, 3)})


async def test_what_could_not_be_saved_is_saved_the_next_time() -> None:
    class Broken(MemoryDocuments):
        broken = True

        async def put_many(self, collection: str, values: object) -> None:
            if self.broken:
                raise LogUnavailable("the disk is away")
            await super().put_many(collection, values)  # type: ignore[arg-type]  # passed on as it came

    documents = Broken()
    values = new(documents)
    values.apply(entries([Sample(TOPICS[0], 1, False, False)])[0])
    with pytest.raises(LogUnavailable):
        await values.save("iotsphere", {PARTITION: Position(7, 1)})
    documents.broken = False
    await values.save("iotsphere", {PARTITION: Position(7, 1)})
    restarted = new(documents)
    await restarted.load("iotsphere")
    assert [entry.record.topic for entry in restarted.latest(EVERYTHING)] == [TOPICS[0]]


def test_filters_select_each_topic_once_and_only_their_own() -> None:
    values = new(MemoryDocuments())
    for entry in entries([Sample(topic, 1, False, False) for topic in TOPICS]):
        values.apply(entry)
    wanted = [parse_filter(TOPICS[0]), parse_filter("iotsphere/devices/+/telemetry/+"), parse_filter("iotsphere/#")]
    assert sorted(entry.record.topic for entry in values.latest(wanted)) == TOPICS
    assert [e.record.topic for e in values.latest([parse_filter(TOPICS[1])])] == [TOPICS[1]]
    assert list(values.latest([parse_filter("other/#")])) == []
    assert list(values.latest([parse_filter("iotsphere/devices/d2/#")])) == []
