"""The judge itself: random clean histories are found clean, and each planted fault is found, once and by its name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from .history import KINDS, Consumer, DeclaredGap, Delivered, Published, Report, check, covers

FILTERS = ("iotsphere/devices/+/telemetry/#", "iotsphere/devices/+/telemetry/+", "iotsphere/devices/d1/#", "+/#")
METRICS = ("telemetry", "telemetry/temperature", "shadow/reported")


@dataclass
class History:
    published: list[Published]
    consumers: list[Consumer]

    def judge(self) -> Report:
        return check(self.published, self.consumers)


def delivered(message: Published) -> Delivered:
    return Delivered(*message[:5])


@st.composite
def clean_histories(draw: st.DrawFn) -> History:
    """Devices with acknowledged and unacknowledged messages; consumers that got all that was theirs, in any mix."""
    published: list[Published] = []
    for device in draw(st.lists(st.sampled_from(("d1", "d2", "d3")), min_size=1, unique=True)):
        for seq in range(draw(st.integers(1, 8))):
            topic = f"iotsphere/devices/{device}/{draw(st.sampled_from(METRICS))}"
            published.append(Published(device, seq, topic, f"{device}-{seq}", seq * 10, draw(st.booleans())))
    consumers = []
    for number in range(draw(st.integers(1, 3))):
        filters = draw(st.lists(st.sampled_from(FILTERS), min_size=1, unique=True))
        rights = draw(st.one_of(st.none(), st.just(["iotsphere/devices/+/telemetry/#"]), st.just(["#"])))
        consumer = Consumer(f"c{number}", filters, rights)
        queues: dict[str, list[Published]] = {}
        for message in published:
            mine = any(covers(wanted, message.topic) for wanted in filters)
            mine = mine and (rights is None or any(covers(right, message.topic) for right in rights))
            if mine and (message.acked or draw(st.booleans())):
                queues.setdefault(message.device, []).append(message)
        while queues:
            device = draw(st.sampled_from(sorted(queues)))
            message = queues[device].pop(0)
            if not queues[device]:
                del queues[device]
            if draw(st.integers(0, 9)) == 0:
                consumer.gaps.append(DeclaredGap(device, message.seq, message.seq))
            else:
                consumer.deliveries.append(delivered(message))
        consumers.append(consumer)
    return History(published, consumers)


def with_deliveries(history: History, draw: st.DataObject, at_least: int = 1) -> Consumer:
    candidates = [consumer for consumer in history.consumers if len(consumer.deliveries) >= at_least]
    assume(candidates)
    return draw.draw(st.sampled_from(candidates))


@given(clean_histories())
def test_a_clean_history_is_found_clean(history: History) -> None:
    report = history.judge()
    assert report.faults == {}
    assert "no fault" in str(report)
    assert report.delivered == sum(len(consumer.deliveries) for consumer in history.consumers)


@given(clean_histories(), st.data())
def test_a_lost_message_is_found_and_called_a_gap_when_a_later_one_came(history: History, data: st.DataObject) -> None:
    consumer = with_deliveries(history, data)
    acked = {(message.device, message.seq) for message in history.published if message.acked}
    candidates = [d for d in consumer.deliveries if (d.device, d.seq) in acked]
    assume(candidates)
    gone = data.draw(st.sampled_from(candidates))
    consumer.deliveries.remove(gone)
    later = any(d.device == gone.device and d.seq > gone.seq for d in consumer.deliveries)
    report = history.judge()
    assert report.faults == ({"lost": 1, "gap": 1} if later else {"lost": 1})
    assert f"{gone.device} {gone.seq} " in report.examples["lost"][0]


@given(clean_histories(), st.data())
def test_a_message_that_nobody_sent_is_a_phantom(history: History, data: st.DataObject) -> None:
    consumer = data.draw(st.sampled_from(history.consumers))
    ghost = data.draw(
        st.sampled_from(
            (
                Delivered("d1", 99, "iotsphere/devices/d1/telemetry", "d1-99"),
                Delivered("stranger", 0, "iotsphere/devices/stranger/telemetry", "x"),
            )
        )
    )
    consumer.deliveries.insert(data.draw(st.integers(0, len(consumer.deliveries))), ghost)
    assert history.judge().faults == {"phantom": 1}


@given(clean_histories(), st.data())
def test_an_altered_message_is_a_phantom(history: History, data: st.DataObject) -> None:
    consumer = with_deliveries(history, data)
    index = data.draw(st.integers(0, len(consumer.deliveries) - 1))
    change: dict[str, object] = data.draw(
        st.sampled_from(({"message_id": "other"}, {"content": -1}, {"topic": "iotsphere/devices/d1/telemetry/other"}))
    )
    consumer.deliveries[index] = Delivered(**{**consumer.deliveries[index]._asdict(), **change})
    assert history.judge().faults == {"phantom": 1}


@given(clean_histories(), st.data())
def test_a_delivery_outside_filter_or_right_is_a_leak(history: History, data: st.DataObject) -> None:
    consumer = data.draw(st.sampled_from(history.consumers))
    secret = Published("d9", 0, "other/devices/d9/shadow/delta", "d9-0", 0, data.draw(st.booleans()))
    history.published.append(secret)
    for other in history.consumers:
        other.rights = other.rights if other.rights and "#" not in other.rights else ["iotsphere/#"]
    consumer.deliveries.insert(data.draw(st.integers(0, len(consumer.deliveries))), delivered(secret))
    assert history.judge().faults == {"leak": 1}


@given(clean_histories(), st.data())
def test_a_duplicate_is_found_however_late(history: History, data: st.DataObject) -> None:
    consumer = with_deliveries(history, data)
    index = data.draw(st.integers(0, len(consumer.deliveries) - 1))
    again = data.draw(st.integers(index + 1, len(consumer.deliveries)))
    consumer.deliveries.insert(again, consumer.deliveries[index])
    assert history.judge().faults == {"duplicate": 1}


@given(clean_histories(), st.data())
def test_a_message_behind_a_later_one_of_its_device_is_a_reorder(history: History, data: st.DataObject) -> None:
    consumer = with_deliveries(history, data, at_least=2)
    pairs = [
        (early, late)
        for early, one in enumerate(consumer.deliveries)
        for late, two in enumerate(consumer.deliveries)
        if early < late and one.device == two.device
    ]
    assume(pairs)
    early, late = data.draw(st.sampled_from(pairs))
    consumer.deliveries.insert(late, consumer.deliveries.pop(early))
    assert history.judge().faults == {"reorder": 1}


@given(clean_histories(), st.data())
def test_a_gap_that_was_declared_for_what_came_is_an_overclaim(history: History, data: st.DataObject) -> None:
    consumer = with_deliveries(history, data)
    came = data.draw(st.sampled_from(consumer.deliveries))
    consumer.gaps.append(DeclaredGap(came.device, came.seq, came.seq))
    assert history.judge().faults == {"overclaim": 1}


def test_a_run_of_lost_messages_is_one_gap() -> None:
    published = [Published("d1", seq, "t") for seq in range(10)]
    consumer = Consumer("c", ["t"], deliveries=[delivered(published[seq]) for seq in (0, 1, 5, 8)])
    report = check(published, [consumer])
    assert report.faults == {"lost": 6, "gap": 2}
    assert len(report.examples["lost"]) == 5
    assert str(report).startswith("10 published, 10 acknowledged, 4 delivered: 6 lost, 2 gap\n")


def test_a_message_sent_again_counts_once_and_is_acknowledged_if_any_was() -> None:
    first, again = Published("d1", 0, "t", "id", 1, False), Published("d1", 0, "t", "id", 1, True)
    for published in ([first, again], [again, first]):
        assert check(published, [Consumer("c", ["t"])]).faults == {"lost": 1}
    with pytest.raises(ValueError, match="d1 sent two different messages as number 0"):
        check([first, first._replace(content=2)], [])


@pytest.mark.parametrize(
    ("wanted", "topic", "is_covered"),
    [
        ("#", "a/b", True),
        ("a/#", "a", True),
        ("a/#", "b/a", False),
        ("a/+", "a", False),
        ("a/+", "a/b", True),
        ("a/+", "a/b/c", False),
        ("+/b/#", "a/b/c/d", True),
        ("a/b", "a/b", True),
        ("a", "a/b", False),
    ],
)
def test_filters_follow_mqtt(wanted: str, topic: str, is_covered: bool) -> None:
    assert covers(wanted, topic) is is_covered


def test_every_kind_has_a_count() -> None:
    assert tuple(Report().counts) == KINDS
