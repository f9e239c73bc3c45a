"""One table of the report, whatever was measured: shown on the terminal, kept as JSON, and written into the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

DISTURBED = 0.25  # of one core


@dataclass(frozen=True, slots=True)
class Section:
    """``cells``: one tuple of texts a row. ``notes``: sentences below. ``figures``: numbers for the targets, by name.

    ``faulty``: the numbers of the rows in which messages were lost, reordered, repeated or invented, or connections not
    kept. ``failed``: whether the round failed by it. ``others``: cores that other work took, by run. ``raw``: all figures.
    The figure ``faults`` is the number of messages with one of these faults; a round adds up those of its sections.
    ``picture``: the address from the page, the caption, and what is drawn (SVG).
    """

    name: str
    title: str
    headings: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    faulty: frozenset[int] = frozenset()
    failed: bool = False
    others: tuple[float, ...] = ()
    raw: Any = None
    picture: tuple[str, str, str] | None = None

    def show(self, console: Console) -> None:
        """Print the table and its notes."""
        table = Table(box=box.SIMPLE_HEAD, title=self.title, title_justify="left")
        for number, heading in enumerate(self.headings):
            table.add_column(heading, justify="left" if number == 0 or "CPU" in heading else "right")
        for number, row in enumerate(self.cells):
            table.add_row(*row, style="red" if number in self.faulty else None)
        console.print(table)
        for note in self.notes:
            console.print(f"- {note}")

    def markdown(self) -> str:
        """The table and its notes for the page."""
        lines = [f"### {self.title}", "", f"| {' | '.join(self.headings)} |", f"|{'---|' * len(self.headings)}"]
        lines += [f"| {' | '.join(row)} |" for row in self.cells]
        if self.picture is not None:
            lines += ["", f"![{self.picture[1]}]({self.picture[0]})"]
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines)


def together(sections: Sequence[Section]) -> dict[str, float]:
    """The figures of all sections; the faults of those that counted any are added up."""
    figures = {name: value for section in sections for name, value in section.figures.items()}
    if "faults" in figures:
        figures["faults"] = sum(section.figures.get("faults", 0) for section in sections)
    return figures


def disturbance(sections: Sequence[Section]) -> list[str]:
    """A sentence when other work took much of the machine during the round."""
    others = [each for section in sections for each in section.others]
    if max(others, default=0) <= DISTURBED:
        return []
    mean = sum(others) / len(others)
    return [
        f"Other work took {mean:.2f} cores on average ({max(others):.2f} at most) while this was measured: "
        "the rates are too low, the times too long."
    ]


def short(milliseconds: float) -> str:
    """Milliseconds with as many places as are worth reading."""
    if milliseconds < 1:
        return f"{milliseconds:.2f}"
    return f"{milliseconds:.1f}" if milliseconds < 100 else f"{milliseconds:,.0f}"


def percentiles(times: Mapping[str, float]) -> str:
    """The three that matter."""
    return " / ".join(short(times[name]) for name in ("p50", "p99", "p999"))
