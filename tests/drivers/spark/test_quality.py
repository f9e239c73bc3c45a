"""Findings about telemetry: the planted faults are found, and nothing else; the same as DuckDB finds."""

from __future__ import annotations

import csv
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from iotsphere.drivers.spark import findings
from iotsphere.drivers.spark.jobs import Run
from iotsphere.drivers.spark.jobs.quality import JOB, cell, judged, limits_of, ranges_of, save
from iotsphere.drivers.spark.schema import SPARK_SCHEMA
from iotsphere.drivers.spark.window import kept_in
from iotsphere.entities.errors import RequestInvalid
from tests.support.readings import SCHEMA, Fleet, Plan, make

from .lakes import frame

pytestmark = pytest.mark.timeout(600)  # the first of them starts Spark
PLAN = Plan(
    readings=9_000,
    devices=10,
    silent=0.03,
    duplicate=0.02,
    metrics=("temperature", "battery", "online"),
    seed=11,
    drift_ppm=400.0,
)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return make(PLAN)


@pytest.fixture(scope="module")
def rows(spark: SparkSession, fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    return frame(spark, fleet, tmp_path_factory.mktemp("readings")).cache()


def quality_run(folder: Path, *, following: bool = False, **options: Any) -> Run:
    settings = {option.name: option.default for option in JOB.options} | options
    return Run(settings, "app", following, folder, database="")


def sql(fleet: Fleet, text: str) -> set[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", fleet.rows)
        return set(connection.execute(text).fetchall())


def test_gaps_are_those_that_duckdb_finds_and_all_silences_are_in_them(rows: DataFrame, fleet: Fleet) -> None:
    found = findings.gaps(rows, 3.0).toArrow()
    expected = sql(
        fleet,
        """WITH once AS (SELECT DISTINCT ON (message_id, metric, sample) * FROM rows
                         WHERE NOT list_contains(quality, 'clock_untrusted')),
                steps AS (SELECT device_id, metric, event_time AS until,
                                 lag(event_time) OVER (PARTITION BY device_id, metric ORDER BY event_time) AS since
                          FROM once),
                usual AS (SELECT device_id, metric, median(epoch_us(until) - epoch_us(since)) AS step
                          FROM steps WHERE since < until GROUP BY ALL)
           SELECT device_id, metric, epoch_us(since), epoch_us(until) FROM steps JOIN usual USING (device_id, metric)
           WHERE since < until AND epoch_us(until) - epoch_us(since) > 3 * step""",
    )
    times = [found[name].cast(pa.int64()).to_pylist() for name in ("start", "end")]
    spans = list(zip(found["device_id"].to_pylist(), found["metric"].to_pylist(), *times, strict=True))
    assert set(spans) == expected
    assert len(spans) == len(expected) > 10
    silent = fleet.faulty("silent").select(["device_id", "event_time"]).to_pylist()
    found_in = [
        any(
            row["device_id"] == each["device_id"] and row["start"] < each["event_time"] < row["end"]
            for row in found.to_pylist()
        )
        for each in silent
    ]
    # All but what is left of bursts that the beginning or the end of the time cut short.
    assert sum(found_in) > len(found_in) * 0.9
    assert min(found["missed"].to_pylist()) >= 2


def test_what_the_log_lost_is_found_by_its_offsets(rows: DataFrame, fleet: Fleet) -> None:
    found = findings.holes(rows).toArrow().to_pylist()
    assert sum(hole["count"] for hole in found) == len(fleet.faulty("lost"))
    assert all(hole["last"] - hole["first"] + 1 == hole["count"] for hole in found)
    held = set(zip(fleet.rows["partition"].to_pylist(), fleet.rows["offset"].to_pylist(), strict=True))
    assert not held & {(h["partition"], o) for h in found for o in range(h["first"], h["last"] + 1)}


def test_messages_that_came_twice_are_counted_per_device(rows: DataFrame, fleet: Fleet) -> None:
    found = {
        row["device_id"]: (row["repeated"], row["copies"])
        for row in findings.senders(rows).where("repeated > 0").collect()
    }
    planted = Counter(fleet.faulty("duplicate")["device_id"].to_pylist())
    assert found == {device: (count, count) for device, count in planted.items()}


def test_clocks_are_judged_by_their_fastest_messages(rows: DataFrame, fleet: Fleet) -> None:
    found = {row["device_id"]: row for row in findings.senders(rows).collect()}
    assert len(found) == PLAN.devices
    for fault, column in (("untrusted", "untrusted"), ("late", "late")):
        planted = Counter(fleet.faulty(fault)["device_id"].to_pylist())
        assert {device: row[column] for device, row in found.items() if row[column]} == planted
    assert found["meter-00000"]["drift_ppm"] == pytest.approx(400, rel=0.15)
    assert all(abs(row["drift_ppm"]) < 50 for device, row in found.items() if device != "meter-00000")
    expected = sql(
        fleet,
        """WITH once AS (SELECT DISTINCT ON (message_id) * FROM rows ORDER BY message_id, received_time),
                good AS (SELECT * FROM once WHERE NOT list_contains(quality, 'clock_untrusted')),
                hours AS (SELECT device_id, max(skew_ms) AS fastest FROM good
                          GROUP BY device_id, date_trunc('hour', received_time)),
                clocks AS (SELECT device_id, median(fastest) AS skew FROM hours GROUP BY 1)
           SELECT device_id, any_value(skew), any_value(skew) - median(skew_ms) FROM good JOIN clocks USING (device_id)
           GROUP BY 1""",
    )
    assert {(device, row["skew_ms"], row["delay_ms"]) for device, row in found.items()} == expected


def test_what_waits_in_a_device_is_told_from_a_clock_that_is_behind(spark: SparkSession) -> None:
    """Six devices for three hours: right; 90 s behind; 90 s ahead; sending every half hour; the same, 90 s behind; and one
    that was away for its first hour, which it sends before all else."""

    def skew(device: str, minute: int) -> tuple[float, float]:
        waits = 29 - minute % 30 if "bundles" in device else max(60 - minute, 0) if device == "away" else 0
        wrong = 90 if "ahead" in device else -90 if "behind" in device else 0
        return waits * 60, wrong

    made: list[tuple[Any, ...]] = []
    for device in ("right", "behind", "ahead", "bundles", "bundles behind", "away"):
        for minute in range(180):
            waits, wrong = skew(device, minute)
            measured = NOON + timedelta(minutes=minute)
            came, said = measured + timedelta(seconds=waits), measured + timedelta(seconds=wrong)
            off = (said - came) // timedelta(milliseconds=1)
            made.append(
                ("d", device, "t", 1.0, None, None, None, said, came, off, [], f"{device}{minute}", 0, minute, 0)
            )
    found = findings.findings(spark.createDataFrame(made, SPARK_SCHEMA)).where("kind IN ('clock_skew', 'delayed')")
    assert {(row["device_id"], row["kind"], row["value"]) for row in found.collect()} == {
        ("behind", "clock_skew", -90_000.0),
        ("ahead", "clock_skew", 90_000.0),
        ("bundles", "delayed", 14.5 * 60_000),
        ("bundles behind", "clock_skew", -90_000.0),
        ("bundles behind", "delayed", 14.5 * 60_000),
    }


def test_values_out_of_range_by_metric_and_by_unit(rows: DataFrame, fleet: Fleet) -> None:
    found = {row["device_id"]: row for row in findings.out_of_range(rows, {"temperature": (-40, 85)}).collect()}
    planted = Counter(fleet.faulty("out_of_range")["device_id"].to_pylist())
    assert {device: row["count"] for device, row in found.items()} == planted
    assert {row["worst"] for row in found.values()} == {9_999.0}
    assert findings.out_of_range(rows).count() == 0


def readings(spark: SparkSession, *given: tuple[str, float, Any, str | None]) -> DataFrame:
    """Readings of one device: metric, minute, value, unit."""
    made: list[tuple[Any, ...]] = []
    for offset, (metric, minute, value, unit) in enumerate(given):
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        text, truth = (value if isinstance(value, kind) else None for kind in (str, bool))
        at = NOON + timedelta(minutes=minute)
        made.append(("d", "dev", metric, number, text, truth, unit, at, at, 0, [], f"m{offset}", 0, offset, 0))
    return spark.createDataFrame(made, SPARK_SCHEMA)


def test_who_sends_as_fast_as_it_can_has_no_gap_of_less_than_a_second(spark: SparkSession) -> None:
    """A step of 60 ms; then 300 ms, and 5.46 s, of silence."""
    seconds = (0, 0.06, 0.12, 0.18, 0.48, 0.54, 6.0)
    rows = readings(spark, *(("t", second / 60, 1, None) for second in seconds))
    assert [
        round(row["step"], 2) for row in findings.gaps(rows).selectExpr("double(end) - double(start) AS step").collect()
    ] == [5.46]
    (one,) = findings.findings(rows).where("kind = 'gap'").collect()
    assert (one["detail"], one["count"]) == ("usually every 0.060 s", 90)
    assert findings.gaps(rows, least_s=0.1).count() == 2


def test_a_metric_that_changes_its_type_or_unit_and_one_that_is_new(spark: SparkSession) -> None:
    rows = readings(
        spark,
        ("t", 0, 21.5, "Cel"), ("t", 1, 22.0, "Cel"), ("t", 2, "22,5", "Cel"), ("t", 3, 72.5, "[degF]"),
        ("t", 4, 21.0, None), ("t", 4, None, None), ("b", 0, True, None), ("late", 90, 1, None), ("soon", 30, 1, None),
        ("h", 0, 104, "%RH"), ("h", 1, 50, "%RH"), ("t", 5, -300, "Cel"),
    )  # fmt: skip
    changed = {(row["metric"], row["what"]): row for row in findings.changes(rows).collect()}
    assert {key: (row["count"], row["before"], row["after"]) for key, row in changed.items()} == {
        ("t", "type"): (2, "number", "text"),
        ("t", "unit"): (2, "Cel", "[degF]"),
    }
    assert changed["t", "type"]["at"].astimezone(UTC) == NOON + timedelta(minutes=2)
    assert [row["metric"] for row in findings.new_metrics(rows, 3_600).collect()] == ["late"]
    impossible = {row["metric"]: (row["count"], row["worst"]) for row in findings.out_of_range(rows).collect()}
    assert impossible == {"h": (1, 104.0), "t": (1, -300.0)}


@pytest.mark.timeout(600)
def test_all_planted_faults_are_in_the_findings_and_nothing_else(
    spark: SparkSession, fleet: Fleet, rows: DataFrame, tmp_path: Path
) -> None:
    run = quality_run(tmp_path, ranges="temperature=-40..85", skew_ms=5_000.0)
    counts = JOB.write(JOB.transform(rows, run), run, 0)
    found = pq.read_table(tmp_path / "findings.parquet")
    kinds = Counter(found["kind"].to_pylist())
    assert counts == {"findings": kinds.total(), **kinds}
    assert kinds.keys() == {"gap", "hole", "duplicate", "late", "clock_untrusted", "clock_drift", "out_of_range"}
    sums: Counter[str] = Counter()
    for kind, count in zip(found["kind"].to_pylist(), found["count"].to_pylist(), strict=True):
        sums[kind] += count
    planted = {fault: len(fleet.faulty(fault)) for fault in ("late", "duplicate", "out_of_range", "untrusted", "lost")}
    assert {name: sums[name] for name in ("late", "duplicate", "out_of_range")} == {
        name: planted[name] for name in ("late", "duplicate", "out_of_range")
    }
    assert (sums["clock_untrusted"], sums["hole"]) == (planted["untrusted"], planted["lost"])
    assert spark.sparkContext._jsc.getPersistentRDDs().size() <= 1  # the fixture's own


def test_what_does_not_fit_is_counted_and_no_kind_hides_another(rows: DataFrame) -> None:
    whole, every = judged(rows, findings.USUAL)
    assert "left_out" not in every
    kinds = set(every)
    assert every["gap"] > len(kinds)
    some, counts = judged(rows, findings.USUAL, len(kinds) + 2)
    assert counts == {**every, "left_out": whole.num_rows - len(kinds) - 2}
    assert set(some["kind"].to_pylist()) == kinds
    listed = whole.to_pylist()
    assert [row for row in listed if row in some.to_pylist()] == some.to_pylist()  # in the same order


def test_a_stream_looks_at_the_same_readings_as_a_single_pass(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    """Batch by batch, one of them twice; each reading counts once. What is found is a function of the readings."""
    run = quality_run(tmp_path / "out", following=True, days=0.0, every_s=1e9)
    size = -(-fleet.rows.num_rows // 2)
    for number in (0, 0, 1):
        part = frame(spark, fleet.rows.slice(number * size, size), tmp_path / f"part-{number}")
        JOB.write(JOB.transform(part, run), run, number)
    order = [(name, "ascending") for name in ("partition", "offset", "metric", "sample")]
    held = kept_in(run.output, 0.0).readings(spark).toArrow().cast(SCHEMA).sort_by(order)
    assert held.equals(fleet.rows.sort_by(order))
    assert kept_in(tmp_path / "nothing", 0.0).is_due(0) is False


def test_findings_are_written_for_spreadsheets_without_formulas(tmp_path: Path) -> None:
    names = ["kind", "device_id", "count"]
    save(pa.table([["gap", "new_metric"], ["=HYPERLINK(1)", "dev"], [1, -2]], names), tmp_path)
    with (tmp_path / "findings.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [names, ["gap", "'=HYPERLINK(1)", "1"], ["new_metric", "dev", "-2"]]
    assert pc.sum(pq.read_table(tmp_path / "findings.parquet")["count"]).as_py() == -1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["findings.csv", "findings.parquet"]
    assert [cell(value) for value in ("a=b", "@x", None, -1)] == ["a=b", "'@x", None, -1]


def test_ranges_are_read_and_nonsense_is_refused(tmp_path: Path) -> None:
    assert ranges_of("temperature=-40..85, battery=5..,x=..3") == {
        "temperature": (-40.0, 85.0), "battery": (5.0, None), "x": (None, 3.0),
    }  # fmt: skip
    assert limits_of(quality_run(tmp_path).options) == findings.USUAL
    for text in ("temperature", "=1..2", "temperature=1-2", "temperature=a..b", "temperature=5..1", "t=nan..1"):
        with pytest.raises(RequestInvalid, match=r"METRIC=LOW\.\.HIGH"):
            ranges_of(text)
