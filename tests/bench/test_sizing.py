"""The sizing of a fleet, checked by hand."""

from __future__ import annotations

import pytest

from bench.sizing import Cells, Costs, Fleet, cells_for, costs_of, sizing

FIGURES = {
    "scale-out/ingress": 20.0,
    "scale-out/websocket": 10.0,
    "scale-out/redis": 15.0,
    "scale-out/follower": 4.0,
    "redis-logged/ceiling/redis": 10.0,
    "idle/mqtt/mib": 10.0,
}
COSTS = Costs(take=12.0, give=6.0, follow=4.0, write=9.0, read=1.0)


def test_what_was_measured_is_taken_apart() -> None:
    assert costs_of(FIGURES) == COSTS
    noisy = costs_of({**FIGURES, "scale-out/redis": 9.0, "scale-out/ingress": 1.0})
    assert (noisy.read, noisy.take) == (0.05, 0.05)


@pytest.mark.parametrize(
    ("fleet", "cells"),
    [
        # 100/s are nothing, but 100,000 devices need ten processes.
        (Fleet("quiet", 100_000, 1_000, 1), Cells(1, 10, 1, by_connections=True)),
        # 20,000/s: following takes 80,000 µs, so 420,000 are left; 240,000 of taking and 600,000 of giving.
        (Fleet("watched", 10_000, 0.5, 5), Cells(1, 1, 2, by_connections=False)),
        # 99,000/s in two cells of 49,500: Redis would need 49,500 × (9 + 6) µs, more than planned. In three of 33,000:
        # 368,000 µs left; 396,000 of taking and 198,000 of giving; Redis 33,000 × (9 + 6) is 495,000.
        (Fleet("busy", 9_900, 0.1, 1), Cells(3, 2, 1, by_connections=False)),
    ],
)
def test_the_least_number_of_cells_in_which_nobody_is_too_busy(fleet: Fleet, cells: Cells) -> None:
    assert cells_for(fleet, COSTS) == cells


def test_no_number_of_cells_helps_a_message_that_costs_too_much() -> None:
    with pytest.raises(ValueError, match="more than 1000 cells"):
        cells_for(Fleet("huge", 10**9, 1, 1), Costs(1, 1, 1_000, 1, 1))


def test_a_round_without_the_costs_says_so() -> None:
    assert "did not measure" in sizing({})
    text = sizing(FIGURES)
    assert "for a message of its own devices | 12.0 |" in text
    assert "take 100 MiB of an ingress process" in text
    assert text.count("\n| 1,000,000") == 3
