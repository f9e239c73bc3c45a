"""The lake: each row of the log once, whatever is repeated; dates by event time; schemas that grow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from iotsphere.drivers.spark.jobs.lake import JOB, distinct, lake_in, marked, transform, write, write_unread
from iotsphere.drivers.spark.schema import ARROW_SCHEMA
from iotsphere.drivers.spark.sinks.delta import DeltaLake
from iotsphere.drivers.spark.sinks.upkeep import Upkeep
from iotsphere.drivers.spark.splits import Losses
from iotsphere.drivers.spark.unread import Unread, reading
from iotsphere.entities.errors import RequestInvalid
from iotsphere.spark import open_ranges, telemetry
from tests.support.readings import SCHEMA, make
from tests.support.telemetry import fill_sqlite

from .lakes import content, data_files, frame, query, run_to

pytestmark = pytest.mark.timeout(600)  # the first of them starts Spark
FLEET = make(readings=12_000, devices=10, period_s=600, seed=5)  # 200 messages a device: a day and a third
IN_ORDER = [(name, "ascending") for name in ("partition", "offset", "metric", "sample")]


def test_the_made_up_rows_have_the_schema_of_the_readings() -> None:
    assert SCHEMA == ARROW_SCHEMA


def test_the_lake_holds_what_the_log_holds(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "a lake"
    counts = write(transform(frame(spark, FLEET, tmp_path / "log")), run_to(lake), 0)
    assert counts == {"rows": len(FLEET.rows), "known": 0, "files": counts["files"]}
    held = content(lake)
    assert held.drop_columns(["date"]).cast(SCHEMA).equals(FLEET.rows.sort_by(IN_ORDER))
    assert query(lake, "SELECT DISTINCT date = event_time::DATE FROM lake") == [(True,)]
    assert {path.split("/")[0] for path in data_files(lake)} == {"date=2026-03-01", "date=2026-03-02"}


def test_statistics_let_readers_skip_files(spark: SparkSession, tmp_path: Path) -> None:
    write(transform(frame(spark, FLEET, tmp_path / "log")), run_to(tmp_path / "lake"), 0)
    facts = pa.table(DeltaTable(str(tmp_path / "lake")).get_add_actions(flatten=True)).to_pylist()
    for fact in facts:
        rows = pa.parquet.read_table(tmp_path / "lake" / fact["path"], partitioning=None)
        assert fact["num_records"] == len(rows)
        for name in ("device_id", "event_time", "offset", "value"):
            ends = pa.compute.min_max(rows[name]).as_py()
            assert fact[f"min.{name}"] <= ends["min"]
            assert ends["max"] <= fact[f"max.{name}"]
            assert fact[f"null_count.{name}"] == rows[name].null_count


@pytest.mark.parametrize(("application", "batch"), [("app", 0), ("app", 7), ("a new checkpoint", 0)])
def test_a_batch_that_comes_again_changes_nothing(
    spark: SparkSession, tmp_path: Path, application: str, batch: int
) -> None:
    rows = transform(frame(spark, FLEET, tmp_path / "log"))
    write(rows, run_to(tmp_path / "lake"), 0)
    before, files = content(tmp_path / "lake"), data_files(tmp_path / "lake")
    DeltaLake(tmp_path / "lake")
    counts = write(rows, run_to(tmp_path / "lake", application), batch)
    assert counts == {"rows": 0, "known": len(FLEET.rows), "files": 0}
    assert content(tmp_path / "lake").equals(before)
    assert data_files(tmp_path / "lake") == files


def test_an_old_batch_number_with_new_rows_is_not_skipped(spark: SparkSession, tmp_path: Path) -> None:
    """A checkpoint that was restored from a copy numbers its batches anew, with other rows in them."""
    half = len(FLEET.rows) // 2
    first, whole = FLEET.rows.slice(0, half), FLEET.rows
    write(transform(frame(spark, first, tmp_path / "first")), run_to(tmp_path / "lake"), 9)
    counts = write(transform(frame(spark, whole, tmp_path / "whole")), run_to(tmp_path / "lake"), 9)
    assert (counts["rows"], counts["known"]) == (len(whole) - half, half)
    assert content(tmp_path / "lake").drop_columns(["date"]).cast(SCHEMA).equals(whole.sort_by(IN_ORDER))


def test_a_range_in_the_middle_can_be_filled_in(spark: SparkSession, tmp_path: Path) -> None:
    third = len(FLEET.rows) // 3
    rows = [FLEET.rows.slice(number * third, third if number < 2 else None) for number in range(3)]
    for number in (0, 2, 1):
        counts = write(transform(frame(spark, rows[number], tmp_path / str(number))), run_to(tmp_path / "lake"), number)
        assert (counts["rows"], counts["known"]) == (len(rows[number]), 0)
    assert content(tmp_path / "lake").drop_columns(["date"]).cast(SCHEMA).equals(FLEET.rows.sort_by(IN_ORDER))


def test_two_writers_of_the_same_rows_write_them_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = transform(frame(spark, FLEET, tmp_path / "log"))
    lakes = [DeltaLake(tmp_path / "lake") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(lambda lake: lake.append(rows, "app", 3), lakes))
    assert sorted(count["rows"] for count in counts) == [0, len(FLEET.rows)]
    assert len(content(tmp_path / "lake")) == len(FLEET.rows)
    held = {path.removeprefix(f"{tmp_path}/lake/") for path in DeltaTable(str(tmp_path / "lake")).file_uris()}
    assert data_files(tmp_path / "lake") == held


def test_a_log_that_was_made_anew_uses_old_offsets_again(spark: SparkSession, tmp_path: Path) -> None:
    other = make(readings=6_000, devices=10, period_s=600, seed=6)
    write(transform(frame(spark, FLEET, tmp_path / "old")), run_to(tmp_path / "lake"), 0)
    counts = write(transform(frame(spark, other, tmp_path / "new")), run_to(tmp_path / "lake"), 1)
    assert (counts["rows"], counts["known"]) == (len(other.rows), 0)
    assert len(content(tmp_path / "lake")) == len(FLEET.rows) + len(other.rows)


def test_a_new_column_is_added_and_older_files_stay_readable(spark: SparkSession, tmp_path: Path) -> None:
    half = len(FLEET.rows) // 2
    old, new = FLEET.rows.slice(0, half), FLEET.rows.slice(half)
    write(transform(frame(spark, old, tmp_path / "old")), run_to(tmp_path / "lake"), 0)
    grown = transform(frame(spark, new, tmp_path / "new")).withColumn("site", F.lit("Kiel"))
    write(grown, run_to(tmp_path / "lake"), 1)
    DeltaLake(tmp_path / "lake").append(grown.drop("site").where("false"), "an older job", 0)
    assert query(tmp_path / "lake", "SELECT site, count(*) FROM lake GROUP BY site ORDER BY site") == [
        ("Kiel", len(new)),
        (None, len(old)),
    ]


def test_a_column_of_another_type_is_refused_with_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    rows = transform(frame(spark, FLEET, tmp_path / "log"))
    write(rows, run_to(tmp_path / "lake"), 0)
    with pytest.raises(
        RequestInvalid, match=r"column sample is .*long.* in the readings and .*integer.*another folder"
    ):
        write(rows.withColumn("sample", F.col("sample").cast("long")), run_to(tmp_path / "lake"), 1)
    assert len(content(tmp_path / "lake")) == len(FLEET.rows)


FOREIGN = {
    "partitioned by nothing, not by date": (pa.table({"a": [1, 2], "b": ["x", "y"]}), []),
    "partitioned by a, not by date": (pa.table({"a": [1, 2], "date": [date(2026, 1, 1)] * 2}), ["a"]),
    "its column date holds no dates": (pa.table({"device_id": ["x"], "date": ["2026-01-01"]}), ["date"]),
    "it has no column domain": (pa.table({"device_id": ["x"], "date": [date(2026, 1, 1)]}), ["date"]),
}


@pytest.mark.parametrize("why", FOREIGN)
def test_a_table_of_another_tool_is_refused_and_left_as_it_is(tmp_path: Path, why: str) -> None:
    rows, by = FOREIGN[why]
    write_deltalake(str(tmp_path / "other"), rows, partition_by=by)
    before, lake = set((tmp_path / "other").rglob("*")), DeltaLake(tmp_path / "other")
    told = rf"other holds a Delta table of another tool \(.*{why}\): name another folder with --output"
    for step in (lake.look, lambda: lake.provide(SCHEMA), Upkeep(lake).run):
        with pytest.raises(RequestInvalid, match=told):
            step()
    assert set((tmp_path / "other").rglob("*")) == before


def test_a_commit_torn_by_a_power_cut_is_put_aside(spark: SparkSession, tmp_path: Path) -> None:
    half = len(FLEET.rows) // 2
    lake = tmp_path / "lake"
    write(transform(frame(spark, FLEET.rows.slice(0, half), tmp_path / "a")), run_to(lake), 0)
    second = transform(frame(spark, FLEET.rows.slice(half), tmp_path / "b"))
    write(second, run_to(lake), 1)
    newest = max((lake / "_delta_log").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:100])
    assert DeltaLake(lake).append(second, "app", 1)["rows"] == len(FLEET.rows) - half
    assert len(content(lake)) == len(FLEET.rows)


@pytest.mark.parametrize("left", ["nothing", "a torn commit"])
def test_a_lake_whose_creation_was_cut_off_is_created(spark: SparkSession, tmp_path: Path, left: str) -> None:
    log = tmp_path / "lake" / "_delta_log"
    log.mkdir(parents=True)
    if left == "a torn commit":
        (log / f"{0:020d}.json").write_bytes(b'{"protocol":')
    assert not DeltaLake(tmp_path / "lake").exists
    write(transform(frame(spark, FLEET, tmp_path / "a")), run_to(tmp_path / "lake"), 0)
    assert len(content(tmp_path / "lake")) == len(FLEET.rows)


def test_the_view_of_distinct_samples_has_the_first_of_each(spark: SparkSession, tmp_path: Path) -> None:
    write(transform(frame(spark, FLEET, tmp_path / "log")), run_to(tmp_path / "lake"), 0)
    rows = spark.read.parquet(str(tmp_path / "lake"))
    views = {"once": distinct(rows), "marked": marked(rows)}
    again = FLEET.faulty("duplicate")["message_id"].to_pylist()
    assert again
    assert views["once"].count() == views["marked"].count() - 6 * len(again)
    assert views["once"].select("message_id", "metric", "sample").distinct().count() == views["once"].count()
    (sql,) = query(
        tmp_path / "lake",
        """SELECT sum("offset") FROM (SELECT DISTINCT ON (message_id, metric, sample) "offset" FROM lake
           ORDER BY message_id, metric, sample, received_time, "partition", "offset")""",
    )
    assert views["once"].agg(F.sum("offset")).first()[0] == sql[0]  # type: ignore[index]
    flagged = views["marked"].where("array_contains(quality, 'duplicate')")
    assert {row[0] for row in flagged.select("message_id").collect()} == set(again)
    assert flagged.count() == 6 * len(again)


def test_two_devices_may_use_the_same_message_id(spark: SparkSession, tmp_path: Path) -> None:
    rows = frame(spark, FLEET, tmp_path / "log").limit(50)
    other = rows.withColumn("device_id", F.concat("device_id", F.lit("-b")))
    both = rows.unionByName(other)
    assert distinct(both).count() == 2 * distinct(rows).count()


def test_dates_do_not_depend_on_the_zone_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    rows = frame(spark, FLEET, tmp_path / "log")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    try:
        write(transform(rows), run_to(tmp_path / "lake"), 0)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    held = content(tmp_path / "lake")
    assert held.drop_columns(["date"]).cast(SCHEMA).equals(FLEET.rows.sort_by(IN_ORDER))
    assert set(held["date"].to_pylist()) == {date(2026, 3, 1), date(2026, 3, 2)}


def test_a_lake_that_is_not_there_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(RequestInvalid, match="iotsphere spark lake"):
        lake_in(tmp_path / "nothing").table()
    assert JOB.maintain is not None
    with pytest.raises(RequestInvalid, match="iotsphere spark lake"):
        JOB.maintain(run_to(tmp_path / "nothing"))


def test_workers_that_read_and_write_at_once_write_the_same(spark: SparkSession, tmp_path: Path) -> None:
    log, lake = fill_sqlite(tmp_path, 900), tmp_path / "lake"
    rows = transform(telemetry(spark, log=log))
    write(rows, run_to(tmp_path / "other"), 0)
    unread = Unread(telemetry(spark, log=log, rows="splits"), reading(open_ranges, log, Losses(True, "")))
    write(rows.where("offset <= 100"), run_to(lake), 0)
    counts = write_unread(unread, run_to(lake), 1)
    assert (counts["rows"], counts["known"]) == (500, 400)
    assert content(lake).equals(content(tmp_path / "other"))
    assert write_unread(unread, run_to(lake, "a new checkpoint"), 0) == {"rows": 0, "known": 900, "files": 0}
    assert write_unread(unread, run_to(tmp_path / "third"), 0)["rows"] == 900
    assert content(tmp_path / "third").equals(content(lake))
