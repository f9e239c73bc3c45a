"""Copies of messages in a lake: marked once their date is over, and nothing else is. No Spark is needed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from iotsphere.drivers.spark.sinks import upkeep
from iotsphere.drivers.spark.sinks.delta import DeltaLake
from tests.support.readings import SCHEMA, Plan, make

from .lakes import DAY, SMALL, add, content, query, upkeep_of

MARKED = """SELECT device_id, message_id, metric, "offset" FROM lake WHERE list_contains(quality, 'duplicate') ORDER BY ALL"""


@pytest.fixture
def lake(tmp_path: Path) -> DeltaLake:
    return DeltaLake(tmp_path / "lake")


def moved(rows: pa.Table, by: int = 1_000_000) -> pa.Table:
    """The same messages at other places of the log."""
    name = "offset"
    return rows.set_column(rows.column_names.index(name), rows.schema.field(name), pc.add(rows[name], by))


def readings(*given: tuple[int, str, str, int]) -> pa.Table:
    """Readings of a device: the offset, message and metric of each, and the second at which it was received."""
    start = Plan().start
    row: dict[str, Any] = {"domain": "iotsphere", "device_id": "d", "value": 1.0, "event_time": start, "partition": 0}
    rows = [
        row | {"offset": offset, "message_id": message, "metric": metric, "sample": 0, "quality": []}
        | {"received_time": start + timedelta(seconds=second)}
        for offset, message, metric, second in given
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, SCHEMA)


def test_messages_that_were_sent_twice_are_marked_when_their_day_is_over(lake: DeltaLake) -> None:
    plan = Plan(readings=3_000, devices=5, period_s=10, duplicate=0.05, metrics=("temperature", "battery"), seed=4)
    fleet = make(plan)
    size = -(-len(fleet.rows) // 3)
    for number in range(3):
        add(lake, fleet.rows.slice(number * size, size), number)
    copies = """SELECT device_id, message_id, metric, "offset" FROM (SELECT *, row_number() OVER (
            PARTITION BY device_id, message_id, metric, sample ORDER BY received_time, "partition", "offset") AS copy
        FROM lake) WHERE copy > 1 ORDER BY ALL"""
    expected = query(lake.folder, copies)
    assert len(expected) > 100
    before = content(lake.folder).drop_columns(["quality"])
    assert upkeep_of(lake).run(today=DAY + timedelta(days=1)) == {}
    counts = upkeep_of(lake).run(today=DAY + timedelta(days=2))
    assert counts == {"sorted": 1, "marked": len(expected)}
    assert query(lake.folder, MARKED) == expected
    assert content(lake.folder).drop_columns(["quality"]).equals(before)
    several = query(lake.folder, "SELECT DISTINCT quality FROM lake WHERE len(quality) > 1")
    assert all(list(words) == sorted(set(words)) for (words,) in several)
    add(lake, moved(fleet.rows), 3)
    assert upkeep_of(lake).run(today=DAY + timedelta(days=3)) == {"sorted": 1, "marked": len(fleet.rows)}
    assert upkeep_of(lake).run(today=DAY + timedelta(days=3)) == {}


def test_a_copy_that_comes_days_later_is_marked_although_its_day_hardly_grew(lake: DeltaLake) -> None:
    fleet = make(SMALL)
    add(lake, fleet.rows, 0)
    running = upkeep_of(lake)
    assert running.run(today=DAY + timedelta(days=2)) == {"sorted": 1}
    again = moved(fleet.rows).slice(0, 3)
    add(lake, again, 1)
    assert running.run(today=DAY + timedelta(days=3)) == {}  # it looked a moment ago: not again at once
    assert upkeep_of(lake).run(today=DAY + timedelta(days=3)) == {"marked": 3}
    marked = query(lake.folder, """SELECT "offset" FROM lake WHERE list_contains(quality, 'duplicate') ORDER BY 1""")
    assert [offset for (offset,) in marked] == sorted(again["offset"].to_pylist())
    assert upkeep_of(lake).run(today=DAY + timedelta(days=3)) == {}


def test_a_log_that_was_made_anew_gives_its_offsets_again_and_they_say_nothing(lake: DeltaLake) -> None:
    """Of ten messages, and six of a later log at the same offsets, one is a copy."""
    add(lake, readings(*((n, f"old{n}", "t", 0) for n in range(10))), 0)
    add(lake, readings(*((n, f"new{1 if n == 5 else n}", "t", 3_600) for n in range(6))), 1)
    assert upkeep_of(lake).run(today=DAY + timedelta(days=2)) == {"sorted": 1, "marked": 1}
    assert query(lake.folder, MARKED) == [("d", "new1", "t", 5)]


def test_of_messages_whose_very_offsets_come_again_the_later_ones_are_copies(lake: DeltaLake) -> None:
    for number in range(2):
        add(lake, readings(*((n, f"m{n}", "t", number * 3_600) for n in range(3))), number)
    assert upkeep_of(lake).run(today=DAY + timedelta(days=2)) == {"sorted": 1, "marked": 3}
    marked = "SELECT DISTINCT received_time FROM lake WHERE list_contains(quality, 'duplicate')"
    assert query(lake.folder, marked) == [(Plan().start + timedelta(hours=1),)]


def test_a_message_that_is_a_copy_in_part_is_marked_in_that_part(lake: DeltaLake) -> None:
    add(lake, readings((1, "m", "a", 0), (1, "m", "b", 0), (7, "m", "a", 1), (7, "m", "c", 1)), 0)
    assert upkeep_of(lake).run(today=DAY + timedelta(days=2)) == {"sorted": 1, "marked": 1}
    assert query(lake.folder, MARKED) == [("d", "m", "a", 7)]


def test_any_number_of_copies_of_any_number_of_tenants_is_marked(lake: DeltaLake) -> None:
    """A bridge that replays a day: 30,000 copies, and quotes in ids."""
    fleet = make(Plan(readings=30_000, devices=300, period_s=60).clean)
    tenants = pc.binary_join_element_wise("it's ", fleet.rows["device_id"], "")
    at = fleet.rows.column_names.index("domain")
    rows = fleet.rows.set_column(at, fleet.rows.schema.field("domain"), tenants)
    add(lake, rows, 0)
    add(lake, moved(rows), 1)
    assert upkeep_of(lake).run(today=DAY + timedelta(days=2)) == {"sorted": 1, "marked": len(rows)}
    assert query(lake.folder, "SELECT count(*) FROM lake WHERE list_contains(quality, 'duplicate')") == [(len(rows),)]


@pytest.mark.parametrize("step", ["merge", "optimize"])
def test_what_gave_way_to_a_writer_is_done_the_next_time(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Loses:
        def __getattr__(self, name: str) -> Any:
            raise CommitFailedError("somebody was faster")

    add(lake, readings((1, "m", "t", 0), (2, "m", "t", 1)), 0)
    running = upkeep_of(lake)
    monkeypatch.setattr(upkeep, "PAUSE_S", 0.0)
    with monkeypatch.context() as busy:
        busy.setattr(DeltaTable, step, property(lambda _: Loses().step))
        first = running.run(today=DAY + timedelta(days=2))
    found = running.run(today=DAY + timedelta(days=2))
    marked = {"marked": 1}
    assert (first, found) == (({}, {"sorted": 1} | marked) if step == "merge" else (marked, {"sorted": 1}))
    assert query(lake.folder, MARKED) == [("d", "m", "t", 2)]


def test_rows_of_another_origin_without_an_id_are_no_copies_and_stop_nothing(lake: DeltaLake) -> None:
    bare = pa.schema([field.with_nullable(True) for field in SCHEMA])
    rows = readings((1, "m", "t", 0), (2, "x", "t", 1), (3, "x", "t", 2), (4, "m", "t", 3)).cast(bare)
    ids = pa.array(["m", None, None, "m"])
    add(lake, rows.set_column(rows.column_names.index("message_id"), bare.field("message_id"), ids), 0)
    assert upkeep_of(lake).run(today=DAY + timedelta(days=2)) == {"sorted": 1, "marked": 1}
    assert query(lake.folder, MARKED) == [("d", "m", "t", 4)]
