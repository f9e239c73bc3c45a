"""A run's result for tests to alter."""

from __future__ import annotations

from bench.run import Result

TIMES = {"p50": 0.5, "p99": 12.34, "p999": 123.4, "max": 200.0}
RESULT = Result(
    rate=30_000.0,
    sent=100,
    acked=100,
    delivered=100,
    lost=0,
    reordered=0,
    duplicated=0,
    phantom=0,
    puback=TIMES,
    delivery=TIMES,
    cpu={"gateway": 0.00154, "load": 0.0001},
    seconds=0.002,
    others=0.0001,
    frames=10,
)
