"""The sizing of a fleet, checked by hand."""

from __future__ import annotations

from bench.sizing import Fleet, row, sizing

FIGURES = {"scale-out/ingress": 20.0, "scale-out/websocket": 10.0, "scale-out/redis": 5.0, "idle/mqtt/mib": 10.0}


def test_a_fleet_that_talks_much_needs_cores_and_one_that_is_quiet_needs_connections() -> None:
    busy = Fleet("busy", 100_000, 1, 2)
    # 100,000/s × 20 µs = 2 cores, at half load 4 processes; 10 for the connections of 100,000 devices
    assert row(busy, FIGURES) == ("busy", "100,000", "10 (connections decide)", "4", "1", "3,219")
    assert row(Fleet("busier", 100_000, 0.2, 1), FIGURES)[2] == "20 (messages decide)"


def test_a_round_without_the_costs_says_so() -> None:
    assert "did not measure" in sizing({})
    text = sizing(FIGURES)
    assert "ingress 20.0 a message" in text
    assert "100 MiB for a process full of them" in text
    assert text.count("\n| 1,000,000") == 3
