"""What the page says of growth follows from the figures."""

from __future__ import annotations

from bench.spark_cost import Cost
from bench.spark_growth import Point, table


def test_the_steepest_step_of_each_job_is_told_whatever_the_smallest_batch_cost() -> None:
    """A first batch that pays for the start of everything makes all others look cheap."""
    rollup = [(100_000, 2.0, 3.0), (1_000_000, 6.0, 11.0), (3_000_000, 16.0, 30.0), (10_000_000, 90.0, 97.0)]
    lake = [(100_000, 2.0, 2.0), (1_000_000, 10.0, 18.0)]
    points = [
        Point(job, rows, Cost(wall, cpu), 1)
        for job, costs in (("rollup", rollup), ("lake", lake))
        for rows, wall, cpu in costs
    ]
    told = [note for note in table(points).notes if note.startswith("The steepest")]
    assert told == [
        "The steepest step of rollup, from 3,000,000 to 10,000,000 readings: 3.3 times as many took 5.6 times the seconds, "
        "more than linear, and 3.2 times the CPU.",
        "The steepest step of lake, from 100,000 to 1,000,000 readings: 10.0 times as many took 5.0 times the seconds, "
        "no more than linear, and 9.0 times the CPU.",
    ]
    assert not [note for note in table(points[:1]).notes if "steepest" in note], "one size is no step"
