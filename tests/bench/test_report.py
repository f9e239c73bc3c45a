"""The report: the run that is shown, the ratios, and the section of the documentation."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench.__main__ import PAGE
from bench.report import BEGIN, END, Row, as_json, as_markdown, conclusions, save, show, write_docs
from bench.run import Result
from bench.scenarios import Scenario, scenarios

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
MACHINE = {
    "date": "2026-01-31",
    "cores": "2",
    "cpu": "some processor",
    "memory": "8 GiB",
    "kernel": "6.1",
    "python": "3.11",
    "iotsphere": "1.0 (abc)",
    "redis": "Redis server v=7 sha=0",
    "mosquitto": "mosquitto version 2",
}


@cache
def by_name(name: str) -> Scenario:
    return next(each for each in scenarios(1, quick=True) if each.name == name)


def rows() -> list[Row]:
    fast, slow = replace(RESULT, rate=40_000.0), replace(RESULT, rate=20_000.0, lost=2, delivery={**TIMES, "p99": 99.0})
    return [
        Row(by_name("embedded"), "ceiling", (fast, slow, RESULT)),
        Row(by_name("embedded"), "10,000/s", (slow, RESULT, RESULT)),
        Row(by_name("mosquitto"), "ceiling", (replace(RESULT, rate=25_000.0),)),
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
    assert [run.is_clean for run in ceiling.runs] == [True, False, True]


def test_ceilings_are_compared_with_the_peer() -> None:
    assert conclusions(rows()) == ["embedded SQLite, `fsynced`: 1.20 × the ceiling of Mosquitto alone, nothing kept"]


def test_a_disturbed_round_says_so() -> None:
    quiet, busy = rows()[2], Row(by_name("embedded"), "10,000/s", (replace(RESULT, others=0.003),))
    assert conclusions([quiet]) == []
    assert conclusions([quiet, busy]) == [
        "Other work took 0.78 cores on average (1.50 at most) while this was measured: "
        "the rates are too low, the times too long."
    ]


def test_table_and_json_hold_every_row(tmp_path: Path) -> None:
    text = StringIO()
    show(rows(), MACHINE, Console(file=text, width=200))
    assert "2 cores, some processor" in text.getvalue()
    assert text.getvalue().count("embedded SQLite") == 2  # once in the table, once in the ratio
    assert [(row["scenario"], row["load"], len(row["runs"])) for row in as_json(rows(), MACHINE)["rows"]] == [
        ("embedded", "ceiling", 3),
        ("embedded", "10,000/s", 3),
        ("mosquitto", "ceiling", 1),
    ]
    path = save(rows(), MACHINE, tmp_path)
    assert path.name == "2026-01-31-abc.json"
    assert '"lost": 2' in path.read_text()


def test_the_section_goes_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    section = as_markdown(rows(), MACHINE)
    write_docs(section, page)
    write_docs(section, page)
    assert page.read_text() == f"above\n{BEGIN}\n\n{section}\n\n{END}\nbelow\n"
    assert "| embedded SQLite, `fsynced` | ceiling | 30,000 (20,000–40,000) |" in section
    page.write_text("no marks")
    with pytest.raises(ValueError, match=r"page\.md lacks"):
        write_docs(section, page)


def test_the_page_has_its_marks() -> None:
    text = PAGE.read_text()
    assert text.count(BEGIN) == text.count(END) == 1


def test_a_quick_round_stays_under_two_minutes() -> None:
    runs = [load for scenario in scenarios(4, quick=True) for load in scenario.loads.values()]
    assert sum(load.seconds for load in runs) < 60  # the rest is starting and draining
