"""The window's median and spread are those of the statistics module, at every step; extremes are those of blocks."""

from __future__ import annotations

import statistics

from hypothesis import given, settings
from hypothesis import strategies as st

from iotsphere.entities.analytics.windows import BLOCKS, MEAN_NORMAL, NORMAL, Extremes, Window

NUMBERS = st.lists(st.one_of(st.integers(-5, 5).map(float), st.floats(-1e9, 1e9)), min_size=1, max_size=40)


@settings(deadline=None)
@given(NUMBERS, st.integers(1, 12))
def test_median_and_spread_are_those_of_the_last_numbers(numbers: list[float], size: int) -> None:
    window = Window(size)
    for index, number in enumerate(numbers):
        window.add(number)
        last = numbers[max(0, index + 1 - size) : index + 1]
        assert window.recent == last
        usual = window.usual()
        assert usual.median == statistics.median(last)
        distances = [abs(value - usual.median) for value in last]
        expected = NORMAL * statistics.median_high(distances) or MEAN_NORMAL * statistics.fmean(distances)
        assert abs(usual.spread - expected) <= 1e-9 * max(1.0, abs(expected))
    assert Window(size, window.recent).usual() == window.usual()


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e9), max_size=90), st.integers(1, 4), st.integers(0, 90))
def test_extremes_are_the_median_of_the_greatest_of_the_last_blocks(
    distances: list[float], block: int, cut: int
) -> None:
    extremes = Extremes(block)
    for index, distance in enumerate(distances):
        if index == cut:
            extremes = Extremes(block, extremes.stored)
        extremes.add(distance)
    full = [max(distances[start : start + block]) for start in range(0, len(distances) - block + 1, block)][-BLOCKS:]
    assert extremes.usual == (statistics.median_high(full) if full else 0.0)
    assert len(extremes.stored) == 2 + len(full)
