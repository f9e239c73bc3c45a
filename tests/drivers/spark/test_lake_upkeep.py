"""The lake's upkeep: few files, sorted days, age limits, a short log; beside writers and readers. No Spark is needed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from iotsphere.drivers.spark.sinks.delta import DeltaLake, mend
from iotsphere.drivers.spark.sinks.parquet import DATE
from iotsphere.drivers.spark.sinks.upkeep import MANY, TIERS
from tests.support.readings import SCHEMA, Plan, make, pieces

from .lakes import DAY, SMALL, add, content, data_files, query, upkeep_of


def batches(number: int, plan: Plan = SMALL) -> Iterator[pa.Table]:
    whole = Plan(readings=plan.readings * number, devices=plan.devices, period_s=plan.period_s).clean
    return (piece.rows for piece in pieces(whole, plan.readings))


def age(folder: Path, hours: float) -> None:
    """Make the files of the table's folder look older than they are."""
    for path in folder.glob("date=*/*.parquet"):
        then = path.stat().st_mtime - hours * 3_600
        os.utime(path, (then, then))


@pytest.fixture
def lake(tmp_path: Path) -> DeltaLake:
    return DeltaLake(tmp_path / "lake")


def test_b29_small_files_are_joined_and_their_number_stays_bounded(lake: DeltaLake) -> None:
    """Each look leaves few files of a date, whatever number of batches came before it."""
    given = list(batches(60))
    upkeep = upkeep_of(lake)
    counts = []
    for number, rows in enumerate(given):
        add(lake, rows, number)
        if number % 10 == 9:
            upkeep.run(today=DAY)
            counts.append(len(lake.table().file_uris()))
    assert max(counts) < MANY, counts
    expected = pa.concat_tables(given)
    assert (
        content(lake.folder)
        .drop_columns([DATE])
        .cast(SCHEMA)
        .equals(expected.sort_by([(name, "ascending") for name in ("partition", "offset", "metric", "sample")]))
    )
    assert upkeep.run(today=DAY) == {}
    assert lake.table().transaction_version("app") == 59


def test_no_filter_hides_a_row_from_readers_that_skip_files(lake: DeltaLake) -> None:
    """Fresh, joined and sorted: what a reader gets who leaves out files by their statistics is what is in the rows."""
    texts = ["", "a" * 40, "a" * 32 + "\U0010ffff\U0010ffff", "ü" * 33, None]
    for number, rows in enumerate(batches(MANY + 1)):
        text = pa.array([texts[(index + number) % len(texts)] for index in range(len(rows))], pa.string())
        value = pa.array([float(index) if index % 9 else None for index in range(len(rows))])
        for name, column in (("value_text", text), ("value", value)):
            rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)  # noqa: PLW2901
        add(lake, rows, number)
    held = content(lake.folder)
    for day in (0, 1, 9):
        upkeep_of(lake).run(today=DAY + timedelta(days=day))
        for name in held.column_names:
            if pa.types.is_list(held.schema.field(name).type):
                continue
            for chosen in [one for one in pc.unique(held[name]).to_pylist() if one is not None][:7]:
                found = DeltaTable(str(lake.folder)).to_pyarrow_dataset().count_rows(filter=pc.field(name) == chosen)
                wanted = pc.sum(pc.equal(held[name], pa.scalar(chosen, held[name].type))).as_py()
                assert found == wanted, (name, chosen, day)
    query_of = "SELECT count(*) FROM lake WHERE sample = 0 AND message_id > '' AND skew_ms IS NOT NULL"
    assert query(lake.folder, query_of) == [(len(held),)]


def test_files_that_are_large_enough_are_left_alone(lake: DeltaLake) -> None:
    """A row is rewritten a few times at most: a tier is joined only when it has many files."""
    for number, rows in enumerate(batches(MANY - 1)):
        add(lake, rows, number)
    before = data_files(lake.folder)
    assert upkeep_of(lake).run(today=DAY) == {}
    assert data_files(lake.folder) == before
    assert list(TIERS) == sorted(TIERS)


def test_a_day_that_is_over_is_sorted_by_device_once(lake: DeltaLake) -> None:
    given = list(batches(4))
    for number, rows in enumerate(given):
        add(lake, rows, number)
    assert upkeep_of(lake).run(today=DAY + timedelta(days=1)) == {}
    assert upkeep_of(lake).run(today=DAY + timedelta(days=2)) == {"sorted": 1}
    (path,) = lake.table().file_uris()
    devices = pq.read_table(path.removeprefix("file://"), partitioning=None)["device_id"].to_pylist()
    assert devices == sorted(devices)
    assert len(devices) == sum(len(rows) for rows in given)
    assert upkeep_of(lake).run(today=DAY + timedelta(days=2)) == {}
    late = make(SMALL, seed=9, start=Plan().start)
    add(lake, late.rows, 4)
    assert upkeep_of(lake).run(today=DAY + timedelta(days=9)) == {"sorted": 1}
    assert len(content(lake.folder)) == len(devices) + len(late.rows)


def test_readings_that_are_too_old_are_removed_with_their_files(lake: DeltaLake) -> None:
    days = Plan(readings=2_400, devices=10, period_s=3_600 * 2).clean  # 40 messages a device: three days and a third
    add(lake, make(days).rows, 0)
    assert [day for (day,) in query(lake.folder, "SELECT DISTINCT date FROM lake ORDER BY 1")] == [
        DAY + timedelta(days=number) for number in range(4)
    ]
    counts = upkeep_of(lake, keep_days=2).run(today=DAY + timedelta(days=3))
    assert counts["removed"] == 1
    assert query(lake.folder, "SELECT min(date) FROM lake") == [(DAY + timedelta(days=1),)]
    assert lake.table().transaction_version("app") == 0


def test_files_of_killed_workers_are_removed_and_those_of_running_ones_are_not(lake: DeltaLake) -> None:
    first, second, third = batches(3)
    add(lake, first, 0)
    old = lake.folder / f"{DATE}={DAY}" / "left-by-a-killed-worker.parquet"
    pq.write_table(first, old)
    age(lake.folder, hours=25)  # the files of the table are that old, too
    running = lake.folder / f"{DATE}={DAY}" / "not-committed-yet.parquet"
    pq.write_table(second, running)
    add(lake, third, 1)
    assert len(content(lake.folder)) == len(first) + len(third)
    assert upkeep_of(lake).run(today=DAY) == {"vacuumed": 1}
    assert not old.exists()
    assert running.exists()
    assert len(content(lake.folder)) == len(first) + len(third)


def test_a_reader_that_opened_the_table_before_goes_on_reading(lake: DeltaLake) -> None:
    for number, rows in enumerate(batches(20)):
        add(lake, rows, number)
    reader = DeltaTable(str(lake.folder))
    before = reader.to_pyarrow_dataset()
    age(lake.folder, hours=48)
    assert upkeep_of(lake).run(today=DAY)["joined"] == 20
    assert upkeep_of(lake).run(today=DAY) == {}
    assert before.count_rows() == 12_000


def test_the_log_of_the_table_is_shortened_and_keeps_what_was_committed(lake: DeltaLake) -> None:
    given = list(batches(60))
    for number, rows in enumerate(given):
        add(lake, rows, number)
    log = lake.folder / "_delta_log"
    assert len(list(log.glob("*.json"))) == 61
    for path in log.glob("*.json"):
        then = time.time() - 2 * 86_400
        os.utime(path, (then, then))
    upkeep_of(lake).run(today=DAY)
    assert list(log.glob("*.checkpoint.parquet"))
    assert len(list(log.glob("*.json"))) < 10
    fresh = DeltaLake(lake.folder)
    assert fresh.table().transaction_version("app") == 59
    assert len(content(lake.folder)) == sum(len(rows) for rows in given)


def test_upkeep_beside_a_writer_and_readers_loses_nothing_and_shows_no_half(lake: DeltaLake) -> None:
    given = list(batches(40))
    size = len(given[0])
    add(lake, given[0], 0)

    def read() -> set[int]:
        """The numbers of rows that a reader saw; only whole batches can be seen."""
        return {len(content(lake.folder)) for _ in range(25)}

    def keep() -> None:
        upkeep = upkeep_of(DeltaLake(lake.folder), keep_days=30)
        for _ in range(10):
            upkeep.run(today=DAY)
            upkeep.run(today=DAY + timedelta(days=4))

    with ThreadPoolExecutor(3) as pool:
        seen, kept = pool.submit(read), pool.submit(keep)
        for number, rows in enumerate(given[1:], 1):
            add(lake, rows, number)
        kept.result()
    assert all(count % size == 0 for count in seen.result())
    assert len(content(lake.folder)) == sum(len(rows) for rows in given)
    assert len(pc.unique(content(lake.folder)["message_id"])) * 6 == len(content(lake.folder))


def test_only_a_torn_commit_is_put_aside(lake: DeltaLake, tmp_path: Path) -> None:
    add(lake, next(batches(1)), 0)
    log = lake.folder / "_delta_log"
    before = sorted(log.iterdir())
    mend(log)
    assert sorted(log.iterdir()) == before
    (log / f"{2:020d}.json").write_bytes(b"")
    mend(log)
    assert sorted(log.iterdir()) == [*before, log / f"{2:020d}.torn"]
    (tmp_path / "empty").mkdir()
    mend(tmp_path / "empty")
