"""Flow control: the pace of a reader, and what is counted when it cannot keep up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotsphere.use_cases.flow_control import MessageFlowControlUseCase, Pace
from tests.use_cases.stage import DOMAIN, RecordingSink, open_stage, soon


@given(
    st.floats(0.5, 50),
    st.lists(st.tuples(st.integers(1, 20), st.floats(0, 3)), max_size=40),
)
def test_no_reader_gets_more_than_its_rate_and_one_burst(rate: float, takes: list[tuple[int, float]]) -> None:
    pace = Pace(rate, 0.0)
    now, taken, largest = 0.0, 0, 0
    for count, pause in takes:
        now += pause
        wait = pace.take(count, now)
        if wait == 0:
            taken += count
            largest = max(largest, count)
        else:
            assert wait > 0
            assert pace.take(count, now + wait + 1e-6) == 0
            now += wait + 1e-6
            taken += count
            largest = max(largest, count)
    assert taken <= max(1.0, rate) + rate * now + largest + 1e-6


def test_what_was_not_delivered_is_given_back() -> None:
    pace = Pace(10, 0.0)
    assert pace.take(10, 0.0) == 0
    assert pace.take(1, 0.0) == pytest.approx(0.1)
    pace.give_back(10)
    assert pace.take(10, 0.0) == 0


def test_without_a_rate_there_is_no_pace() -> None:
    assert MessageFlowControlUseCase(lambda: 0.0).pace(0) is None


async def test_latest_keeps_one_value_per_topic_and_counts_the_rest() -> None:
    topics = [f"{DOMAIN}/devices/d{number}/telemetry" for number in range(3)]
    async with open_stage(partitions=1) as stage:
        sink = RecordingSink(room=0)
        reader = await stage.open(sink, f"{DOMAIN}/#", policy="latest")
        for _ in range(10):
            await stage.say(*(stage.record(topic) for topic in topics))
        assert len(reader.stale) == 3
        sink.make_room()
        await soon(lambda: len(sink.entries) == 3, "the newest values arrive")
        assert [entry.position.offset for entry in sink.entries] == [28, 29, 30]
        assert reader.superseded == stage.flow.superseded == 27
        assert stage.flow.delivered == 3
        assert sink.lags[-1] == 0
        await stage.say(stage.record(topics[0]))
        assert [entry.position.offset for entry in sink.entries] == [28, 29, 30, 31]


async def test_a_slow_complete_reader_holds_nothing_in_memory() -> None:
    topic = f"{DOMAIN}/devices/d1/telemetry"
    async with open_stage(partitions=1) as stage:
        sink = RecordingSink(room=0)
        reader = await stage.open(sink, topic)
        for _ in range(20):
            await stage.say(*(stage.record(topic) for _ in range(20)))
        assert not reader.stale
        assert sink.batches == []
        assert stage.flow.deferred >= 1
        sink.make_room()
        await soon(lambda: len(sink.entries) == 400, "everything arrives")
        assert [entry.position.offset for entry in sink.entries] == list(range(1, 401))
