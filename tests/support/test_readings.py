"""The made-up fleet is what its truth says."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from .readings import NUMBERS, OUT_OF_RANGE, SCHEMA, Plan, make, pieces


def ids(table: pa.Table) -> set[str]:
    return set(table["message_id"].to_pylist())


def test_the_same_plan_makes_the_same_fleet_and_another_seed_another() -> None:
    assert make(seed=3).rows.equals(make(seed=3).rows)
    assert make(seed=3).truth.equals(make(seed=3).truth)
    assert ids(make(seed=3).rows).isdisjoint(ids(make(seed=4).rows))


def test_a_clean_fleet_has_a_row_for_each_sample_and_no_fault() -> None:
    fleet = make(Plan(readings=1_200, devices=10).clean)
    assert fleet.rows.schema == SCHEMA
    fleet.rows.validate(full=True)
    assert len(fleet.rows) == 1_200
    assert len(fleet.truth) == 0
    assert len(ids(fleet.rows)) == 200
    rows = fleet.rows.to_pylist()
    assert len({(row["partition"], row["offset"]) for row in rows}) == 200
    assert all((row["value"] is not None) == (row["metric"] in NUMBERS) for row in rows)
    assert all((row["value_text"] is not None) == (row["metric"] == "status") for row in rows)
    assert all((row["value_bool"] is not None) == (row["metric"] == "online") for row in rows)
    assert all(abs(row["skew_ms"]) <= 1_000 for row in rows)


def test_each_fault_is_in_the_rows_as_the_truth_says() -> None:
    fleet = make(readings=60_000)
    rows, width = fleet.rows, 6
    assert set(fleet.truth["fault"].to_pylist()) == {
        "late", "duplicate", "untrusted", "out_of_range", "silent", "lost"
    }  # fmt: skip
    marks = rows.select(["message_id", "quality"]).to_pylist()
    marked = {
        flag: {row["message_id"] for row in marks if flag in row["quality"]} for flag in ("late", "clock_untrusted")
    }
    assert marked["late"] == ids(fleet.faulty("late"))
    assert marked["clock_untrusted"] == ids(fleet.faulty("untrusted"))
    counts = pc.value_counts(rows["message_id"]).to_pylist()
    assert {each["values"] for each in counts if each["counts"] == 2 * width} == ids(fleet.faulty("duplicate"))
    assert {each["counts"] for each in counts} == {width, 2 * width}
    assert ids(rows.filter(pc.equal(rows["value"], OUT_OF_RANGE))) == ids(fleet.faulty("out_of_range"))
    assert not ids(rows) & (ids(fleet.faulty("silent")) | ids(fleet.faulty("lost")))
    places = {(row["partition"], row["offset"]) for row in rows.select(["partition", "offset"]).to_pylist()}
    last: dict[int, int] = {}
    for partition, offset in places:
        last[partition] = max(offset, last.get(partition, 0))
    assert sum(last.values()) - len(places) == len(fleet.faulty("lost"))


def test_pieces_go_on_in_time_and_offset() -> None:
    plan = Plan(readings=3_000, devices=5).clean
    made = [fleet.rows for fleet in pieces(plan, rows=1_000)]
    assert [len(rows) for rows in made] == [1_020, 1_020, 1_020]
    for before, after in pairwise(made):
        assert pc.max(before["received_time"]).as_py() < pc.max(after["received_time"]).as_py()
    whole = pa.concat_tables(made)
    places = {(row["partition"], row["offset"]) for row in whole.select(["partition", "offset"]).to_pylist()}
    assert len(places) == len(whole) // 6 == len(ids(whole))
