"""The further parts find planted faults, and work out their figures rightly."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import catch_up, fan_out, filters, growth, scale_out, soak, spark
from bench.bitmaps import Missing
from bench.fan_out import Broadcast
from bench.growth import Point
from bench.programs import BenchFailed
from bench.run import Heard
from bench.soak import Sample
from bench.spark_cost import Cost
from bench.spark_lake import Streamed
from iotsphere.entities.topic import parse_filter

from .results import RESULT, TIMES

LOSSY = replace(RESULT, lost=1)


def broadcast_of(lost: int = 0) -> Broadcast:
    return Broadcast(delivered=50_000, seconds=2.0, cpu=1.0, p99=1.0, lost=lost, reordered=0, duplicated=0)


def test_fan_out_compares_what_further_clients_cost() -> None:
    even = replace(RESULT, cpu={"gateway": 0.8}, seconds=2.0)
    one = replace(RESULT, cpu={"gateway": 0.5}, delivered=2_000)
    many = replace(RESULT, cpu={"gateway": 1.0}, delivered=202_000)
    titles = [("even", 100), ("one", 1), ("many", 100)]
    section = fan_out.table([even, one, many], titles, broadcast_of())
    assert section.figures["fan-out/share"] == pytest.approx(40)
    assert section.figures["fan-out/broadcast"] == pytest.approx(8)  # 400,000 against 50,000 a core
    assert not section.failed
    assert fan_out.table([even, one, replace(many, duplicated=1)], titles, broadcast_of()).failed
    assert not fan_out.table([even, one, many], titles, broadcast_of(lost=3)).failed  # that is the peer's


@pytest.mark.skipif(shutil.which("cc") is None, reason="the programs are compiled on the spot")
async def test_the_peer_of_fan_out_is_checked_like_the_gateway(tmp_path: Path) -> None:
    found = await fan_out.broadcast(0.2, tmp_path, clients=3)
    assert (found.delivered, found.lost, found.reordered, found.duplicated) == (180, 0, 0, 0)
    assert found.cpu > 0


def test_filters_cost_what_the_median_loses() -> None:
    slow, fast = replace(RESULT, rate=27_000.0), RESULT
    section = filters.table([fast, fast, slow], [slow, slow, fast])
    assert section.figures == {"filters/cost": pytest.approx(10), "faults": 0}
    assert not section.failed
    assert filters.table([slow], [fast]).figures["filters/cost"] == 0
    assert filters.table([fast], [LOSSY]).faulty == {1}
    assert filters.table([LOSSY], [fast]).failed


def test_the_filters_of_others_are_wildcards_that_match_nothing_that_comes() -> None:
    wanted = filters.wildcards(10_000)
    assert len(set(wanted)) == 10_000
    parsed = [parse_filter(text) for text in wanted]
    assert all("+" in text for text in wanted)
    assert not [each for each in parsed if each.matches("iotsphere/devices/bench0001/telemetry")]


def caught_up(messages: int = catch_up.BEHIND, **faults: int) -> catch_up.CaughtUp:
    answer: dict[str, Any] = {"reordered": 0, "duplicated": 0, "foreign": 0, "distinct": messages}
    missing = Missing(faults.pop("lost", 0), 0, 0)
    return catch_up.CaughtUp(messages, 10.0, Heard({**answer, **faults}, missing, ()))


def test_catching_up_counts_what_the_others_feel() -> None:
    slower = replace(RESULT, delivery={**TIMES, "p99": 3 * TIMES["p99"]})
    section = catch_up.table(RESULT, slower, caught_up())
    assert section.figures == {"catch-up/others": pytest.approx(3), "catch-up/rate": 100_000, "faults": 0}
    assert not section.failed
    assert catch_up.table(RESULT, slower, caught_up(60_000)).figures == {"faults": 0}


@pytest.mark.parametrize("fault", ["lost", "reordered", "duplicated", "foreign"])
def test_a_late_reader_that_misses_something_fails_the_round(fault: str) -> None:
    section = catch_up.table(RESULT, RESULT, caught_up(**{fault: 1}))
    assert section.failed
    assert section.faulty == {0}
    assert section.figures["faults"] == 1


def test_growth_shows_every_point_and_fails_by_any() -> None:
    points = [Point("filters", 0, RESULT), Point("filters", 100, replace(RESULT, rate=15_000.0))]
    section = growth.table(points)
    assert section.notes == ("filters, from 0 to 100: 0.50 × the messages/s.",)
    assert not section.failed
    lossy = growth.table([*points, Point("payload", 48, LOSSY)])
    assert lossy.faulty == {2}
    assert lossy.figures == {"faults": 1}
    assert [chart.points for chart in growth.charts(points)][2] == ((0, 30_000.0), (100, 15_000.0))


def samples(memory: list[float]) -> list[Sample]:
    return [
        Sample(60.0 * minute + second, value, 50.0, rewriting=minute == 1)
        for minute, value in enumerate(memory)
        for second in (1, 30, 59)
    ]


def slices(*p99: float) -> tuple[dict[str, float], ...]:
    return tuple({"counted": 1, "p50_ms": 0.5, "p99_ms": value, "max_ms": value} for value in p99)


def test_a_soak_finds_memory_that_grows_and_a_minute_that_is_slow() -> None:
    run = replace(RESULT, slices=slices(4.0, 5.0, 15.0))
    section = soak.table(run, samples([100.0, 100.0, 130.0]), 60.0, 15_000.0)
    assert section.figures == {"soak/memory": pytest.approx(1.3), "soak/p99": pytest.approx(3), "faults": 0}
    assert [cells[4] for cells in section.cells] == ["", "rewritten", ""]
    assert not section.failed
    assert soak.table(replace(run, duplicated=1), samples([1, 1, 1]), 60.0, 1.0).failed
    with pytest.raises(BenchFailed, match="minute 3"):
        soak.table(run, samples([100.0, 100.0]), 60.0, 1.0)
    with pytest.raises(BenchFailed, match="only 2 minutes"):
        soak.table(replace(run, slices=slices(1, 2)), samples([1, 1]), 60.0, 1.0)


def test_scaling_out_tells_what_each_role_costs() -> None:
    cpu = {"ingress 1": 1.0, "ingress 2": 1.0, "websocket 1": 0.5, "websocket 2": 1.5, "redis": 0.4, "load": 0.1}
    run = replace(RESULT, cpu=cpu, acked=100_000, delivered=200_000)
    assert scale_out.costs(run) == pytest.approx({"ingress": 20.0, "websocket": 10.0, "redis": 4.0, "load": 1.0})
    section = scale_out.table({"ceiling": run, "paced": replace(run, reordered=1)})
    assert section.faulty == {1}
    assert section.failed
    assert math.isclose(section.figures["scale-out/ingress"], 20.0)


def test_spark_is_held_to_its_targets_only_where_there_was_enough_of_it() -> None:
    lake = Streamed(rows=2_000_000, batches=5, rate=40_000.0, cpu=20.0)
    found = spark.Rolled(1_000_000, Cost(50.0, 80.0), 5_000_000, Cost(30.0, 50.0), Cost(12.0, 22.0))
    section = spark.table(lake, found, comparable=True)
    assert section.figures == {"spark/lake": 40_000.0, "spark/rollup": 20_000.0, "spark/duckdb": 2.5}
    assert section.cells[1][1:] == ("20,000", "80.0", "—")
    assert section.cells[2][1:] == ("166,667", "10.0", "2.5 times as long")
    assert spark.table(lake, found, comparable=False).figures == {}
