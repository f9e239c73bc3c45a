"""Field cases A08 and A26 for alerts: a backlog raises none, and neither does a clock that is not believed."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from iotsphere.drivers.spark.jobs.anomaly import JOB, judged
from iotsphere.drivers.spark.memories import Memories
from iotsphere.entities.analytics.detector import DetectorRule

SECOND = 1_000_000
HOUR = 3_600
OLD = int(JOB.settings({})["old_s"]) * SECOND
RULE = DetectorRule(window=48, warm_up=16)
Row = tuple[str, int, float, int]


def table(rows: Iterable[Row]) -> pa.Table:
    """Rows of series, second measured, value, second received."""
    series, at, value, received = zip(*rows, strict=True)
    return pa.table(
        {
            "series": pa.array(series, pa.string()),
            "at": pa.array([second * SECOND for second in at], pa.int64()),
            "received": pa.array([second * SECOND for second in received], pa.int64()),
            "offset": pa.array(range(len(series)), pa.int64()),
            "sample": pa.array([0] * len(series), pa.int64()),
            "value": pa.array(value, pa.float64()),
        }
    )


def calm(series: str, start: int, length: int) -> list[Row]:
    return [(series, second, 20 + second * 7 % 10 / 10, second) for second in range(start, start + length)]


def test_a26_a_tracker_that_uploads_its_backlog_raises_nothing_and_live_ones_are_judged_as_before() -> None:
    now = 100 * HOUR
    known = [*calm("d/trk-01/speed", now - HOUR - 50, 50), *calm("d/trk-02/speed", now - 50, 50)]
    backlog: list[Row] = [("d/trk-01/speed", now - n, 500.0 if n % 7 else 20.0, now) for n in range(700, 3_500)]
    live: list[Row] = [("d/trk-02/speed", now + 1, 500.0, now + 1)]
    for uploaded in (backlog, backlog[::-1]):  # newest first, or oldest first
        memories = Memories()
        assert judged(memories, table(known), RULE, OLD).num_rows == 0
        found = judged(memories, table([*uploaded, *live]), RULE, OLD).to_pylist()
        assert [(row["device_id"], row["change"]) for row in found] == [("trk-02", "raised")]


def test_a26_an_alert_that_stands_is_not_cleared_by_old_news() -> None:
    memories = Memories()
    raising: list[Row] = [*calm("d/trk-01/speed", 0, 50), ("d/trk-01/speed", 50, 500.0, 50)]
    assert judged(memories, table(raising), RULE, OLD).num_rows == 1
    old = [(name, second, value, 5 * HOUR) for name, second, value, _ in calm("d/trk-01/speed", 51, 100)]
    assert judged(memories, table(old), RULE, OLD).num_rows == 0


def test_a08_a_clock_ahead_of_time_stops_no_alert_of_others() -> None:
    memories = Memories()
    ahead = [("d/wild/t", second + 300, value, second) for _, second, value, _ in calm("d/wild/t", 0, 60)]
    fleet = [*ahead, *calm("d/pow-02/t", 0, 60), ("d/pow-02/t", 60, 90.0, 60)]
    found = judged(memories, table(fleet), RULE, OLD).to_pylist()
    assert [(row["device_id"], row["change"], row["value"]) for row in found] == [("pow-02", "raised", 90.0)]
