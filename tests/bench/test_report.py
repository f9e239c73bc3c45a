"""The report: the run that is shown, the ratios, the targets, and the section of the documentation."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench.__main__ import PAGE, SCALE_PAGE, chosen, cost
from bench.part import Scale
from bench.parts import PARTS
from bench.report import BEGIN, END, Row, as_markdown, draw, ratios, save, systems, write_docs
from bench.scenarios import Scenario, scenarios
from bench.section import Section, disturbance, together
from bench.targets import TARGETS, against_targets

from .results import RESULT, TIMES

MACHINE = {
    "date": "2026-01-31",
    "cores": "2",
    "cpu": "some processor",
    "memory": "8 GiB",
    "kernel": "6.1",
    "python": "3.11",
    "iotsphere": "1.0 (abc)",
    "redis": "Redis server v=7",
    "mosquitto": "mosquitto version 2",
    "nats": "",
}


@cache
def by_name(name: str) -> Scenario:
    return next(each for each in scenarios(1, quick=True) if each.name == name)


def rows() -> list[Row]:
    fast, slow = replace(RESULT, rate=40_000.0), replace(RESULT, rate=20_000.0, lost=2, delivery={**TIMES, "p99": 99.0})
    return [
        Row(by_name("embedded"), "ceiling", (fast, slow, RESULT)),
        Row(by_name("embedded"), "10,000/s", (slow, RESULT, RESULT)),
        Row(
            by_name("mosquitto"),
            "ceiling",
            tuple(replace(RESULT, rate=rate) for rate in (25_000.0, 10_000.0, 40_000.0)),
        ),
    ]


def test_the_middle_run_is_shown_with_the_spread_and_the_faults_of_all_runs() -> None:
    ceiling, paced, _ = rows()
    assert ceiling.middle.rate == 30_000
    assert paced.middle.delivery["p99"] == 12.34
    assert ceiling.cells() == (
        "embedded SQLite, `fsynced`",
        "ceiling",
        "30,000 (20,000–40,000)",
        "0.50 / 12.3 / 123",
        "0.50 / 12.3 / 123",
        "gateway 15.4 (77%) · load 1.0 (5%)",
        "2 / 0 / 0",
    )


def test_a_message_lost_in_any_run_fails_the_round_unless_a_peer_lost_it() -> None:
    section = systems(rows(), ("RabbitMQ is left out: no",))
    assert section.failed
    assert section.faulty == {0, 1}
    assert section.figures["faults"] == 4
    assert section.notes == ("RabbitMQ is left out: no",)
    lossy = Row(by_name("mosquitto"), "ceiling", (replace(RESULT, lost=5),))
    assert not systems([lossy]).failed
    assert systems([lossy]).faulty == {0}


def test_a_ratio_is_the_median_of_those_within_each_round() -> None:
    section = ratios(rows())  # 40/25, 20/10 and 30/40 thousand
    assert section.cells == (("embedded SQLite, `fsynced`", "1.60 (0.75–2.00)"),)
    assert section.figures == {"embedded/mosquitto": 1.6}


def test_a_disturbed_round_says_so() -> None:
    quiet, busy = Section("a", "A", (), (), others=(0.05,)), Section("b", "B", (), (), others=(1.5,))
    assert disturbance([quiet]) == []
    assert disturbance([quiet, busy]) == [
        "Other work took 0.78 cores on average (1.50 at most) while this was measured: "
        "the rates are too low, the times too long."
    ]


def test_faults_of_all_sections_are_added_up_where_any_were_counted() -> None:
    some = [Section("a", "A", (), (), figures={"faults": 2, "x": 1}), Section("b", "B", (), (), figures={"faults": 1})]
    assert together([*some, Section("c", "C", (), ())]) == {"faults": 3, "x": 1}
    assert together([Section("c", "C", (), (), figures={"y": 1})]) == {"y": 1}


def test_targets_say_whether_they_are_reached_and_by_how_much() -> None:
    figures = {
        "faults": 0.0,
        "redis-logged/ceiling/rate": 30_000.0,
        "redis-logged/mosquitto": 1.8,
        "redis-logged/10,000/s/p99": 12.5,
    }
    section = against_targets(figures)
    assert [cells[1:] for cells in section.cells] == [
        ("≤ 0", "0", "yes"),
        ("≥ 40,000/s", "30,000/s", "**no**, 75% of it"),
        ("≥ 1.8 ×", "1.8 ×", "yes"),
        ("≤ 5 ms", "12.5 ms", "**no**, 2.5 times it"),
    ]
    assert section.faulty == {1, 3}
    assert section.notes[0] == "2 of 4 targets reached."
    assert section.notes[1].count(";") == len(TARGETS) - 4 - 1
    assert len({target.what for target in TARGETS}) == len(TARGETS)
    assert against_targets({"faults": 3.0}).cells[0][3] == "**no**"


def test_every_figure_of_the_systems_that_a_target_asks_for_is_a_row() -> None:
    known = {f"{each.name}/{load}" for each in scenarios(1, quick=False) for load in each.loads}
    asked = {target.figure.rpartition("/")[0] for target in TARGETS if target.figure.count("/") > 1}
    names = tuple(each.name for each in scenarios(1, quick=False))
    assert {figure for figure in asked if figure.startswith(names)} <= known


def test_table_and_json_hold_every_row(tmp_path: Path) -> None:
    sections = [systems(rows()), ratios(rows())]
    text = StringIO()
    for section in sections:
        section.show(Console(file=text, width=200))
    assert text.getvalue().count("embedded SQLite") == 2  # once in the table, once in the ratios
    path = save(sections, MACHINE, tmp_path)
    assert path.name == "2026-01-31-abc.json"
    kept = json.loads(path.read_text())
    assert [(row["scenario"], row["load"], len(row["runs"])) for row in kept["systems"]["raw"]] == [
        ("embedded", "ceiling", 3),
        ("embedded", "10,000/s", 3),
        ("mosquitto", "ceiling", 3),
    ]
    assert kept["ratios"]["figures"] == {"embedded/mosquitto": 1.6}


def test_the_section_goes_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    picture = Section("p", "P", ("a",), (("1",),), ("a note",), picture=("p.svg", "what it shows", "<svg/>"))
    draw([picture], page)
    assert (tmp_path / "p.svg").read_text() == "<svg/>"
    section = as_markdown([systems(rows()), picture], MACHINE)
    write_docs(section, page)
    write_docs(section, page)
    assert page.read_text() == f"above\n{BEGIN}\n\n{section}\n\n{END}\nbelow\n"
    assert "| embedded SQLite, `fsynced` | ceiling | 30,000 (20,000–40,000) |" in section
    assert section.endswith("### P\n\n| a |\n|---|\n| 1 |\n\n![what it shows](p.svg)\n\n- a note")
    page.write_text("no marks")
    with pytest.raises(ValueError, match=r"page\.md lacks"):
        write_docs(section, page)


@pytest.mark.parametrize("page", [PAGE, SCALE_PAGE])
def test_the_page_has_its_marks(page: Path) -> None:
    text = page.read_text()
    assert text.count(BEGIN) == text.count(END) == 1


@pytest.mark.parametrize(
    ("scale", "rounds", "minutes"), [(Scale(quick=True, seconds=2.5), 1, 2), (Scale(quick=False, seconds=6), 3, 35)]
)
def test_a_round_stays_within_its_time(scale: Scale, rounds: int, minutes: float) -> None:
    systems_chosen, parts = chosen(scale, None)
    planned = rounds * sum(cost(each, scale) for each in systems_chosen) + sum(part.estimate(scale) for part in parts)
    assert planned < minutes * 60


def test_a_round_can_be_narrowed_to_known_names() -> None:
    scale = Scale(quick=True, seconds=3)
    some, parts = chosen(scale, ["rabbitmq", "soak"])
    assert [each.name for each in some] == ["rabbitmq"]
    assert [part.name for part in parts] == ["soak"]
    with pytest.raises(Exception, match="nobody: choose from"):
        chosen(scale, ["nobody"])
    assert len({part.name for part in PARTS}) == len(PARTS)
