"""What the benchmark of the console makes of its figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.console import Figures, Return, judge, judge_returns

FIRST = Figures("#/fleet", 10, 59.9, 20, 0, 4.0, 2_000)


@pytest.mark.parametrize(
    ("last", "missed"),
    [
        ({"heap_mib": 5.0, "nodes": 3_500}, []),
        ({"frames": 50.0}, ["50.0 frames/s at least (> 50)"]),
        ({"heap_mib": 5.01}, ["heap 4.00 → 5.01 MiB in 300 s"]),
        ({"nodes": 3_501}, ["nodes 2000 → 3501"]),
    ],
)
def test_it_judges_the_least_frames_and_the_growth_of_each_page(last: dict[str, Any], missed: list[str]) -> None:
    looks = [FIRST, replace(FIRST, place="#/health", heap_mib=9.0), replace(FIRST, after_s=310, **last)]
    assert [figure for _, figure, kept in judge(looks) if not kept] == missed


def test_what_the_first_look_makes_is_no_growth_when_there_are_more() -> None:
    looks = [replace(FIRST, heap_mib=1.0, nodes=100), FIRST, replace(FIRST, after_s=300)]
    assert [figure for _, figure, _ in judge(looks)][1:] == ["heap 4.00 → 4.00 MiB in 290 s", "nodes 2000 → 2000"]


def test_a_page_that_was_seen_once_is_judged_by_its_frames_alone() -> None:
    assert [figure for _, figure, _ in judge([FIRST])] == ["59.9 frames/s at least (> 50)"]


def test_a_return_is_judged_by_what_it_blocks_beyond_the_usual() -> None:
    returns = [Return("#/fleet", 60, blocked, 120, 90, 40, 180) for blocked in (0, 319, 320)]
    told = list(judge_returns(returns))
    assert [kept for _, _, kept in told] == [True, True, False]
    assert told[1][:2] == (
        "#/fleet after 60 s",
        "199 ms blocked (< 200) beyond 120 ms, 90 ms computed (usually 40), gap 180 ms",
    )
