"""Alerts of one metric: what raises them, what clears them, and what must not."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Sequence
from itertools import cycle, islice

import pytest
from bokeh_sampledata.glucose import data as glucose
from hypothesis import given, settings
from hypothesis import strategies as st
from vega_datasets import data as vega

from iotsphere.entities.analytics.detector import CLEARED, RAISED, Detector, DetectorRule, Verdict

SECOND = 1_000_000
HOUR = 3_600 * SECOND
RULE = DetectorRule(window=48, warm_up=16, stuck=20)
NOISE = random.Random(5)
CALM = [round(20 + NOISE.gauss(0, 0.5), 2) for _ in range(60)]


def run(values: Iterable[float], rule: DetectorRule = RULE, apart: int = SECOND) -> list[tuple[int, Verdict]]:
    detector = Detector(rule)
    return [
        (number, verdict)
        for number, value in enumerate(values)
        if (verdict := detector.take(value, number * apart)) is not None
    ]


def changes(values: Iterable[float], rule: DetectorRule = RULE) -> list[tuple[int, str, str]]:
    return [(number, verdict.change, verdict.kind) for number, verdict in run(values, rule)]


def test_calm_is_no_alert() -> None:
    assert changes(CALM * 4) == []


def test_a_spike_is_raised_and_cleared_once() -> None:
    found = run([*CALM, 60.0, *CALM[:20]])
    assert [(number, verdict.change) for number, verdict in found] == [(60, RAISED), (65, CLEARED)]
    raised, cleared = (verdict for _, verdict in found)
    assert raised.raised_at == cleared.raised_at == raised.at == 60 * SECOND
    assert cleared.since == 61 * SECOND
    assert raised.value == 60.0
    assert raised.score > 20
    assert raised.expected.median == pytest.approx(20, abs=1)


def test_what_swings_about_the_border_does_not_flap() -> None:
    border = Detector(RULE)
    for number, value in enumerate(CALM):
        border.take(value, number)
    usual = border.levels.usual()
    swinging = [usual.median + usual.spread * (6.5 if number % 2 else 5.0) for number in range(40)]
    assert [change for _, change, _ in changes([*CALM, *swinging])].count(RAISED) <= 1


def test_nothing_is_judged_before_it_is_known() -> None:
    assert changes([20, 20.1, 900, 20, 20.2, -900, 20]) == []


def test_confirmation_and_duration() -> None:
    twice = DetectorRule(window=48, warm_up=16, confirm=2)
    assert changes([*CALM, 60, *CALM[:9]], twice) == []
    assert changes([*CALM, 60, 61, *CALM[:9]], twice)[0][:2] == (61, RAISED)
    long = DetectorRule(window=48, warm_up=16, hold_s=3)
    assert changes([*CALM, 60, 61, 62, *CALM[:9]], long) == []
    found = run([*CALM, 60, 61, 62, 63, *CALM[:19]], long)
    assert [(number, verdict.since // SECOND) for number, verdict in found] == [(63, 60), (68, 64)]


def test_a_sensor_that_stands_still_is_stuck_and_moves_again() -> None:
    found = changes([*CALM, *[21.5] * 30, *CALM[:5]])
    assert found == [(79, RAISED, "stuck"), (90, CLEARED, "stuck")]
    assert changes([*CALM, *[21.5] * 19, *CALM]) == []


def test_one_that_often_stands_still_is_given_more_patience() -> None:
    steps = [20.0] * 15 + [20.5] * 15
    assert changes([*steps, *steps, *[20.0] * 25, *steps]) == []


def test_a_constant_is_no_alert_and_a_step_of_it_is_none_either() -> None:
    assert changes([5.0] * 200) == []
    assert changes([0.0] * 100 + [1.0] + [0.0] * 100) == []
    assert changes([*[0.0] * 100, 1.0, *[0.0] * 50, 1.0, *[0.0] * 10]) == []  # it rings now and then
    assert changes([*[20.0] * 100, 80.0, *[20.0] * 10])[0] == (100, RAISED, "level")


def test_a_sensor_with_steps_is_not_blamed_for_one() -> None:
    """More than half of the readings are equal, so their median deviation is 0."""
    assert changes(islice(cycle([20.0] * 7 + [20.5]), 200)) == []
    assert changes([*islice(cycle([20.0] * 7 + [20.5]), 200), 40.0, *[20.0] * 9])[0][:2] == (200, RAISED)


def test_old_news_tell_what_is_usual_and_raise_nothing() -> None:
    detector = Detector(RULE)
    for number, value in enumerate([*CALM, 90.0, 90.0]):
        assert detector.take(value, number, judged=False) is None
    assert detector.raised == ""
    assert detector.levels.recent[-1] == 90.0


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=80), st.integers(0, 80))
def test_stored_and_read_it_goes_on_as_before(values: list[float], cut: int) -> None:
    rule = DetectorRule(window=12, warm_up=4, high=3, low=1, calm=2, stuck=4)
    one, other = Detector(rule), Detector(rule)
    for number, value in enumerate(values):
        if number == cut:
            other = Detector.unpack(other.pack(), rule)
        assert one.take(value, number * SECOND) == other.take(value, number * SECOND)
    assert one.pack() == other.pack()


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=80))
def test_alerts_are_raised_and_cleared_in_turn(values: list[float]) -> None:
    rule = DetectorRule(window=12, warm_up=4, high=3, low=1, calm=2, stuck=4)
    found = [verdict.change for _, verdict in run(values, rule)]
    assert found == [RAISED, CLEARED] * (len(found) // 2) + [RAISED] * (len(found) % 2)


# How good it is, on measured values with faults planted into them


def measured(name: str) -> list[float]:
    noise = random.Random(3)
    if name == "glucose":
        return [float(value) for value in glucose["glucose"].iloc[:9_000]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's way of reading dates
        temperatures = (vega.seattle_temps() if name == "seattle" else vega.sf_temps())["temp"]
    return [round(float(value) + noise.gauss(0, 0.3), 1) for value in temperatures]


def plant(values: Sequence[float], size: float, seed: int) -> tuple[list[float], list[tuple[str, int, int]]]:
    """Spikes, stuck values and drifts; and where they are, as kind, first and end."""
    chance, made, at = random.Random(seed), list(values), 400
    labels: list[tuple[str, int, int]] = []
    while at < len(made) - 200:
        kind, sign = ("spike", "stuck", "drift")[len(labels) % 3], chance.choice((-1, 1))
        length = {"spike": chance.randint(1, 3), "stuck": chance.randint(30, 60), "drift": 40}[kind]
        height = sign * chance.uniform(1, 2) * size
        for step in range(length):
            change = {"spike": height, "stuck": made[at] - made[at + step], "drift": height * step / 8}[kind]
            made[at + step] += change
        labels.append((kind, at, at + length))
        at += length + chance.randint(150, 260)
    return made, labels


@pytest.mark.parametrize(
    ("name", "size", "false_alerts", "recall"),
    [
        ("seattle", 20.0, 0, {"spike": 0.75, "stuck": 1.0, "drift": 1.0}),
        ("sf", 20.0, 0, {"spike": 0.9, "stuck": 1.0, "drift": 1.0}),
        ("glucose", 150.0, 30, {"spike": 0.8, "stuck": 0.5, "drift": 1.0}),  # meals are jumps too
    ],
)
def test_quality_on_measured_values(name: str, size: float, false_alerts: int, recall: dict[str, float]) -> None:
    rule = DetectorRule(stuck=20)
    values = measured(name)
    faulty, labels = plant(values, size, seed=7)
    raised = [number for number, verdict in run(faulty, rule, HOUR) if verdict.change == RAISED]
    found = {kind: [0, 0] for kind in recall}
    true = set()
    for kind, first, end in labels:
        hits = {number for number in raised if first <= number < end + 6}
        true |= hits
        found[kind][0] += bool(hits)
        found[kind][1] += 1
    assert len(raised) - len(true) <= false_alerts
    for kind, (caught, planted) in found.items():
        assert caught / planted >= recall[kind], (kind, caught, planted)
