"""The results as a table on the terminal, as JSON in a file, and as a section of the documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from .run import Result
from .scenarios import Scenario

DISTURBED = 0.25  # of one core
BEGIN = "<!-- begin of what `make bench` writes -->"
END = "<!-- end of what `make bench` writes -->"


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario under one load: its runs, the middle one first to be shown."""

    scenario: Scenario
    load: str
    runs: tuple[Result, ...]

    @property
    def middle(self) -> Result:
        """The run with the median figure: of the rate at the ceiling, of the 99th percentile at a given rate."""
        paced = self.scenario.loads[self.load].rate > 0
        order = sorted(self.runs, key=lambda run: run.delivery["p99"] if paced else run.rate)
        return order[len(order) // 2]

    def cells(self) -> tuple[str, ...]:
        """The row as texts."""
        run = self.middle
        rates = [each.rate for each in self.runs]
        spread = (
            f" ({min(rates):,.0f}–{max(rates):,.0f})"
            if len(rates) > 1 and not self.scenario.loads[self.load].rate
            else ""
        )
        faults = [sum(getattr(each, kind) for each in self.runs) for kind in ("lost", "reordered", "duplicated")]
        return (
            self.scenario.title,
            self.load,
            f"{run.rate:,.0f}{spread}",
            _times(run.puback),
            _times(run.delivery),
            " · ".join(
                f"{name} {1e6 * used / run.delivered:.1f} ({used / run.seconds:.0%})" for name, used in run.cpu.items()
            ),
            " / ".join(str(count) for count in faults),
        )


HEADINGS = (
    "system",
    "load",
    "messages/s",
    "PUBACK ms p50/p99/p99.9",
    "delivery ms p50/p99/p99.9",
    "CPU µs a message (of one core)",
    "lost / reordered / duplicated",
)


def _times(times: dict[str, float]) -> str:
    return " / ".join(_short(times[name]) for name in ("p50", "p99", "p999"))


def _short(milliseconds: float) -> str:
    return (
        f"{milliseconds:.2f}"
        if milliseconds < 1
        else f"{milliseconds:.1f}"
        if milliseconds < 100
        else f"{milliseconds:.0f}"
    )


def show(rows: Sequence[Row], machine: dict[str, str], console: Console) -> None:
    """Print one table."""
    table = Table(box=box.SIMPLE_HEAD, title=f"{machine['cores']} cores, {machine['cpu']}")
    for heading in HEADINGS:
        table.add_column(
            heading, justify="left" if heading in ("system", "load", "CPU µs a message (of one core)") else "right"
        )
    previous = None
    for row in rows:
        title, *cells = row.cells()
        if previous is row.scenario:
            title = ""
        elif previous is not None:
            table.add_section()
        previous = row.scenario
        table.add_row(title, *cells, style=None if all(run.is_clean for run in row.runs) else "red")
    console.print(table)
    for sentence in conclusions(rows):
        console.print(sentence)


def conclusions(rows: Sequence[Row]) -> list[str]:
    """Each ceiling as a ratio of the peer's in the same round, and whether other work disturbed the round."""
    ceilings = {row.scenario.name: row for row in rows if row.load == "ceiling"}
    peers = [row for row in ceilings.values() if row.scenario.is_peer]
    ratios = [
        f"{row.scenario.title}: {row.middle.rate / peer.middle.rate:.2f} × the ceiling of {peer.scenario.title}"
        for peer in peers
        for row in ceilings.values()
        if not row.scenario.is_peer
    ]
    others = [run.others / run.seconds for row in rows for run in row.runs]
    if max(others, default=0) > DISTURBED:
        mean = sum(others) / len(others)
        ratios.append(
            f"Other work took {mean:.2f} cores on average ({max(others):.2f} at most) while this was measured: "
            "the rates are too low, the times too long."
        )
    return ratios


def as_json(rows: Sequence[Row], machine: dict[str, str]) -> dict[str, Any]:
    """Everything that was measured."""
    return {
        "machine": machine,
        "rows": [
            {"scenario": row.scenario.name, "load": row.load, "runs": [run.as_json() for run in row.runs]}
            for row in rows
        ],
    }


def save(rows: Sequence[Row], machine: dict[str, str], folder: Path) -> Path:
    """Write the JSON into the folder, under the date and the version; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    version = machine["iotsphere"].partition("(")[2].rstrip(")") or "unknown"
    path = folder / f"{machine['date']}-{version}.json"
    path.write_text(json.dumps(as_json(rows, machine), indent=1) + "\n")
    return path


def as_markdown(rows: Sequence[Row], machine: dict[str, str]) -> str:
    """The section for the documentation."""
    facts = (
        f"{machine['date']}, {machine['cores']} cores ({machine['cpu']}), {machine['memory']}, Linux {machine['kernel']}, "
        f"Python {machine['python']}, {machine['redis'].partition(' sha')[0]}, {machine['mosquitto']}, "
        f"IoTSphere {machine['iotsphere']}; {max(len(row.runs) for row in rows)} run(s) a row."
    )
    lines = [facts, "", f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    lines += [f"| {' | '.join(row.cells())} |" for row in rows]
    lines += ["", *(f"- {sentence}" for sentence in conclusions(rows))]
    return "\n".join(lines)


def write_docs(text: str, page: Path) -> None:
    """Put the section between the two marks of the page. Raises ValueError when the page has no marks."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page.name} lacks the two lines {BEGIN!r} and {END!r}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
